"""llmi.simulate: closed forms, the engine's own schedule, and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import Costs, HookError, InvalidParamsError, OutOfMemoryError, UnsupportedCombinationError
from llmi.cli.commands import main
from llmi.models.inspection import inspect_model
from llmi.ranks.forecast import gathers, shares, spec_fields
from llmi.replicas.placing import Beginnings, choose
from llmi.simulation.fleet import Pool

ROOT = Path(__file__).resolve().parents[2]
COSTS = Costs.formula(0.01, 0.001, 1e-6)
MEMORY = {"kv_cache_memory_bytes": 1 << 22}


def one(length: int, output: int, at_ms: float = 0, **more: Any) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": length, "output_length": output, **more}


def test_one_request_takes_what_the_formula_says(tiny_path: Callable[..., Path]) -> None:
    """A prompt of 100 in steps of 40, then 4 decodes; K and V count after each step."""
    result = llmi.simulate([one(100, 5)], model=tiny_path(), costs=COSTS, max_num_batched_tokens=40, **MEMORY)
    rows, kv = [40, 40, 20, 1, 1, 1, 1], [40, 80, 100, 101, 102, 103, 104]
    assert result.steps["rows"].tolist() == rows and result.steps["kv_tokens"].tolist() == kv
    seconds = [0.01 + 0.001 * row + 1e-6 * tokens for row, tokens in zip(rows, kv, strict=True)]
    assert result.steps["seconds"].tolist() == pytest.approx(seconds)
    assert result.requests["first_token_s"][0] == pytest.approx(sum(seconds[:3]))
    assert result.requests["end_s"][0] == pytest.approx(sum(seconds))
    assert result.steps["start_s"].tolist() == pytest.approx([0, *np.cumsum(seconds)[:-1]])
    assert result.steps["decodes"].tolist() == [0, 0, 0, 1, 1, 1, 1] and result.steps["prompt_tokens"].sum() == 100


def test_outputs_of_one_prompt(tiny_path: Callable[..., Path]) -> None:
    """Three outputs fork behind the prompt, and draw their first tokens from its last row."""
    result = llmi.simulate([one(100, 4, n=3)], model=tiny_path(), costs=COSTS, **MEMORY)
    assert result.steps["rows"].tolist() == [100, 3, 3, 3] and result.steps["kv_tokens"].tolist() == [100, 303, 306, 309]
    assert result.requests["n"].tolist() == [3] and result.requests["output_tokens"].tolist() == [4]
    assert result.summary["output_tokens_per_s"] == pytest.approx(12 / result.summary["duration_s"])
    alone = llmi.simulate([one(100, 4)] * 3, model=tiny_path(), costs=COSTS, **MEMORY)
    assert result.steps["used_pages"].max() < alone.steps["used_pages"].max()


@pytest.mark.parametrize("acceptance, rows", [(1, [10, 4, 4]), (0, [10, 4, 4, 4, 4, 4, 3, 2, 1])])
def test_drafts(tiny_path: Callable[..., Path], acceptance: float, rows: list[int]) -> None:
    costs = Costs.of(
        {"base_s": 0.01, "row_s": 0.001, "draft_tokens": 3, "draft_acceptance": acceptance, "draft_s": 0.0001, "logits_s": 0.01}
    )
    result = llmi.simulate([one(10, 9)], model=tiny_path(), costs=costs, **MEMORY)
    assert result.steps["rows"].tolist() == rows
    logits = [1, *rows[1:]]
    drafted = [0, *(count - 1 for count in rows[1:])]
    seconds = [0.01 + 0.001 * row + 0.01 * wanted + 0.0001 * draft for row, wanted, draft in zip(rows, logits, drafted, strict=True)]
    assert result.steps["seconds"].tolist() == pytest.approx(seconds)


def test_tokens_that_drafts_bring(tiny_path: Callable[..., Path]) -> None:
    """The mean of a draft of k tokens, each accepted with a share of a: (1 - a^(k+1)) / (1 - a)."""
    costs = dataclasses.replace(COSTS, draft_tokens=4, draft_acceptance=0.7)
    result = llmi.simulate([one(5, 400) for _ in range(20)], model=tiny_path(), costs=costs, kv_cache_memory_bytes=1 << 24)
    steps = result.steps["decodes"].sum() / 5
    assert 20 * 399 / steps == pytest.approx((1 - 0.7**5) / 0.3, rel=0.03)


@pytest.mark.parametrize("degree", [2, 3])
def test_ranks(tiny_path: Callable[..., Path], degree: int) -> None:
    """Work is divided by the slowest rank's share, and a step has the gathers and calls of `llmi inspect --tp`, a second each here."""
    report = inspect_model(tiny_path())
    costs = dataclasses.replace(Costs.formula(1e-3, 1e-3), rank_link=(1.0, 1e18))
    result = llmi.simulate([one(300, 2)], model=tiny_path(), costs=costs, tensor_parallel_size=degree, **MEMORY)
    work = max(rank.read_bytes for rank in shares(report, degree)) / shares(report, 1)[0].read_bytes
    assert 1 / degree <= work < 1
    rounds = 1 if degree == 2 else 2  # of an exchange between so many
    for seconds, rows in zip(result.steps["seconds"], (300, 1), strict=True):
        count = gathers(spec_fields(report), report.config, rows, 1, degree)[0] + 4
        assert seconds == pytest.approx(count * rounds + work * (1e-3 + 1e-3 * rows))
    slow = llmi.simulate(
        [one(300, 2)], model=tiny_path(), costs=dataclasses.replace(costs, rank_link="shm"), tensor_parallel_size=degree, **MEMORY
    )
    assert (slow.steps["seconds"] > [0.301, 0.002]).all(), "one machine is shared"


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_waits_of_a_queue_with_one_server(tiny_path: Callable[..., Path], load: float) -> None:
    """M/D/1: the mean wait is load x service / (2 (1 - load)) (Pollaczek and Khinchine)."""
    draw, now, trace = random.Random(1), 0.0, []
    for _ in range(30_000):
        now += draw.expovariate(load / 0.01)
        trace.append(one(1, 1, now * 1e3))
    costs = Costs.formula(0.01, 0)
    result = llmi.simulate(trace, model=tiny_path(), costs=costs, max_num_seqs=1, max_num_batched_tokens=16, **MEMORY)
    waits = result.requests["first_token_s"] - result.requests["arrival_s"] - 0.01
    assert waits.mean() == pytest.approx(load * 0.01 / (2 * (1 - load)), rel=0.05)
    assert result.summary["is_stable"] and result.summary["ttft"]["p99"] is not None


