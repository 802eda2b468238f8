"""Many simulated engines: `python benchmarks/fleet.py [--replicas 1250] [--minutes 10] [--rate 1] [--policy orca] [--output FILE]`.

The Azure slice of benchmarks/traces, one after another and so much faster that each replica gets `rate` requests a second, on the engines of
benchmarks/policies.py. Says how long the simulation took, and the most memory that its process had.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from policies import CONFIG, COSTS, POOL_BYTES, load

import llmi


def scaled(lines: list[dict[str, Any]], count: int, seconds: float) -> Iterator[dict[str, Any]]:
    """So many requests within these seconds: the lines again and again."""
    span = lines[-1]["timestamp"] * (1 + 1 / len(lines))
    speed = span * count / len(lines) / (seconds * 1e3)
    for number in range(count):
        entry = lines[number % len(lines)]
        yield {**entry, "timestamp": (number // len(lines) * span + entry["timestamp"]) / speed}


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1250)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=1, help="requests a second of each replica")
    parser.add_argument("--policy", default="orca", help="one that shares no beginnings: those take memory for each engine")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    lines = load("azure_2023_conversation", 1)
    seconds = given.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "config.json"
        model.write_text(json.dumps(CONFIG), encoding="utf-8")
        wall, cpu = time.perf_counter(), time.process_time()
        trace = scaled(lines, int(given.replicas * given.rate * seconds), seconds)
        options: dict[str, Any] = {"costs": COSTS, "kv_cache_memory_bytes": POOL_BYTES, "policy": given.policy}
        result = llmi.simulate(trace, model=model, replicas=given.replicas, **options)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    decodes = int(result.steps["decodes"].sum())
    found = {
        **{name: getattr(given, name) for name in ("policy", "replicas", "minutes", "rate")},
        "num_requests": len(result.requests["n"]),
        "num_steps": len(result.steps["rows"]),
        "sequence_steps": decodes,
        "wall_s": wall,
        "cpu_s": cpu,
        "sequence_steps_per_cpu_s": decodes / cpu,
        "most_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "load_average": os.getloadavg()[0],
        "summary": dict(result.summary),
    }
    print(json.dumps(found, indent=1))
    if given.output is not None:
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
