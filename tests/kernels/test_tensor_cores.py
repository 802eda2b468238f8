"""linear_dtype="bf16" or "fp16" and attention_dtype="bf16" on tensor cores, by the emulation and, where there is one, on a GPU.

Attention's op: the cases of test_attention.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from llmi import LLM, SelfDraft, SpeculativeConfig, _core
from llmi.cli import commands
from llmi.testing import assert_same_tokens, random_drafter, tiny_model
from quantization import random_blocks, through_bf16
from test_activation_bits import quantized_file
from test_invariance import COUNTS, assert_a_crowd_moves_no_bit, make_params, make_prompts, run
from test_ops import rand

T = _core.testing
Array = np.ndarray[Any, Any]
CHUNK = 128  # columns whose sum begins at zero
BOTH = {"linear_dtype": "bf16", "attention_dtype": "bf16"}
IN_FP16 = {"linear_dtype": "fp16", "dtype": "float16"}
SUFFIXES = {"BF16": "+bf16", "F16": "+fp16"}  # of a device whose layers of such weights multiply on tensor cores
pytestmark = pytest.mark.usefixtures("device")


def matrix(table: str, rows: int, cols: int, kind: str = "BF16") -> Any:
    return T.PackedMatrix(table, kind, random_blocks(kind, rows, cols, 3), rows, cols)


def values(rows: int, cols: int, kind: str = "BF16") -> Array:
    return np.asarray(T.dequantize_row(kind, random_blocks(kind, rows, cols, 3), rows * cols)).reshape(rows, cols)


def rounded(x: Array, kind: str = "BF16") -> Array:
    """To bf16 or fp16, nearest even."""
    if kind == "F16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    return through_bf16(x)


def by_definition(x: Array, w: Array, kind: str) -> Array:
    """Pairs of columns in order, the odd one first, chunks from zero; products of 16 bits are exact in fp32."""
    x = rounded(x, kind)
    total = np.zeros((len(x), len(w)), np.float32)
    for begin in range(0, w.shape[1], CHUNK):
        part = np.zeros_like(total)
        for pair in range(begin, min(begin + CHUNK, w.shape[1]), 2):
            for k in (pair + 1, pair):
                part = part + x[:, k : k + 1] * w[:, k]
        total = total + part
    return total


# A cut tile, cut pieces of 16 columns, cut chunks, more chunks than warps, more tiles than warps; all forms of the kernel and their borders.
@pytest.mark.parametrize("shape", [(16, 128), (37, 256), (1, 40), (48, 100), (20, 1200), (272, 64), (33, 512)], ids=str)
@pytest.mark.parametrize("num_rows", [1, 8, 9, 16, 32, 33, 64, 70, 128])
@pytest.mark.parametrize("kind", SUFFIXES)
def test_sums_are_those_of_the_definition(device: str, shape: tuple[int, int], num_rows: int, kind: str) -> None:
    rows, cols = shape
    table = device + SUFFIXES[kind]
    x, w = rand(num_rows, cols), values(rows, cols, kind)
    bias, residual = rand(rows, seed=1), rand(num_rows, rows, seed=2)
    expected = by_definition(x, w, kind)
    for kwargs, wanted in (
        ({}, expected),
        ({"biases": [bias.tolist()]}, expected + bias),
        ({"residual": residual}, residual + expected),
    ):
        got = T.linear(table, [matrix(table, rows, cols, kind)], x, **kwargs)
        if device == "emulated":
            assert_same_bits(got, wanted)
        # A GPU's own order: of each product and addition an error of the sum of magnitudes, cut, not rounded, at 2^-23.
        exact = rounded(x, kind).astype(np.float64) @ w.T.astype(np.float64) + (wanted - expected)
        magnitude = np.abs(rounded(x, kind)).astype(np.float64) @ np.abs(w.T).astype(np.float64) + np.abs(wanted - expected)
        assert np.all(np.abs(got - exact) <= 2.0**-23 * (cols + 3) * magnitude)


@pytest.mark.parametrize("kind", SUFFIXES)
def test_rows_are_independent(device: str, kind: str) -> None:
    table = device + SUFFIXES[kind]
    x = rand(512, 600)
    weights = matrix(table, 64, 600, kind)
    whole = T.linear(table, [weights], x)
    for count in (1, 2, 3, 5, 8, 16, 32, 33, 64, 65):
        for begin in (0, 17, 512 - count):
            part = T.linear(table, [weights], x[begin : begin + count].copy())
            assert_same_bits(part, whole[begin : begin + count])


@pytest.mark.parametrize("cols", [256, 100, 1024, 4096])
@pytest.mark.parametrize("kind", SUFFIXES)
def test_a_norm_before_the_layers(device: str, kind: str, cols: int) -> None:
    """Up to four rows each block makes it, up to eight it rounds what a launch made, and more come in fragments from the norm: the same
    bits, as of rows that were normed before."""
    table = device + SUFFIXES[kind]
    x, weight = rand(40, cols) * np.float32(3), rand(1, cols, seed=3)[0]
    weights = [matrix(table, rows, cols, kind) for rows in (64, 16, 37)]
    apart = np.asarray(T.norm("reference", x, weight))
    for count in (1, 2, 4, 5, 8, 9, 33, 40):
        for begin in (0, 40 - count):
            got = T.linear(table, weights, x[begin : begin + count].copy(), norm=weight)
            assert_same_bits(np.asarray(got), np.asarray(T.linear(table, weights, apart[begin : begin + count].copy())))


@pytest.mark.parametrize("kind", SUFFIXES)
def test_rounding_and_extremes(device: str, kind: str) -> None:
    """Ties of the rounding, subnormals, infinities and NaN go where the format sends them; fp16 has nothing beyond 65,504."""
    small, large = ([2**-130, -(2**-133)], 3e38) if kind == "BF16" else ([2**-20 * 1.001, -(2**-24)], 65519.9)
    tie = 2**-8 if kind == "BF16" else 2**-11
    special = np.array([1 + tie, 1 + 3 * tie, *small, large, np.inf, np.nan, 0.0, 65520.0], np.float32)
    x = np.zeros((9, 16), np.float32)
    x[np.arange(9), np.arange(9)] = special
    one = {"BF16": 0x3F80, "F16": 0x3C00}[kind]
    table = device + SUFFIXES[kind]
    ones = T.PackedMatrix(table, kind, np.full(16 * 16, one, np.uint16).tobytes(), 16, 16)
    got = T.linear(table, [ones], x)
    wanted = rounded(x, kind).sum(-1, dtype=np.float32)
    wanted[6] = np.nan
    assert np.isinf(wanted[8]) == (kind == "F16")
    assert np.array_equal(got, np.repeat(wanted[:, None], 16, 1), equal_nan=True)


ONE_EACH = [{"linear_dtype": "bf16", "attention_dtype": "float32"}, {"linear_dtype": "float32", "attention_dtype": "bf16"}]


@pytest.mark.parametrize("types", [*ONE_EACH, BOTH, IN_FP16], ids=str)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_no_configuration_moves_a_bit(tiny_path: Callable[..., Path], architecture: str, types: dict[str, Any]) -> None:
    """A crowd in a tight pool, chunks and copies on write, against one request at a time."""
    model = tiny_path(architecture)
    engine: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "max_model_len": 360, **types}
    assert_a_crowd_moves_no_bit(model, engine)


def test_many_sequences_at_once(tiny_path: Callable[..., Path]) -> None:
    """Launches of more rows than spans are given blocks of their own for: prompts, and 90 sequences that decode."""
    engine: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "max_model_len": 360, "kv_cache_memory_bytes": 1 << 25, **BOTH}
    prompts, params = make_prompts(257, 90, 280), make_params(90, 12)
    expected = run(tiny_path(), prompts, params, 5, dict.fromkeys(COUNTS, 0), **engine)
    assert_same_tokens(run(tiny_path(), prompts, params, 90, dict.fromkeys(COUNTS, 0), max_num_seqs=90, **engine), expected)


@pytest.mark.parametrize(
    ("types", "parts"),
    [
        ({}, "-a:bf16mma-kv:bf16-attn:bf16mma"),
        ({"linear_dtype": "bf16", "attention_dtype": "float32"}, "-a:bf16mma-kv:f16-attn:f32"),
        ({"linear_dtype": "float32", "attention_dtype": "bf16"}, "-a:f32-kv:bf16-attn:bf16mma"),
        (IN_FP16, "-a:f16mma-kv:f16-attn:f32"),
        (IN_FP16 | {"attention_dtype": "bf16"}, "-a:f16mma-kv:bf16-attn:bf16mma"),
    ],
    ids=str,
)
def test_speculation_receipt_and_names(tiny_path: Callable[..., Path], tmp_path: Path, types: dict[str, Any], parts: str) -> None:
    """Drafts of the model's own layers multiply as it does; the numerics id says so, and a receipt is replayed by it."""
    engine: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "kv_cache_memory_bytes": 1 << 24, "max_model_len": 256}
    with LLM(tiny_path(), **{**engine, **types}) as llm:
        assert parts in llm.model_info.numerics_id
        plain = llm.generate([[5, 6, 7, 8]] * 3, temperature=0.9, max_tokens=24, seed=4, logprobs=2)
        drafts = SpeculativeConfig(SelfDraft(exit_layer=1), num_speculative_tokens=4)
        drafted = llm.generate([[5, 6, 7, 8]] * 3, temperature=0.9, max_tokens=24, seed=4, logprobs=2, speculative_config=drafts)
        assert_same_tokens(drafted, plain)
        beside = random_drafter(quality=0.7, seed=1)  # the target itself, loaded once more
        assert_same_tokens(
            llm.generate([[5, 6, 7, 8]] * 3, temperature=0.9, max_tokens=24, seed=4, logprobs=2, speculative_config=beside), plain
        )
        plain[0].receipt().save(tmp_path / "receipt.json")
        assert llmi.replay(tmp_path / "receipt.json", llm)
    assert commands.main(["replay", str(tmp_path / "receipt.json"), "--model", str(tiny_path())]) == 0
    fields = json.loads((tmp_path / "receipt.json").read_text())
    assert fields["numerics_id"] == llm.model_info.numerics_id
    with LLM(tiny_path(), linear_dtype="float32", **engine) as other:
        assert "mma" not in other.model_info.numerics_id
        with pytest.raises(llmi.InvalidParamsError, match="numerics id"):
            llmi.replay(tmp_path / "receipt.json", other)


