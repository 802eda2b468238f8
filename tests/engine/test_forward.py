"""One forward pass: chunks, trees and taps give the bits of plain decoding; digests of logits are met."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from decoders import numbers_of, open_decoder
from features import DEVICES, WHOLE_GRIDS, has_bits_of_its_own
from llmi import _core

T = _core.testing
DIGESTS = Path(__file__).parents[1] / "data" / "logits_digests.json"


def ids(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    result: list[int] = np.random.default_rng(seed).integers(1, vocab_size, count).tolist()
    return result


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_chunks_equal_whole(tiny_path: Callable[..., Path], table: str, architecture: str, dtype: str) -> None:
    decoder = open_decoder(tiny_path(architecture), dtype=dtype, table=table)
    tokens = ids(150, 257)
    whole, _ = decoder.forward([(decoder.new_sequence(), tokens, None)])
    sequence, rows = decoder.new_sequence(), []
    for begin, end in ((0, 1), (1, 8), (8, 63), (63, 64), (64, 130), (130, 150)):
        rows.append(decoder.forward([(sequence, tokens[begin:end], None)])[0])
    assert_same_bits(np.concatenate(rows), whole)
    assert decoder.audit() == ""


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("base", [1, 15, 40, 255])
def test_tree_rows_equal_decoding(tiny_path: Callable[..., Path], cpu_table: str, architecture: str, base: int) -> None:
    decoder = open_decoder(tiny_path(architecture), dtype="float32", table=cpu_table)
    prompt = ids(base, 257, 1)
    parents = [-1, 0, 0, 1, 1, 2, -1, 6, 3, 8]
    nodes = ids(len(parents), 257, 2)
    sequence, other = decoder.new_sequence(), decoder.new_sequence()
    decoder.forward([(sequence, prompt, None)])
    decoder.forward([(other, prompt[:3], None)])
    tree, _ = decoder.forward([(other, [5], None), (sequence, nodes, parents)])
    for node in range(len(parents)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        plain = decoder.new_sequence()
        decoder.forward([(plain, prompt, None)])
        for step in path:
            row, _ = decoder.forward([(plain, [nodes[step]], None)])
        assert_same_bits(row[0], tree[1 + node])
        decoder.free(plain)
    # The dropped tree leaves nothing behind.
    after, _ = decoder.forward([(sequence, [nodes[0], nodes[2]], None)])
    assert_same_bits(after[1], tree[1 + 2])
    assert decoder.audit() == ""


def test_rollback_and_window(tiny_path: Callable[..., Path]) -> None:
    decoder = open_decoder(tiny_path("gemma3"), dtype="float32")
    tokens = ids(200, 257)
    sequence = decoder.new_sequence()
    whole, _ = decoder.forward([(sequence, tokens, None)])
    assert decoder.num_window_blocks_returned > 0
    assert decoder.rollback(sequence, 3)
    again, _ = decoder.forward([(sequence, tokens[-3:], None)])
    assert_same_bits(again, whole[-3:])
    assert not decoder.rollback(sequence, 150), "the window's blocks are gone: it must be computed again"


def test_taps(tiny_path: Callable[..., Path]) -> None:
    decoder = open_decoder(tiny_path(), dtype="float32")
    logits, taps = decoder.forward([(decoder.new_sequence(), ids(5, 257), None)], tap_layers=[0, 2, 3])
    assert [tap.shape for tap in taps] == [(5, 64)] * 3 and logits.shape == (5, 257)
    assert np.abs(taps[0] - taps[1]).max() > 0.01


def test_float32_cache(tiny_path: Callable[..., Path], table: str) -> None:
    tokens = ids(40, 257)
    results = {}
    for kv in ("float16", "float32"):
        decoder = open_decoder(tiny_path(), dtype="float32", kv_dtype=kv, table=table)
        results[kv] = decoder.forward([(decoder.new_sequence(), tokens, None)])[0]
    assert 0 < np.abs(results["float16"] - results["float32"]).max() < 0.05


def logits_of(path: Path, dtype: str, kv: str, table: str, count: int, bits: int = 8) -> np.ndarray[Any, Any]:
    if dtype == "bf16dot":  # linear_dtype="bf16"
        dtype, table = "bfloat16", table + "+bf16"
    decoder = open_decoder(path, dtype=dtype, kv_dtype=kv, table=table, num_pages=64, activation_bits=bits)
    vocab_size = numbers_of(path)["vocab_size"]
    logits, _ = decoder.forward([(decoder.new_sequence(), ids(count, vocab_size), None)])
    return np.asarray(logits)


def digest(path: Path, dtype: str, kv: str, table: str, count: int, bits: int) -> str:
    return hashlib.sha256(logits_of(path, dtype, kv, table, count, bits).tobytes()).hexdigest()


CONFIGURATIONS = [
    (model, dtype, kv, bits)
    for model in ("smollm2-135m-instruct", "gemma-3-270m")
    for dtype, kv, bits in (
        ("auto", "float16", 8),
        ("float32", "float32", 8),
        ("bfloat16", "float16", 8),
        ("auto", "bfloat16", 8),
        ("auto", "float16", 16),
    )
] + [("smollm2-135m-instruct", "bf16dot", "float16", 8)]


def digest_cases() -> list[Any]:
    """Each configuration on each table, or without LLMI_WHOLE_GRIDS=1 the larger model's on the best one, and one of them on the others. The
    reference table and the emulated device take seconds for some tokens: the short run has them with the small model. The emulated device
    has one type of weights: the cases of test_ops.py cover the others on it."""
    cases = []
    tables = _core.system_info()["tables"]
    for (model, dtype, kv, bits), table in itertools.product(CONFIGURATIONS, [*tables, *DEVICES]):
        small, first = model.startswith("smollm"), (dtype, kv, bits) == ("auto", "float16", 8)
        if table == "emulated" and (dtype != "auto" or (bits == 16 and not small)):
            continue
        if table in tables[:-1] and not (small or first or WHOLE_GRIDS):
            continue
        short = {"reference": small or first, "emulated": small and kv == "float16"}.get(table, True)
        cases.append(pytest.param(model, dtype, kv, bits, table, marks=[] if short else [pytest.mark.slow]))
    return cases


@pytest.mark.parametrize(("model", "dtype", "kv", "bits", "table"), digest_cases())
def test_digests_of_logits(model: str, dtype: str, kv: str, bits: int, table: str, smollm_path: Path, gemma_path: Path) -> None:
    """The same bits on every machine and table: one host cannot run them all, so the digests are committed.

    40 tokens; the reference table and the emulated CUDA kernels compute 5, whose digest stands apart. LLMI_WRITE_DIGESTS=1
    writes the file anew, which is a change of the numerics version.
    """
    import os

    path = smollm_path if model.startswith("smollm") else gemma_path
    if has_bits_of_its_own(table, kv):  # near the CPU's
        laws = [np.exp(x - np.logaddexp.reduce(x, -1, keepdims=True)) for x in (logits_of(path, dtype, kv, t, 40) for t in ("", table))]
        assert np.sum(laws[0] * np.log(laws[0] / laws[1]), -1).mean() < 1e-3
        return
    count = 5 if table in ("reference", "emulated") else 40
    name = f"{model} {dtype} {kv}" + (" a16" if bits == 16 else "")
    key = f"{name} {count}"
    value = digest(path, dtype, kv, table, count, bits)
    known: dict[str, Any] = json.loads(DIGESTS.read_text()) if DIGESTS.is_file() else {}
    if os.environ.get("LLMI_WRITE_DIGESTS") == "1":
        known[key] = value
        DIGESTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    assert known[key] == value
    if count > 5:
        assert known[f"{name} 5"] == digest(path, dtype, kv, table, 5, bits)