def test_a_load_beyond_capacity_has_no_p99(tiny_path: Callable[..., Path]) -> None:
    trace = [one(1, 1, 8 * i) for i in range(1000)]
    result = llmi.simulate(trace, model=tiny_path(), costs=Costs.formula(0.01, 0), max_num_seqs=1, **MEMORY)
    assert not result.summary["is_stable"] and result.summary["ttft"]["p99"] is None and result.summary["ttft"]["p50"] > 0.1


@pytest.mark.parametrize("policy", ["fcfs", "prefill_first", "static", "shortest_remaining", "longest_prefix"])
def test_the_same_call_gives_the_same_bits(tiny_path: Callable[..., Path], policy: str) -> None:
    draw = random.Random(2)
    trace = [one(draw.randrange(1, 200), draw.randrange(1, 40), 5 * i) for i in range(60)]
    options: dict[str, Any] = {"model": tiny_path("gemma3"), "costs": COSTS, "policy": policy, "max_num_seqs": 8, "slo": {"ttft": 500}}
    first, second = (llmi.simulate(trace, kv_cache_memory_bytes=1 << 20, **options) for _ in range(2))
    for columns, others in ((first.requests, second.requests), (first.steps, second.steps)):
        assert all(np.array_equal(columns[name], others[name]) for name in columns)
    assert first.summary == second.summary and 0 < first.summary["goodput"] <= first.summary["requests_per_s"]
    assert (first.requests["end_s"] >= first.requests["first_token_s"]).all() and (first.requests["first_token_s"] > 0).all()
    assert (np.diff(first.steps["start_s"]) >= 0).all()
    ends = first.steps["start_s"] + first.steps["seconds"]
    assert (first.steps["start_s"][1:] >= ends[:-1] - 1e-12).all(), "one step at a time"