def test_what_cannot_be_honoured_is_refused(tiny_path: Callable[..., Path]) -> None:
    with pytest.raises(llmi.UnsupportedCombinationError, match="it needs device = 'cuda'"):
        LLM(tiny_path(), dtype="float16", linear_dtype="fp16")
    with pytest.raises(llmi.UnsupportedCombinationError, match="is for bf16 weights, this model has f32"):
        LLM(tiny_path(), device="cuda", dtype="float32", linear_dtype="bf16", max_model_len=64)
    with pytest.raises(llmi.UnsupportedCombinationError, match="is for fp16 weights, this model has bf16"):
        LLM(tiny_path(), device="cuda", dtype="bfloat16", linear_dtype="fp16", max_model_len=64)
    with pytest.raises(llmi.InvalidParamsError, match="linear_dtype must be one of auto, float32, bf16, fp16, not 'fp8'"):
        LLM(tiny_path(), device="cuda", linear_dtype="fp8")


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"dtype": "bfloat16"}, "w:bf16-a:bf16mma-kv:bf16-attn:bf16mma"),
        ({"dtype": "bfloat16", "linear_dtype": "float32"}, "w:bf16-a:f32-kv:f16-attn:f32"),
        ({"dtype": "bfloat16", "attention_dtype": "float32"}, "w:bf16-a:bf16mma-kv:f16-attn:f32"),
        ({"dtype": "bfloat16", "kv_cache_dtype": "float16"}, "w:bf16-a:bf16mma-kv:f16-attn:f32"),
        ({"dtype": "bfloat16", "kv_cache_dtype": "int8"}, "w:bf16-a:bf16mma-kv:i8-attn:f32"),
        ({"dtype": "float16"}, "w:f16-a:f16mma-kv:f16-attn:f32"),
        ({"dtype": "float16", "linear_dtype": "float32"}, "w:f16-a:f32-kv:f16-attn:f32"),
        ({"dtype": "float32"}, "w:f32-a:f32-kv:f32-attn:f32"),
        ({"quantization": "q8_0"}, "w:q8-a:i16-kv:f16-attn:f32"),
        ({"quantization": "q8_0", "attention_dtype": "bf16"}, "w:q8-a:i16-kv:bf16-attn:bf16mma"),
    ],
    ids=str,
)
def test_auto_takes_tensor_cores_for_16_bits(tiny_path: Callable[..., Path], options: dict[str, Any], parts: str) -> None:
    """On a GPU alone; an explicit type of the cache wins, and a quantised model keeps the CPU's bits."""
    with LLM(tiny_path(), device="cuda", max_model_len=64, **options) as llm:
        assert parts in llm.model_info.numerics_id
        output = llm.generate([5, 6, 7, 8], temperature=0.9, max_tokens=8, seed=4, logprobs=1)[0]
        assert output.receipt().verify(llm)
        own = LLM(tiny_path(), **output.receipt()._engine_arguments)
        assert own.model_info.numerics_id == llm.model_info.numerics_id
        own.close()
    with LLM(tiny_path(), max_model_len=64, **options) as cpu:
        assert "mma" not in cpu.model_info.numerics_id
        if "mma" not in parts:
            assert_same_tokens(cpu.generate([[5, 6, 7, 8]], temperature=0.9, max_tokens=8, seed=4, logprobs=1), [output])


