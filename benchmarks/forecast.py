"""What `llmi.simulate` forecasts beside what the engine takes: three traces, four policies, on this machine, which should be quiet.

    python benchmarks/forecast.py [--model M] [--requests 60] [--load 0.7] [--output FILE]

Costs are measured once, then each trace runs on the engine (requests sent at their times, outputs read as they grow) and in the simulator.
Errors are of times to the first token, per token and to the end, at p50 and p90.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with LLM(arguments.model, kv_cache_memory_bytes=MEMORY) as llm:
        costs = measure_costs(llm)
    rows = []
    errors: dict[tuple[str, int], list[float]] = {}
    for name, lines in traces(arguments.requests, arguments.load, costs).items():
        for policy in POLICIES:
            simulated = llmi.simulate(lines, model=arguments.model, policy=policy, costs=costs, kv_cache_memory_bytes=MEMORY).summary
            with LLM(arguments.model, kv_cache_memory_bytes=MEMORY, scheduling_policy=policy) as llm:
                llm.cost_curve()  # before the clock runs
                measured = asyncio.run(measure(llm, traced_requests(lines, 0), llm.model_info.vocab_size))
            for kind in MEASURES:
                for percent in PERCENTILES:
                    seen, forecast = float(np.percentile(measured[kind], percent)), simulated[kind][f"p{percent}"]
                    error = forecast / seen - 1
                    errors.setdefault((kind, percent), []).append(abs(error))
                    rows.append({"trace": name, "policy": policy, "of": f"{kind} p{percent}", "seen_s": seen, "forecast_s": forecast})
                    print(
                        f"{name:10} {policy:20} {kind} p{percent}: {seen * 1e3:9.1f} ms seen, {forecast * 1e3:9.1f} forecast, {error:+.0%}"
                    )
    for (kind, percent), found in errors.items():
        print(f"{kind} p{percent}: median error {np.median(found):.0%}, largest {max(found):.0%}")
    if arguments.output is not None:
        arguments.output.write_text(json.dumps({"costs": costs.points, "kv_s": costs.kv_s, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
