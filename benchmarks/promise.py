"""What the promise costs: each op of a step against variants that may add in any order, weighted by its share of the step.

    python benchmarks/promise.py --build DIR [--rounds 15] [--models NAME ..] [--output FILE.json]

DIR is a build folder of CMake with the target `promise` built (cmake --build DIR --target promise; -DLLMI_PROMISE_ARCH=x86-64-v3 and
LLMI_ISA=avx2 time what an AVX2 machine would run). The variants
(benchmarks/native) have several chains a sum, minima apart, one float chain over all columns, larger register tiles, one
softmax over the whole context; the engine's own order is one of those that freedom allows, so no cost is below zero. One thread, so that
nothing hides behind the memory that two share; minima over the rounds, by turns. Ops without sums have no order to free.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import report

# layers, hidden, intermediate, heads, KV heads, head dimension, vocabulary
SHAPES = {"SmolLM2-135M": (30, 576, 1536, 9, 3, 64, 49_152), "Llama-3.2-1B": (16, 2048, 8192, 32, 8, 64, 128_256)}
TYPES = ("q4_1", "bf16")


def lost_seconds(op: dict[str, Any]) -> float:
    """Against the fastest allowed order, which may be the engine's own."""
    return float(op["fixed_s"] - min([op["fixed_s"], *op["free_s"]]))


def cost_of(ops: list[dict[str, Any]]) -> float:
    """Of a step: its time over that of the fastest allowed order of each op, less one."""
    fixed, lost = sum(op["fixed_s"] for op in ops), sum(map(lost_seconds, ops))
    return float(lost / (fixed - lost))


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"rounds": arguments.rounds, "models": {}}
    for name in arguments.models:
        shape = SHAPES[name]
        for weights in TYPES:
            command = [str(arguments.build / "promise"), *map(str, shape), weights, str(arguments.rounds)]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
            table, *ops = (json.loads(line) for line in printed)
            works: dict[str, Any] = {}
            for op in ops:
                works.setdefault(op.pop("work"), {"ops": []})["ops"].append(op)
            for work in works.values():
                work["cost"] = cost_of(work["ops"])
            result["table"] = table["table"]
            result["models"][f"{name}, {weights}"] = works
    return result


def table(result: dict[str, Any]) -> str:
    """Markdown rows: a model each, and under a step's cost the op that makes most of it."""
    works = list(next(iter(result["models"].values())))
    lines = ["| " + " | ".join([f"table {result['table']}", *works]) + " |", "| --- |" + " --- |" * len(works)]
    for model, entries in result["models"].items():
        cells = []
        for work in works:
            cells.append(f"{entries[work]['cost']:.1%} ({max(entries[work]['ops'], key=lost_seconds)['op']})")
        lines.append("| " + " | ".join([model, *cells]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, help="the build folder that has `promise`")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    raise SystemExit(report.main(parser, run, table, partial(report.by_processor, "promise")))
