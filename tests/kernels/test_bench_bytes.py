"""Bytes that attention moves and that fused ops spare: against sums over single accesses, and against published shapes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from llmi.cli.bench_bytes import TASK_QUERIES, attention_bytes, fused_bytes

ROOT = Path(__file__).parents[2]


def config(**fields: Any) -> Any:
    return {
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 64,
        "padded_head_dim": 64,
        "hidden_size": 256,
        "windows": [0, 0],
        "mlp_sizes": [512, 512],
        "mlp_gated": [True, True],
        **fields,
    }


@pytest.mark.parametrize("windows", [[0, 0], [5, 0]])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (48, 1)])
@pytest.mark.parametrize("num_tokens", [1, 6, 50])
def test_attention_access_by_access(heads: int, kv_heads: int, num_tokens: int, windows: list[int]) -> None:
    made = attention_bytes(config(num_heads=heads, num_kv_heads=kv_heads, windows=windows), num_tokens, "float16")
    row = 64 * 4  # a query or an output, fp32
    naive = tiled = 0
    for window in windows:
        for _ in range(heads):
            naive += 2 * num_tokens * row + 4 * num_tokens * num_tokens * 4  # scores and their softmax, each written and read
            tiled += 2 * num_tokens * row
        naive += kv_heads * num_tokens * 2 * 64 * 2
        group = heads // kv_heads
        per_task = min(group, TASK_QUERIES)
        rows = max(1, TASK_QUERIES // per_task)
        for _ in range(kv_heads * -(-group // per_task)):
            for begin in range(0, num_tokens, rows):
                queries = range(begin, min(begin + rows, num_tokens))
                seen = {key for query in queries for key in range(max(0, query - window + 1) if window else 0, query + 1)}
                tiled += len(seen) * 2 * 64 * 2
    assert made == {"naive": naive, "tiled": tiled}


def test_tasks_have_the_kernels_size() -> None:
    header = (ROOT / "csrc/kernels/ops/attention.h").read_text(encoding="utf-8")
    assert int(re.findall(r"kMaxTaskQueries = (\d+);", header)[0]) == TASK_QUERIES


def test_fused_ops() -> None:
    eight, sixteen, floats = (fused_bytes(config(), count) for count in (1, 2, 0))
    assert eight["Q, K and V in one product"] == 2 * 2 * 256 and sixteen["Q, K and V in one product"] == 2 * 2 * 256 * 2
    assert eight["gate, up and activation"] == 2 * (2 * 2 * 512 * 4) and eight["product and residual"] == 2 * 2 * 2 * 256 * 4
    assert eight["norm and quantise"] == 2 * 2 * 256 * 4 and "norm and quantise" not in floats and "activation and quantise" not in floats
    assert "gate, up and activation" not in fused_bytes(config(mlp_gated=[False, False]), 1)