def test_policies_differ_as_they_should(tiny_path: Callable[..., Path]) -> None:
    """A static batch holds up who comes later; prefill first gives first tokens sooner and stalls decodes."""
    trace = [one(64, 100 if i % 4 == 0 else 10, 120 * i) for i in range(80)]
    found = {
        policy: llmi.simulate(trace, model=tiny_path(), costs=COSTS, policy=policy, max_num_seqs=8, **MEMORY).summary
        for policy in ("fcfs", "static", "prefill_first")
    }
    assert found["static"]["ttft"]["p50"] > 2 * found["fcfs"]["ttft"]["p50"]
    assert found["prefill_first"]["ttft"]["p90"] < found["fcfs"]["ttft"]["p90"]
    assert found["prefill_first"]["tpot"]["p90"] > found["fcfs"]["tpot"]["p90"]


def test_equal_hash_ids_are_found_in_the_prefix_cache(tiny_path: Callable[..., Path]) -> None:
    trace = [one(700, 2, 5000 * i, hash_ids=[7]) for i in range(4)] + [one(700, 2, 30_000, hash_ids=[8])]
    result = llmi.simulate(trace, model=tiny_path(), costs=COSTS, **MEMORY)
    assert result.requests["cached_tokens"].tolist() == [0, 512, 512, 512, 0]
    assert result.summary["hit_share"] == pytest.approx(3 * 512 / (5 * 699))


def test_replicas_share_a_load_and_keep_beginnings_together(tiny_path: Callable[..., Path]) -> None:
    trace = [one(600, 20, 30 * i, hash_ids=[i % 4]) for i in range(80)]
    alone = llmi.simulate(trace, model=tiny_path(), costs=COSTS, **MEMORY)
    four = llmi.simulate(trace, model=tiny_path(), costs=COSTS, replicas=4, **MEMORY)
    assert four.summary["e2el"]["p90"] < alone.summary["e2el"]["p90"]
    assert set(four.requests["replica"].tolist()) == {0, 1, 2, 3} == set(four.steps["replica"].tolist())
    assert (four.requests["cached_tokens"] > 0).mean() > 0.8


def test_a_place_is_the_servers_choice() -> None:
    """Few engines are looked at; the choice is that of `choose` among all."""
    draw = random.Random(4)
    chains = [[bytes([text, block]) for block in range(4)] for text in range(5)]
    for _ in range(300):
        pool = Pool.__new__(Pool)
        pool._known, pool._first = [Beginnings() for _ in range(6)], {}
        for place, known in enumerate(pool._known):
            for chain in draw.sample(chains, draw.randrange(3)):
                known.add(chain[: draw.randrange(1, 5)])
                pool._first.setdefault(chain[0], set()).add(place)
        loads = np.asarray([draw.randrange(12) for _ in range(6)])
        chain = draw.choice([[], *chains])
        assert pool.usual(chain, loads) == choose(zip(loads.tolist(), pool._known, strict=True), chain)


def test_the_pool_is_the_engines(tiny_path: Callable[..., Path]) -> None:
    """Preemption and full pools happen where they would."""
    trace = [one(100, 150) for _ in range(12)]
    tight = llmi.simulate(trace, model=tiny_path(), costs=COSTS, kv_cache_memory_bytes=1 << 19)
    roomy = llmi.simulate(trace, model=tiny_path(), costs=COSTS, kv_cache_memory_bytes=1 << 24)
    assert tight.summary["most_pool_share"] > 0.9 and tight.summary["duration_s"] > roomy.summary["duration_s"]
    assert roomy.summary["num_preemptions"] == 0


