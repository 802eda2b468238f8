"""The promise: tokens and log-probabilities do not depend on batch, chunks, blocks, threads, preemption or ISA.

Each configuration is compared with a solo run, bit for bit. The report counts what happened on the way, and fails if
it was too little to have tested anything. `PYTHONPATH=tests/support python tests/engine/test_invariance.py --full` runs the whole grid, and
`LLMI_WHOLE_GRIDS=1 pytest tests/engine/test_invariance.py` that of tiny models, of which tests otherwise take a slice with each pair of values.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

from decoders import numbers_of
from features import WHOLE_GRIDS, expect_short_answers
from llmi import LLM, Outputs, SamplingParams, _core
from llmi.models import by_name
from llmi.testing import assert_same_tokens

COUNTS = ("num_preemptions", "num_recomputed_tokens", "num_copies_on_write", "num_window_blocks_returned")
LENGTHS = [
    1,
    2,
    15,
    16,
    17,
    31,
    33,
    63,
    64,
    65,
    100,
    127,
    129,
    200,
    255,
    256,
    257,
    300,
    400,
    511,
    512,
    513,
    600,
    700,
    767,
    768,
    769,
    900,
    1000,
    1024,
    1025,
    1500,
]


def make_prompts(vocab_size: int, count: int, longest: int, seed: int = 0) -> list[list[int]]:
    """Lengths across span (256), block and window edges."""
    rng = np.random.default_rng(seed)
    lengths = [length for length in LENGTHS if length <= longest]
    return [rng.integers(3, vocab_size, size=lengths[i % len(lengths)]).tolist() for i in range(count)]


def make_params(count: int, max_tokens: int) -> list[SamplingParams]:
    """Greedy and sampled with top-p and penalties by turns; some with n = 2, so that blocks are shared and copied."""
    greedy = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=1, ignore_eos=True)
    sampled = SamplingParams(
        temperature=0.8,
        top_p=0.9,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        seed=11,
        max_tokens=max_tokens,
        logprobs=1,
        ignore_eos=True,
    )
    return [sampled.replace(seed=i, n=2 if i % 4 == 1 else 1) if i % 2 else greedy for i in range(count)]


def run(model: Path, prompts: list[list[int]], params: list[SamplingParams], batch: int, counts: dict[str, int], **engine: Any) -> Outputs:
    outputs = Outputs()
    with LLM(model, **engine) as llm:
        expect_short_answers(llm)
        for begin in range(0, len(prompts), batch):
            outputs += llm.generate(prompts[begin : begin + batch], params[begin : begin + batch], use_tqdm=False)
        stats = llm.get_metrics()
        assert stats["audit"] == ""
        for name in COUNTS:
            counts[name] += stats[name]
    return outputs


def tight_pool(model: Path, longest: int, max_tokens: int, engine: dict[str, Any]) -> int:
    """KV bytes for little more than the longest sequence: others are preempted."""
    with LLM(model, kv_cache_memory_bytes=1 << 30, **{**engine, "max_model_len": None}) as llm:
        page_bytes, per_token = llm._page_bytes, llm.model_info.kv_bytes_per_token
    return (longest + max_tokens + 16) * per_token + 8 * page_bytes


def assert_a_crowd_moves_no_bit(model: Path, engine: dict[str, Any]) -> None:
    """12 requests in a tight pool, with chunks and copies on write, against one at a time."""
    prompts, params = make_prompts(257, 12, 300), make_params(12, 40)
    expected = run(model, prompts, params, 1, dict.fromkeys(COUNTS, 0), **engine)
    counts = dict.fromkeys(COUNTS, 0)
    crowded = {**engine, "max_num_batched_tokens": 90, "kv_cache_memory_bytes": tight_pool(model, 300, 40, engine)}
    assert_same_tokens(run(model, prompts, params, 12, counts, **crowded), expected)
    assert counts["num_preemptions"] > 0 and counts["num_copies_on_write"] > 0, counts


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_tiny_models_over_many_configurations(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    model = tiny_path(architecture)
    prompts, params = make_prompts(257, 30, 300), make_params(30, 60)
    counts = dict.fromkeys(COUNTS, 0)
    solo = run(model, prompts, params, 1, counts, kv_cache_memory_bytes=1 << 24)
    isas = [isa for isa in _core.system_info()["tables"] if isa != "reference"] or ["reference"]
    axes = ((7, 30), (7, 100, 2048), (16, 64), (1, 2), (False, True), isas)
    grid = list(itertools.product(*axes))
    if not WHOLE_GRIDS:  # each pair of values, and on one table all with little memory, so that as much happens on any machine
        grid = list(dict.fromkeys([*covering_array(axes), *(row for row in grid if row[4] and row[5] == isas[-1])]))
    for batch, chunk, block, threads, tight, isa in grid:
        monkeypatch.setenv("LLMI_ISA", isa)
        engine: dict[str, Any] = {"max_num_batched_tokens": chunk, "block_size": block, "num_threads": threads, "max_model_len": 370}
        memory = tight_pool(model, 300, 60, engine) if tight else 1 << 24
        got = run(model, prompts, params, batch, counts, kv_cache_memory_bytes=memory, **engine)
        assert_same_tokens(got, solo)
    print(counts)
    for name, count in counts.items():
        if name != "num_window_blocks_returned" or architecture == "gemma3":
            assert count >= 20, (name, counts)


def test_order_of_arrival(tiny_path: Callable[..., Path]) -> None:
    prompts, params = make_prompts(257, 10, 200), make_params(10, 20)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 23, max_model_len=512) as llm:
        forward = llm.generate(prompts, params)
        backward = llm.generate(prompts[::-1], params[::-1])
    assert_same_tokens(Outputs(backward[::-1]), forward)


def test_prompt_logprobs_and_scores(tiny_path: Callable[..., Path]) -> None:
    """Log-probabilities of prompts too, also when a preemption or a chunk cuts through them."""
    prompts = make_prompts(257, 20, 300)
    params = SamplingParams(max_tokens=30, prompt_logprobs=2, temperature=0.7, top_p=0.8, seed=3, ignore_eos=True)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 23, max_model_len=512) as llm:
        expected = Outputs(llm.generate(prompt, params)[0] for prompt in prompts)
    engine: dict[str, Any] = {"max_model_len": 336, "max_num_batched_tokens": 33}
    with LLM(tiny_path(), kv_cache_memory_bytes=tight_pool(tiny_path(), 300, 30, engine), **engine) as llm:
        assert_same_tokens(llm.generate(prompts, params), expected)
        assert llm.get_metrics()["num_preemptions"] > 0


@pytest.mark.parametrize(
    ("name", "bits", "slice_of"), [("smollm2-135m-instruct", 8, 2), ("gemma-3-270m", 8, 1), ("smollm2-135m-instruct", 16, 1)]
)
def test_real_models(name: str, bits: int, slice_of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice of the full grid, on real weights."""
    sizes: dict[str, Any] = {"num_prompts": 8, "longest": 520, "max_tokens": 12, "slice_of": slice_of}
    report = check_model(by_name.fetch(name), "auto", bits, **sizes, monkeypatch=monkeypatch)
    print(report)


