"""Costs of published tables: `python benchmarks/published.py [PERF_MODEL_CSV]` fits those that come with llmi, and says their errors.

Each machine's prompts and decodes are points by their rows; what a token of K and V adds is the slope of single decodes over their length
(least squares). Held out are every second number of rows, and of lengths; with two GPUs 64 sequences did not fit together and are left out.
With splitwise-sim's data/perf_model.csv benchmarks/published/llama2_70b.csv is made anew first.
"""

from __future__ import annotations

import collections
import csv
import json
import statistics
import sys
from pathlib import Path

import numpy as np

from llmi import Costs

HERE = Path(__file__).resolve().parent
TABLE = HERE / "published" / "llama2_70b.csv"
SHIPPED = HERE.parent / "python" / "llmi" / "simulation" / "published.json"
Sample = tuple[int, int, float]  # rows, tokens of K and V, seconds


def reduce(path: Path) -> None:
    """Medians of the repetitions, of the one model."""
    groups = collections.defaultdict(list)
    for row in csv.DictReader(path.open(encoding="utf-8")):
        if row["model"] == "llama2-70b" and row["hardware"] in ("a100-80gb", "h100-80gb"):
            key = (
                row["hardware"].partition("-")[0],
                int(row["tensor_parallel"]),
                *(int(row[f"{name}_size"]) for name in ("prompt", "batch", "token")),
            )
            groups[key].append((float(row["prompt_time"]) / 1e3, float(row["token_time"]) / 1e3))
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["gpu", "gpus", "prompt_tokens", "sequences", "output_tokens", "prompt_s", "token_s"])
        for key, times in sorted(groups.items()):
            writer.writerow([*key, *(f"{statistics.median(column):.6g}" for column in zip(*times, strict=True))])


def samples() -> dict[str, list[Sample]]:
    """Steps by machine."""
    found = collections.defaultdict(list)
    for row in csv.DictReader(TABLE.open(encoding="utf-8")):
        prompt, sequences, output = (int(row[name]) for name in ("prompt_tokens", "sequences", "output_tokens"))
        if row["gpus"] == "2" and sequences == 64:
            continue
        name = f"llama2-70b-{row['gpu']}-tp{row['gpus']}"
        if output == 128:
            found[name].append((prompt * sequences, prompt * sequences, float(row["prompt_s"])))
        found[name].append((sequences, sequences * (prompt + output // 2), float(row["token_s"])))
    return found


def fit(steps: list[Sample], note: str) -> Costs:
    """Costs of these steps."""
    lengths, seconds = zip(*((kv, took) for rows, kv, took in steps if rows == 1), strict=True)
    kv_s = float(max(0.0, np.polyfit(lengths, seconds, 1)[0]))
    groups = collections.defaultdict(list)
    for rows, kv, took in steps:
        groups[rows].append(took - kv_s * kv)
    points, last = [], 0.0
    for rows, times in sorted(groups.items()):
        last = max(last, statistics.mean(times))
        points.append((rows, float(f"{last:.5g}")))
    return Costs(tuple(points), float(f"{kv_s:.4g}"), note)


def errors(costs: Costs, steps: list[Sample]) -> list[float]:
    """By which the costs miss."""
    return [abs(costs.seconds(rows, kv) / took - 1) for rows, kv, took in steps]


def is_held(step: Sample, steps: list[Sample]) -> bool:
    """Every second number of rows, and every second length of single decodes, but the outer ones."""
    numbers = sorted({rows for rows, _, _ in steps})
    lengths = sorted({kv for rows, kv, _ in steps if rows == 1})
    return step[0] in numbers[1:-1:2] or (step[0] == 1 and step[1] in lengths[1:-1:2])


def main() -> None:
    """Runs it."""
    if len(sys.argv) > 1:
        reduce(Path(sys.argv[1]))
    shipped, every = {}, []
    print("| costs | held-out rows: median error, p95 | all rows: median error, p95 |")
    print("| --- | --- | --- |")
    for name, steps in samples().items():
        held = [step for step in steps if is_held(step, steps)]
        missed = errors(fit([step for step in steps if not is_held(step, steps)], ""), held)
        every += missed
        costs = fit(steps, "")
        own = errors(costs, steps)
        print(
            f"| `{name}` | {np.median(missed):.1%}, {np.percentile(missed, 95):.0%} | {np.median(own):.1%}, {np.percentile(own, 95):.0%} |"
        )
        note = f"{name}: vLLM of 2023, splitwise-sim's table; its rows are missed by {np.median(own):.1%} (median), {np.percentile(own, 95):.0%} (p95)"
        shipped[name] = {"points": costs.points, "kv_s": costs.kv_s, "note": note}
    print(f"all held-out rows: median {np.median(every):.1%}, p95 {np.percentile(every, 95):.0%}")
    SHIPPED.write_text(json.dumps(shipped, indent=None).replace('}, "', '},\n "') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
