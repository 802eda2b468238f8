"""linear_dtype="bf16" on the CPU: bf16 weights meet activations rounded to bf16, in pairs of columns. On a GPU: test_tensor_cores.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, SelfDraft, SpeculativeConfig, _core
from llmi.testing import assert_same_tokens, random_drafter
from quantization import random_blocks, through_bf16
from test_invariance import assert_a_crowd_moves_no_bit
from test_ops import ROW_COUNTS, rand, same

T = _core.testing
Array = np.ndarray[Any, Any]
BF16: dict[str, Any] = {"dtype": "bfloat16", "linear_dtype": "bf16"}


def linear(table: str, data: bytes, rows: int, x: Array, **kwargs: Any) -> Array:
    matrix = T.PackedMatrix(table, "BF16", data, rows, x.shape[1])
    return np.asarray(T.linear(table + "+bf16", [matrix], x, **kwargs))


def stored(x: Array) -> bytes:
    """As bf16, nearest even."""
    return (through_bf16(x).view(np.uint32) >> 16).astype(np.uint16).tobytes()


@pytest.mark.parametrize("shape", [(16, 32), (64, 64), (80, 96), (250, 34), (17, 2)])
@pytest.mark.parametrize("num_rows", [1, 2, 4, 6, 7, 19])
def test_tables_give_the_references_bits(cpu_table: str, shape: tuple[int, int], num_rows: int) -> None:
    rows, cols = shape
    data, x = random_blocks("BF16", rows, cols, 3), rand(num_rows, cols)
    bias, residual = rand(rows, seed=1).tolist(), rand(num_rows, rows, seed=2)
    for kwargs in ({}, {"biases": [bias]}, {"residual": residual}):
        assert same(linear(cpu_table, data, rows, x, num_threads=2, **kwargs), linear("reference", data, rows, x, **kwargs))


def test_subnormals_of_operands_and_sums(cpu_table: str) -> None:
    """Operands and sums near 2^-126 are flushed as the instruction does; a subnormal bias is not."""
    random = np.random.default_rng(7)
    w = np.ldexp(random.uniform(-2, 2, (48, 64)), random.integers(-65, -58, (48, 64))).astype(np.float32)
    x = np.ldexp(random.uniform(-2, 2, (7, 64)), random.integers(-66, -60, (7, 64)) - 3 * np.arange(7)[:, None]).astype(np.float32)
    w[:, ::9] = np.ldexp(random.uniform(-1, 1, w[:, ::9].shape), -127).astype(np.float32)
    x[:, ::9] = 2.0**30  # the larger products, if they counted
    data = stored(w)
    plain = linear(cpu_table, data, 48, x)
    assert same(plain, linear("reference", data, 48, x))
    assert np.any(plain == 0) and np.any(plain != 0) and not np.any((plain != 0) & (np.abs(plain) < 2.0**-126))
    bias = np.full(48, 2.0**-140, np.float32).tolist()
    biased = linear(cpu_table, data, 48, x, biases=[bias])
    assert same(biased, plain + np.float32(2.0**-140)) and np.any((biased != 0) & (np.abs(biased) < 2.0**-126))


def test_rows_are_independent(cpu_table: str) -> None:
    data, x = random_blocks("BF16", 144, 160, 3), rand(64, 160)
    whole = linear(cpu_table, data, 144, x, num_threads=2)
    for count in (*ROW_COUNTS, 6, 7):
        for begin in (0, 17, 64 - count):
            if begin + count <= 64:
                assert same(linear(cpu_table, data, 144, x[begin : begin + count].copy()), whole[begin : begin + count])


def test_some_tiles_alone(cpu_table: str) -> None:
    data, x = random_blocks("BF16", 250, 64, 3), rand(3, 64)
    whole = linear(cpu_table, data, 250, x)
    part = linear(cpu_table, data, 250, x, tiles=[(1, 3), (15, 16)], num_threads=2)
    assert same(part[:, 16:48].copy(), whole[:, 16:48].copy()) and same(part[:, 240:].copy(), whole[:, 240:].copy())


def test_other_weights_are_as_ever(cpu_table: str) -> None:
    """A layer of several parts: those of other types meet x as they do without the option."""
    x = rand(5, 256)
    parts = [T.PackedMatrix(cpu_table, kind, random_blocks(kind, 32, 256, 3), 32, 256) for kind in ("F32", "BF16", "Q4_1")]
    together = np.asarray(T.linear(cpu_table + "+bf16", parts, x))
    without = np.asarray(T.linear(cpu_table, parts, x))
    assert same(together[:, :32].copy(), without[:, :32].copy()) and same(together[:, 64:].copy(), without[:, 64:].copy())
    assert not same(together[:, 32:64].copy(), without[:, 32:64].copy())


def test_against_float64() -> None:
    x, data = rand(5, 512), random_blocks("BF16", 40, 512, 3)
    w = np.asarray(T.dequantize_row("BF16", data, 40 * 512)).reshape(40, 512).astype(np.float64)
    rounded = through_bf16(x).astype(np.float64)
    bound = 512 * 2.0**-24 * (np.abs(rounded) @ np.abs(w).T)
    assert np.all(np.abs(linear("reference", data, 40, x) - rounded @ w.T) <= bound)


def test_what_is_not_a_number_stays_so(cpu_table: str) -> None:
    x = rand(3, 64)
    x[1, 5], x[2, 6] = np.nan, np.inf
    out = linear(cpu_table, stored(np.ones((16, 64), np.float32)), 16, x)
    assert np.all(np.isfinite(out[0])) and np.all(np.isnan(out[1])) and np.all(np.isinf(out[2]))


def test_columns_come_in_pairs() -> None:
    with pytest.raises(_core.CoreError, match="pairs of columns"):
        linear("reference", stored(rand(16, 33)), 16, rand(2, 33))


@pytest.mark.parametrize("types", [{}, {"attention_dtype": "bf16"}], ids=str)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_no_configuration_moves_a_bit(tiny_path: Callable[..., Path], architecture: str, types: dict[str, Any]) -> None:
    model = tiny_path(architecture)
    engine: dict[str, Any] = {"max_model_len": 360, **BF16, **types}
    assert_a_crowd_moves_no_bit(model, engine)


def test_every_table_gives_the_same_tokens(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = []
    for name in _core.system_info()["tables"]:
        monkeypatch.setenv("LLMI_ISA", name)
        with LLM(tiny_path(), max_model_len=128, **BF16) as llm:
            outputs.append(llm.generate([[5, 6, 7, 8]] * 2, temperature=0.9, max_tokens=12, seed=4, logprobs=3))
    for other in outputs[1:]:
        assert_same_tokens(other, outputs[0])


def test_speculation_receipt_and_names(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    engine: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 24, "max_model_len": 256}
    sampling: dict[str, Any] = {"temperature": 0.9, "max_tokens": 24, "seed": 4, "logprobs": 2}
    with LLM(tiny_path(), **engine, **BF16) as llm:
        assert "-a:bf16dot-kv:f16-attn:f32" in llm.model_info.numerics_id
        plain = llm.generate([[5, 6, 7, 8]] * 3, **sampling)
        for drafter in (SpeculativeConfig(SelfDraft(exit_layer=1), num_speculative_tokens=4), random_drafter(quality=0.7, seed=1)):
            assert_same_tokens(llm.generate([[5, 6, 7, 8]] * 3, speculative_config=drafter, **sampling), plain)
        plain[0].receipt().save(tmp_path / "receipt.json")
        assert llmi.replay(tmp_path / "receipt.json", llm)
    assert json.loads((tmp_path / "receipt.json").read_text())["numerics_id"] == llm.model_info.numerics_id
    with LLM(tiny_path(), dtype="bfloat16", **engine) as other:
        assert "-a:f32-" in other.model_info.numerics_id
        assert not np.array_equal(plain[0].outputs[0].logprobs[0], other.generate([[5, 6, 7, 8]], **sampling)[0].outputs[0].logprobs[0])
        with pytest.raises(llmi.InvalidParamsError, match="numerics id"):
            llmi.replay(tmp_path / "receipt.json", other)


def test_a_model_without_bf16_weights_refuses_it(tiny_path: Callable[..., Path]) -> None:
    with pytest.raises(llmi.UnsupportedCombinationError, match="is for bf16 weights, this model has f32"):
        LLM(tiny_path(), dtype="float32", linear_dtype="bf16")