def covering_array(axes: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows in which each pair of values of any two axes meets at least once; greedy, so a little over the minimum."""
    grid = list(itertools.product(*axes))

    def pairs(row: tuple[Any, ...]) -> set[tuple[Any, ...]]:
        return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}

    missing = set().union(*map(pairs, grid))
    rows = []
    while missing:
        rows.append(max(grid, key=lambda row: len(pairs(row) & missing)))
        missing -= pairs(rows[-1])
    return rows


def test_covering_array() -> None:
    axes = [(7, 32, 1), (7, 100, 512, 16), (False, True)]
    rows = covering_array(axes)
    assert len(rows) < 20
    for (i, first), (j, second) in itertools.combinations(enumerate(axes), 2):
        assert {(row[i], row[j]) for row in rows} == set(itertools.product(first, second))


def check_model(
    model: Path,
    dtype: str,
    activation_bits: int,
    *,
    num_prompts: int,
    longest: int,
    max_tokens: int,
    slice_of: int = 0,
    pairs: bool = False,
    monkeypatch: pytest.MonkeyPatch | None = None,
) -> dict[str, Any]:
    """Compares configurations of one model with solo runs; returns what was counted."""
    vocab_size = numbers_of(model)["vocab_size"]
    prompts, params = make_prompts(vocab_size, num_prompts, longest), make_params(num_prompts, max_tokens)
    counts = dict.fromkeys(COUNTS, 0)
    base: dict[str, Any] = {"dtype": dtype, "activation_bits": activation_bits, "max_model_len": longest + max_tokens + 16}
    solo = run(model, prompts, params, 1, counts, kv_cache_memory_bytes=1 << 28, **base)
    isas = [isa for isa in _core.system_info()["tables"] if isa != "reference"] or ["reference"]
    axes = ((7, 32, 1), (7, 100, 512, 16), (16, 64, 32), (2, 1), (False, True), isas)
    grid = covering_array(axes) if pairs else list(itertools.product(*axes))
    if slice_of:
        grid = [grid[i] for i in np.random.default_rng(1).permutation(len(grid))[:slice_of]] + [(32, 512, 16, 2, True, isas[-1])]
    for batch, chunk, block, threads, tight, isa in tqdm(grid, desc=f"{model.name} {dtype} {activation_bits}", disable=None):
        (monkeypatch.setenv if monkeypatch else os.environ.__setitem__)("LLMI_ISA", isa)
        engine = {**base, "max_num_batched_tokens": chunk, "block_size": block, "num_threads": threads}
        memory = tight_pool(model, longest, max_tokens, engine) if tight else 1 << 29
        assert_same_tokens(run(model, prompts, params, batch, counts, kv_cache_memory_bytes=memory, **engine), solo)
    return {
        "model": model.name,
        "dtype": dtype,
        "activation_bits": activation_bits,
        "configurations": len(grid),
        "prompts": num_prompts,
        **counts,
    }


def make_q8_0(source: Path, target: Path) -> Path:
    """The same model with its matrices as Q8_0, written by the gguf library."""
    import gguf

    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(target), reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) == 1:
            writer.add_tensor(tensor.name, values.astype(np.float32))
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(tensor.name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def full(arguments: argparse.Namespace) -> int:
    """The grid of the promise: 64 prompts of 1 to 1,500 tokens, 128 tokens each."""
    reports = []
    with tempfile.TemporaryDirectory() as scratch:
        smollm, gemma = by_name.fetch("smollm2-135m-instruct"), by_name.fetch("gemma-3-270m")
        q8_0 = make_q8_0(smollm, Path(scratch) / "smollm2-q8_0.gguf")
        models = [(smollm, "auto", 8), (q8_0, "auto", 8), (smollm, "bfloat16", 8), (smollm, "float32", 8), (gemma, "auto", 8)]
        models += [(smollm, "auto", 16), (q8_0, "auto", 16), (gemma, "auto", 16)]
        for model, dtype, activation_bits in models[arguments.first : arguments.last]:
            report = check_model(
                model,
                dtype,
                activation_bits,
                num_prompts=arguments.prompts,
                longest=arguments.longest,
                max_tokens=arguments.max_tokens,
                slice_of=arguments.slice,
                pairs=arguments.pairs,
            )
            print(json.dumps(report), flush=True)
            reports.append(report)
    total = {name: sum(report[name] for report in reports) for name in COUNTS}
    print(json.dumps(total))
    return 0 if min(total.values()) >= 20 else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", required=True)
    parser.add_argument("--first", type=int, default=0, help="index of the first model to check")
    parser.add_argument("--last", type=int, default=None, help="index after the last model to check")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--longest", type=int, default=1500)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--pairs", action="store_true", help="a covering array (each pair of values of any two axes) instead of all")
    parser.add_argument("--slice", type=int, default=0, help="so many random configurations instead of all")
    sys.exit(full(parser.parse_args()))
