"""What the promise costs: each op of a step against variants that may add in any order, weighted by its share of the step.

    python benchmarks/promise.py --build DIR [--rounds 15] [--models NAME ..] [--output FILE.json]

DIR is a build folder of CMake with the target `promise` built (cmake --build DIR --target promise; -DLLMI_PROMISE_ARCH=x86-64-v3 and
LLMI_ISA=avx2 time what an AVX2 machine would run). The variants
(benchmarks/native) have several chains a sum, minima apart, one float chain over all columns or over blocks of 64, other register tiles,
one softmax over the whole context; the engine's own order is one of those that freedom allows, so no cost is below zero. One thread, so
that nothing hides behind the memory that two share. Each round times all variants by turns; the variant that is fastest in every second
round (median of its time over the engine's) is judged by the other rounds, and the other way about: who is picked by luck is not judged by
it.

Two costs. `cost` is against any order. `cost_as_accurate` is against orders that lie no further from float64 than the engine's: sums of
float weights in blocks of 32 columns are there for accuracy, and would be there without the promise (docs/decisions/0001).
Ops without sums have no order to free.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import report

# layers, hidden, intermediate, heads, KV heads, head dimension, vocabulary
SHAPES = {"SmolLM2-135M": (30, 576, 1536, 9, 3, 64, 49_152), "Llama-3.2-1B": (16, 2048, 8192, 32, 8, 64, 128_256)}
TYPES = ("q4_1", "bf16")


#: A variant is as accurate if its error is no larger than this times the engine's: the sample's own noise.
AS_ACCURATE = 1.05


def advantage(ratios: list[list[float]]) -> float:
    """What the best variant takes of the engine's time, chosen in one half of the rounds and judged in the other; at most 1."""
    if not ratios:
        return 1.0
    judged = []
    for chosen_in, judged_in in ((0, 1), (1, 0)):
        best = min(ratios, key=lambda rounds: statistics.median(rounds[chosen_in::2]))
        judged.append(statistics.median(best[judged_in::2]))
    return min(1.0, statistics.mean(judged))


def summary(op: dict[str, Any]) -> dict[str, Any]:
    """Of an op's rounds: the median of the engine's seconds, each variant's ratio to it, and seconds lost to either kind of freedom."""
    fixed, *free = op["seconds"].values()
    ratios = [[seconds / own for seconds, own in zip(rounds, fixed, strict=True)] for rounds in free]
    errors = op.get("errors", [1.0] * (1 + len(free)))
    accurate = [rounds for rounds, error in zip(ratios, errors[1:], strict=True) if error <= AS_ACCURATE * errors[0]]
    fixed_s = statistics.median(fixed)
    return {
        "op": op["op"],
        "rounds": len(fixed),
        "fixed_s": fixed_s,
        "free_over_fixed": [round(statistics.median(rounds), 4) for rounds in ratios],
        "error_over_fixed": [round(error / errors[0], 2) for error in errors[1:]],
        "lost_s": fixed_s * (1 - advantage(ratios)),
        "lost_as_accurate_s": fixed_s * (1 - advantage(accurate)),
    }


def cost_of(ops: list[dict[str, Any]], lost: str) -> float:
    """Of a step: its time over that of the fastest allowed order of each op, less one."""
    fixed_s, lost_s = sum(op["fixed_s"] for op in ops), sum(op[lost] for op in ops)
    return float(lost_s / (fixed_s - lost_s))


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
                works.setdefault(op["work"], {"ops": []})["ops"].append(summary(op))
            for work in works.values():
                work["cost"] = cost_of(work["ops"], "lost_s")
                work["cost_as_accurate"] = cost_of(work["ops"], "lost_as_accurate_s")
            result["table"] = table["table"]
            result["models"][f"{name}, {weights}"] = works
    return result


def table(result: dict[str, Any]) -> str:
    """Markdown rows: a model each, and under a step's costs the op that makes most of the second."""
    works = list(next(iter(result["models"].values())))
    lines = ["| " + " | ".join([f"table {result['table']}", *works]) + " |", "| --- |" + " --- |" * len(works)]
    for model, entries in result["models"].items():
        cells = []
        for work in works:
            op = max(entries[work]["ops"], key=lambda op: op["lost_s"])["op"]
            cells.append(f"{entries[work]['cost_as_accurate']:.1%}, {entries[work]['cost']:.1%} ({op})")
        lines.append("| " + " | ".join([model, *cells]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, help="the build folder that has `promise`")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    raise SystemExit(report.main(parser, run, table, partial(report.by_processor, "promise")))
