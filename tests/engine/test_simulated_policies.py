"""The policies of published systems in the simulator: closed forms of pools and transfers, and the orderings that their papers report."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import Costs
from llmi.models.inspection import inspect_model
from llmi.simulation.policies import NAMED
from llmi.simulation.result import SimulationResult

BASE, ROW = 0.01, 0.0002
COSTS = Costs.formula(BASE, ROW, link_bytes_s=1e6)
POOLS = [name for name, policy in NAMED.items() if policy.has_pools]


def one(length: int, output: int, at_ms: float = 0, **more: Any) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": length, "output_length": output, **more}


def run(path: Path, trace: list[dict[str, Any]], policy: str, **options: Any) -> SimulationResult:
    pools = {"replicas": 2, "prefill_replicas": 1} if NAMED[policy].has_pools else {}
    return llmi.simulate(trace, model=path, policy=policy, **{"costs": COSTS, "kv_cache_memory_bytes": 1 << 24, **pools, **options})


@pytest.mark.parametrize("policy", ["llmi", "distserve"])
def test_a_prompt_that_another_engine_computes(tiny_path: Callable[..., Path], policy: str) -> None:
    """Its steps, the transfer of its whole blocks, then a step of the rest and one for each further token."""
    path = tiny_path()
    result = run(path, [one(300, 4)], policy, replicas=2, prefill_replicas=1, max_num_batched_tokens=1000)
    blocks = 299 // 16  # K and V of 3 layers of 2 heads of 16 numbers, 2 bytes each
    spec = inspect_model(path).spec
    assert spec is not None
    num_bytes = blocks * 16 * len(spec.layers) * 2 * spec.num_kv_heads * spec.head_dim * 2
    assert result.requests["transferred_bytes"].tolist() == [num_bytes] and result.summary["transferred_bytes"] == num_bytes
    computed, rest = BASE + 300 * ROW, 300 - blocks * 16
    handed = computed + num_bytes / 1e6
    first = computed if policy == "distserve" else handed + BASE + rest * ROW
    assert result.requests["first_token_s"][0] == pytest.approx(first)
    assert result.requests["end_s"][0] == pytest.approx(handed + BASE + rest * ROW + 3 * (BASE + ROW))
    assert result.steps["rows"].tolist() == [300, rest, 1, 1, 1] and result.steps["replica"].tolist() == [0, 1, 1, 1, 1]
    assert (result.requests["replica"][0], result.requests["prefill_replica"][0]) == (1, 0)


def test_prompts_share_a_link(tiny_path: Callable[..., Path]) -> None:
    """Two prompts of one step are handed over one after the other."""
    costs = Costs.formula(BASE, ROW, link_bytes_s=1e5)
    result = run(tiny_path(), [one(320, 1), one(320, 1)], "llmi", replicas=2, prefill_replicas=1, costs=costs)
    seconds = result.requests["transferred_bytes"][0] / 1e5
    first, second = sorted(result.requests["end_s"])
    assert second - first == pytest.approx(seconds, rel=0.01) and first > seconds


def test_short_prompts_stay_where_they_are_answered(tiny_path: Callable[..., Path]) -> None:
    result = run(tiny_path(), [one(255, 2), one(256, 2)], "llmi", replicas=3, prefill_replicas=1)
    assert result.requests["prefill_replica"].tolist() == [-1, 0] and result.requests["transferred_bytes"][0] == 0


def test_a_transfer_beside_the_prompt_takes_less(tiny_path: Callable[..., Path]) -> None:
    trace = [one(400, 20, 400 * i) for i in range(40)]
    behind, beside = (run(tiny_path(), trace, policy).requests["end_s"] for policy in ("distserve", "splitwise"))
    assert (beside <= behind + 1e-9).all() and beside.mean() < behind.mean() - 0.01


@pytest.mark.parametrize("policy", list(NAMED))
def test_each_policy_ends_every_request(tiny_path: Callable[..., Path], policy: str) -> None:
    draw = random.Random(3)
    trace = [one(draw.randrange(1, 900), draw.randrange(1, 30), 60 * i) for i in range(40)]
    first, second = (run(tiny_path(), trace, policy, replicas=3, prefill_replicas=int(policy in POOLS)) for _ in range(2))
    assert all(np.array_equal(first.requests[name], second.requests[name]) for name in first.requests)
    requests = first.requests
    assert (requests["end_s"] >= requests["first_token_s"]).all() and (requests["first_token_s"] > requests["arrival_s"]).all()
    rows = first.steps["decodes"].sum() + first.steps["prompt_tokens"].sum()
    assert rows == first.steps["rows"].sum()
    for replica in range(3):
        mine = first.steps["replica"] == replica
        starts, ends = first.steps["start_s"][mine], (first.steps["start_s"] + first.steps["seconds"])[mine]
        assert (starts[1:] >= ends[:-1] - 1e-9).all(), "one step at a time"


def test_orderings_of_the_papers(tiny_path: Callable[..., Path]) -> None:
    """Prompts first: sooner first tokens, and gaps in others' decodes, which budgets and pools of their own avoid."""
    draw, now, trace = random.Random(5), 0.0, []
    for _ in range(200):
        now += draw.expovariate(1 / 160)
        trace.append(one(draw.choice([50, 200, 1500]), draw.randrange(10, 60), now))
    found = {policy: run(tiny_path(), trace, policy, costs=Costs.formula(BASE, ROW, link_bytes_s=1e9)).summary for policy in NAMED}
    assert found["static"]["ttft"]["p50"] > 2 * found["orca"]["ttft"]["p50"], "Orca: batches that wait for their longest"
    assert found["vllm"]["ttft"]["p50"] < found["sarathi"]["ttft"]["p50"], "Sarathi-Serve: chunks cost first tokens"
    assert found["vllm"]["tpot"]["p90"] > 1.2 * found["sarathi"]["tpot"]["p90"], "and spare decodes"
    assert found["orca"]["tpot"]["p90"] > found["splitfuse"]["tpot"]["p90"] * 0.99
    for pools in POOLS:
        assert found[pools]["tpot"]["p90"] < found["llmi"]["tpot"]["p90"], "DistServe: decodes that no prompt holds up"


def test_overload_is_turned_away_early(tiny_path: Callable[..., Path]) -> None:
    trace = [one(800, 5, 20 * i) for i in range(100)]
    result = run(tiny_path(), trace, "mooncake", slo={"ttft": 1000})
    away = result.requests["replica"] < 0
    assert 20 < away.sum() == result.summary["num_turned_away"] and np.isnan(result.requests["end_s"][away]).all()
    waits = (result.requests["first_token_s"] - result.requests["arrival_s"])[~away]
    late = 2 * (BASE + 2048 * ROW)  # a prompt ends with its step, and begins with the next one
    assert waits.max() < 1 + late and run(tiny_path(), trace, "mooncake").summary["num_turned_away"] == 0


def test_hits_decide_where(tiny_path: Callable[..., Path]) -> None:
    trace = [one(600, 4, 1000 * i, hash_ids=[i % 2]) for i in range(20)]
    requests = run(tiny_path(), trace, "mooncake", replicas=3, prefill_replicas=2).requests
    assert (requests["cached_tokens"][2:] == 512).all()
    assert {(hash_id, int(place)) for hash_id, place in zip([0, 1] * 10, requests["prefill_replica"], strict=True)} == {(0, 0), (1, 0)}