@pytest.mark.parametrize(
    "trace, words",
    [
        ([one(5, 5, 3), one(5, 5, 2)], r"trace\[1\]: timestamp .* does not go back"),
        ([one(5, 5, float("nan"))], r"trace\[0\]: timestamp"),
        ([one(0, 5)], "input_length"),
        ([one(5, 10**12)], "output_length"),
        ([{**one(5, 5), "color": 1}], "color"),
        ([one(5, 5, hash_ids=[1, 2])], "more than input_length"),
        ([{"timestamp": 0, "prompt": "x", "output_length": 1}], "prompt"),
        ([one(60_000, 5)], r"trace\[0\]: a request of .* pages"),
        (
            [one(600, 5, hash_ids=[1]), one(600, 5, hash_ids=[2, 1])],
            r"trace\[1\]: hash id 1 has 88 tokens behind 2, and 512 tokens at the start in trace\[0\]",
        ),
        ([one(600, 5, hash_ids=[1, 1])], r"trace\[0\]: hash id 1 has 88 tokens behind 1"),
        ([one(5, 5, n=0)], r"trace\[0\]: n must be"),
        ([one(5, 5, n=300)], r"trace\[0\]: n = 300 is outside \[1, max_num_seqs = 256\]"),
        ([one(600, 5, hash_ids=[1 << 63])], "whole numbers of 64 bits"),
        ([], "no request"),
        (5, "a file or a list"),
    ],
)
def test_traces_that_are_refused(tiny_path: Callable[..., Path], trace: Any, words: str) -> None:
    with pytest.raises(InvalidParamsError, match=words):
        llmi.simulate(trace, model=tiny_path(), costs=COSTS, **MEMORY)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"replicas": 0}, "replicas"),
        ({"policy": "nope"}, "policy is one of fcfs, .*, mooncake, or a file"),
        ({"policy": "distserve", "replicas": 2}, "give prefill_replicas"),
        ({"slo": {"ttft": 10}}, "ttft = 10 ms cannot be kept: a step of one row takes 11 ms"),
        ({"costs": {"base_s": 1, "row_s": 1, "link_bytes_s": 0}}, "link_bytes_s"),
        ({"slo": {"ttfb": 1}}, "slo"),
        ({"slo": {"ttft": -1}}, "slo"),
        ({"kv_cache_memory_bytes": None}, "how large the pool is"),
        ({"kv_cache_memory_bytes": 10}, "at least one page"),
        ({"costs": {"base_s": -1, "row_s": 1}}, "base_s"),
        ({"costs": {"base_s": 0, "row_s": 0}}, "above 0"),
        ({"costs": {"points": []}}, "holds base_s"),
        ({"costs": 5}, "costs"),
        ({"prefill_replicas": 1}, "prefill_replicas = 1 of replicas = 1 leaves none"),
        ({"prefill_replicas": 1, "replicas": 2}, "link_bytes_s"),
        ({"tensor_parallel_size": 2}, "the costs say what carries gathers: rank_link"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size"),
        ({"tensor_parallel_size": 200, "costs": {"base_s": 1, "row_s": 1, "rank_link": "shm"}}, "tensor_parallel_size"),
        ({"pipeline_parallel_size": 2}, "steps in several stages are not simulated"),
        ({"costs": {"base_s": 1, "row_s": 1, "rank_link": "wifi"}}, "rank_link is one of shm, .*, not 'wifi'"),
        ({"costs": {"base_s": 1, "row_s": 1, "rank_link": [0, 5]}}, "rank_link: 0 are no seconds"),
        ({"costs": {"base_s": 1, "row_s": 1, "draft_tokens": -1}}, "draft_tokens"),
        ({"costs": {"base_s": 1, "row_s": 1, "draft_acceptance": 1.5}}, "draft_acceptance"),
        ({"costs": {"base_s": 1, "row_s": 1, "draft_s": float("nan")}}, "draft_s: nan are no seconds"),
        ({"costs": "/no/such/file"}, "cannot be read"),
        ({"costs": {"base_s": 1e300, "row_s": 0}}, "base_s: 1e\\+300 are no seconds"),
    ],
)
def test_arguments_that_are_refused(tiny_path: Callable[..., Path], options: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidParamsError, UnsupportedCombinationError, OutOfMemoryError), match=words):
        llmi.simulate([one(5, 5)], **{"model": tiny_path(), "costs": COSTS, **MEMORY, **options})