@pytest.mark.parametrize(
    ("stored", "parts"),
    [
        ("BF16", "w:bf16-a:bf16mma-kv:bf16-attn:bf16mma"),
        ("F16", "w:f16-a:f16mma-kv:f16-attn:f32"),
        ("F32", "w:f32-a:f32-kv:f16-attn:f32"),
        ("BF16 and Q8_0", "w:bf16+q8-a:i16-kv:f16-attn:f32"),
        ("BF16 and F16", "w:bf16+f16-a:f32-kv:f16-attn:f32"),
    ],
)
def test_auto_reads_the_types_of_the_file(tmp_path: Path, stored: str, parts: str) -> None:
    """Of files of both 16-bit types neither is taken."""
    directory = tiny_model(vocab_size=258, num_layers=2, path=tmp_path / "directory")
    first, _, second = stored.partition(" and ")
    model = quantized_file(tmp_path / "model.gguf", directory, lambda name: second if second and "ffn" in name else first)
    with LLM(model, device="cuda", max_model_len=64) as llm:
        assert parts in llm.model_info.numerics_id


@pytest.mark.parametrize(
    ("options", "option"), [({}, "linear_dtype"), ({"linear_dtype": "float32", "attention_dtype": "bf16"}, "attention_dtype")]
)
def test_tensor_cores_that_mix_rows_are_refused(tiny_path: Callable[..., Path], device: str, options: dict[str, Any], option: str) -> None:
    if device != "emulated":
        pytest.skip("planted in the emulation")
    T.mix_emulated_rows(True)
    try:
        with pytest.raises(llmi.DeviceError, match=f"depend on other rows of A.: give {option} = 'float32'"):
            LLM(tiny_path(), device="cuda", dtype="bfloat16", max_model_len=64, **options)
        LLM(tiny_path(), device="cuda", dtype="bfloat16", linear_dtype="float32", max_model_len=64).close()
    finally:
        T.mix_emulated_rows(False)
    LLM(tiny_path(), device="cuda", dtype="bfloat16", max_model_len=64).close()


def test_every_form_of_the_kernels_gives_equal_bits(tmp_path: Path) -> None:
    """Rows rounded in a block or before, sets of warps, and tiles of both sizes, which a GPU's number of multiprocessors chooses."""
    source = Path(__file__).parents[1] / "native" / "tiles.cc"
    if shutil.which("c++") is None or not (source.parents[2] / "csrc").is_dir():
        pytest.skip("no compiler, or the sources are not beside the tests")
    command = ["c++", "-std=c++20", "-O1", "-ffp-contract=off", "-Wall", "-Werror", f"-I{source.parents[2] / 'csrc'}", str(source)]
    subprocess.run([*command, "-o", str(tmp_path / "tiles")], check=True)
    assert subprocess.run([tmp_path / "tiles"], capture_output=True, text=True, check=True).stdout == "0\n"
