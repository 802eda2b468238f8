"""What `llmi.simulate` forecasts beside what the engine takes: three traces, four policies, on this machine, which should be quiet.

    python benchmarks/forecast.py [--model M] [--requests 60] [--load 0.7] [--rounds 1] [--threads N] [--within] [--output FILE]

Costs are measured once, then each trace runs on the engine (requests sent at their times, outputs read as they grow) and in the simulator.
Errors are of times to the first token, per token and to the end, at p50 and p90. The best policy of a trace is the one with the least p90 of
a time, or the most requests a second that keep the bounds. Each line says how many cores other programs took; of several rounds that counts
in which they took least.

--within: costs are the mean times of the run's own steps, by their rows, so that what other programs took counts on both sides. What is
forecast is then the schedule alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from others import Others

import llmi
from llmi import LLM, AsyncLLM
from llmi.simulation.costs import measure_costs
from llmi.simulation.trace import TracedRequest, traced_requests

POLICIES = ("fcfs", "shortest_remaining", "prefill_first", "static")
MEASURES = ("ttft", "tpot", "e2el")
PERCENTILES = (50, 90)
MEMORY = 200_000_000


def traces(count: int, load: float, costs: llmi.Costs) -> dict[str, list[dict[str, Any]]]:
    """Short chats, long prompts, and prompts that share their beginnings, at this share of what one sequence after another would take."""
    shapes = {"chats": (64, 256, 16, 96), "documents": (256, 900, 8, 32), "shared": (600, 700, 8, 48)}
    made = {}
    row = costs.points[-1][1] / costs.points[-1][0]
    step = costs.points[0][1]
    for name, (least, most, few, many) in shapes.items():
        draw = random.Random(name)
        now, lines = 0.0, []
        for index in range(count):
            length, output = draw.randrange(least, most), draw.randrange(few, many)
            lines.append({"timestamp": now * 1e3, "input_length": length, "output_length": output})
            if name == "shared":
                lines[-1]["hash_ids"] = [index % 4]
            mean = (length if name != "shared" else length - 512) * row + output * step / 3
            now += draw.expovariate(load / mean)
        made[name] = lines
    return made


async def measure(llm: LLM, requests: list[TracedRequest], vocab_size: int) -> dict[str, np.ndarray[Any, Any]]:
    """Seconds of each request on the engine, from the time at which it was meant to come."""
    engine = AsyncLLM(llm=llm)
    start = time.perf_counter() + 0.2
    found: list[tuple[float, float, int]] = [(0.0, 0.0, 0)] * len(requests)

    async def one(index: int, request: TracedRequest) -> None:
        due = start + request.arrival_s
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        ids = (request.tokens % vocab_size).tolist()
        params = llmi.SamplingParams(max_tokens=request.num_output, temperature=0, ignore_eos=True, detokenize=False)
        first = last = 0.0
        async for _ in engine.generate(ids, params):
            last = time.perf_counter()
            first = first or last
        found[index] = (first - due, last - due, request.num_output)

    await asyncio.gather(*(one(index, request) for index, request in enumerate(requests)))
    first, end, outputs = (np.asarray(column, dtype=float) for column in zip(*found, strict=True))
    several = outputs > 1
    return {"ttft": first, "e2el": end, "tpot": (end - first)[several] / (outputs - 1)[several]}


def kept(values: dict[str, Any], bounds: dict[str, float]) -> float:
    """The share of requests that keep all bounds (seconds). A request of one token has no time per token, so requests have several here."""
    return float(np.mean(np.all([values[name] <= bound for name, bound in bounds.items()], axis=0)))


def forecast_of(lines: list[dict[str, Any]], given: argparse.Namespace, policy: str, costs: llmi.Costs) -> dict[str, np.ndarray[Any, Any]]:
    """Seconds of each request, simulated."""
    requests = llmi.simulate(lines, model=given.model, policy=policy, costs=costs, kv_cache_memory_bytes=MEMORY).requests
    first, end = (requests[name] - requests["arrival_s"] for name in ("first_token_s", "end_s"))
    return {"ttft": first, "e2el": end, "tpot": (end - first) / (requests["output_tokens"] - 1)}


def costs_of(path: Path) -> llmi.Costs:
    """The mean seconds of recorded steps, by the powers of two of their rows."""
    groups: dict[int, list[tuple[int, float]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        step = json.loads(line)
        if "step" in step and step["rows"] > 0:
            groups.setdefault(step["rows"].bit_length(), []).append((step["rows"], step["seconds"]))
    points, last = [], 0.0
    for _, group in sorted(groups.items()):
        rows, seconds = np.mean(group, axis=0)
        last = max(last, float(seconds))
        points.append((max(1, round(rows)), last))
    return llmi.Costs(tuple(points))


def seen_of(
    lines: list[dict[str, Any]], given: argparse.Namespace, policy: str
) -> tuple[dict[str, np.ndarray[Any, Any]], float, llmi.Costs | None]:
    """The same on the engine, the cores of others, and the costs of its own steps."""
    rounds = []
    options = {"kv_cache_memory_bytes": MEMORY, "num_threads": given.threads}
    for _ in range(given.rounds):
        with LLM(given.model, scheduling_policy=policy, **options) as llm:
            llm.cost_curve()  # before the clock runs
            with tempfile.TemporaryDirectory() as folder, Others() as others:
                steps = Path(folder) / "steps.jsonl"
                with llm.record_steps(steps) if given.within else contextlib.nullcontext():
                    values = asyncio.run(measure(llm, traced_requests(lines, 0), llm.model_info.vocab_size))
                costs = costs_of(steps) if given.within else None
        rounds.append((values, others.cores, costs))
    return min(rounds, key=lambda one: one[1])


def best(found: dict[str, dict[str, float]], name: str) -> str:
    """The policy with the least value, or with most requests that keep the bounds."""
    return (max if name == "goodput" else min)(found, key=lambda policy: found[policy][name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--within", action="store_true", help="costs are those of each run's own steps")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with LLM(given.model, kv_cache_memory_bytes=MEMORY, num_threads=given.threads) as llm:
        costs = measure_costs(llm)
    rows: list[dict[str, Any]] = []
    errors: dict[tuple[str, int], list[float]] = {}
    named = []
    print("| trace, policy | cores of others | TTFT p50, p90, ms: seen; forecast | TPOT p50, p90 | E2E p50, p90 |")
    print("| --- | --- | --- | --- | --- |")
    for name, lines in traces(given.requests, given.load, costs).items():
        seen: dict[str, dict[str, float]] = {}
        simulated: dict[str, dict[str, float]] = {}
        bounds = {"ttft": 2 * costs.seconds(max(line["input_length"] for line in lines)), "tpot": 3 * costs.seconds(1)}
        for policy in POLICIES:
            measured, others, own = seen_of(lines, given, policy)
            forecast = forecast_of(lines, given, policy, own or costs)
            cells = [f"{name}, {policy}", f"{others:.1f}"]
            seen[policy], simulated[policy] = {"goodput": kept(measured, bounds)}, {"goodput": kept(forecast, bounds)}
            for kind in MEASURES:
                pairs = [
                    (float(np.percentile(values[kind], percent)) * 1e3, percent)
                    for values in (measured, forecast)
                    for percent in PERCENTILES
                ]
                cells.append("; ".join(", ".join(f"{ms:,.0f}" for ms, _ in part) for part in (pairs[:2], pairs[2:])))
                for (real, percent), (guess, _) in zip(pairs[:2], pairs[2:], strict=True):
                    errors.setdefault((kind, percent), []).append(abs(guess / real - 1))
                    rows.append(
                        {
                            "trace": name,
                            "policy": policy,
                            "of": f"{kind} p{percent}",
                            "seen_ms": real,
                            "forecast_ms": guess,
                            "others": others,
                        }
                    )
                seen[policy][kind], simulated[policy][kind] = pairs[1][0], pairs[3][0]
            print("| " + " | ".join(cells) + " |", flush=True)
        for kind in (*MEASURES, "goodput"):
            guess, real = best(simulated, kind), best(seen, kind)
            near = abs(seen[guess][kind] - seen[real][kind]) <= 0.05 * abs(seen[real][kind])
            named.append({"trace": name, "of": kind, "forecast": guess, "seen": real, "within_5_percent": near})
    print()
    for (kind, percent), found in errors.items():
        print(f"{kind} p{percent}: error {np.median(found):.0%} (median of {len(found)}), largest {max(found):.0%}")
    equal = sum(bool(entry["forecast"] == entry["seen"]) for entry in named)
    nearly = sum(bool(entry["within_5_percent"]) for entry in named)
    print(f"best policy named: {equal} of {len(named)}; {nearly} where 5 percent count as equal")
    if given.output is not None:
        result = {"load_average": os.getloadavg(), "costs": costs.points, "kv_s": costs.kv_s, "rows": rows, "named": named}
        given.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