def test_lines_that_are_refused(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    """Of a file they are named by their number, blank lines included."""
    trace = tmp_path / "trace.jsonl"
    for line, words in ((json.dumps(one(60_000, 5)), "jsonl:3: a request of .* pages"), ("[" * 100_000, "jsonl:3 is not JSON")):
        trace.write_text(f"{json.dumps(one(5, 5))}\n\n{line}\n")
        with pytest.raises(InvalidParamsError, match=words):
            llmi.simulate(trace, model=tiny_path(), costs=COSTS, **MEMORY)


def test_a_policy_that_raises_is_named_with_its_request(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def key(request, now_s):\n    return (1 / (request.num_prompt_tokens - 7),)\n")
    trace = [one(length, 3) for length in (5, 6, 7)]
    with pytest.raises(HookError, match=r"mine.py: key raised ZeroDivisionError for request 2: division by zero"):
        llmi.simulate(trace, model=tiny_path(), policy=file, costs=COSTS, replicas=1, max_num_seqs=1, **MEMORY)


def test_published_costs(tiny_path: Callable[..., Path]) -> None:
    """They are those that `benchmarks/published.py` fits, and miss the table's numbers little."""
    with (ROOT / "benchmarks/published/llama2_70b.csv").open() as file:
        rows = [{name: value if name == "gpu" else float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    missed = []
    for row in rows:
        costs = Costs.of(f"llama2-70b-{row['gpu']}-tp{row['gpus']:.0f}")
        if row["gpus"] == 2 and row["sequences"] == 64:
            continue
        tokens = row["sequences"] * (row["prompt_tokens"] + row["output_tokens"] // 2)
        missed.append(abs(costs.seconds(int(row["sequences"]), int(tokens)) / row["token_s"] - 1))
        prompt = int(row["prompt_tokens"] * row["sequences"])
        if row["output_tokens"] == 128:
            missed.append(abs(costs.seconds(prompt, prompt) / row["prompt_s"] - 1))
    assert len(missed) > 180 and np.median(missed) < 0.02 and np.percentile(missed, 95) < 0.12
    result = llmi.simulate([one(500, 20)], model=tiny_path(), costs="llama2-70b-h100-tp8", **MEMORY)
    assert 0.5 < result.summary["duration_s"] < 0.8


def test_measured_costs_and_the_command(tiny_path: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs, trace, rows = tmp_path / "costs.json", tmp_path / "trace.jsonl", tmp_path / "rows.csv"
    assert main(["bench", "-m", str(tiny_path()), "--costs", str(costs)]) == 0
    assert Costs.load(costs).points[0][0] == 1 and "kv:f16" in Costs.load(costs).note
    trace.write_text("".join(json.dumps(one(30, 5, 10 * i)) + "\n" for i in range(6)))
    arguments = ["simulate", str(trace), "-m", str(tiny_path() / "config.json"), "--costs", str(costs)]
    arguments += ["--kv-cache-memory-bytes", "4000000", "--goodput", "ttft:1000", "--output", str(rows)]
    capsys.readouterr()
    assert main(arguments) == 0
    assert "is_stable" in capsys.readouterr().out and len(rows.read_text().splitlines()) == 7
    assert llmi.simulate(trace, model=tiny_path(), **MEMORY).summary["num_requests"] == 6, "measured here"
