"""What a soak tells: a table, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from soak import faults
from soak.rounds import Tally


def anonymous_bytes() -> int:
    """Memory of this process that no file is behind, swapped out or not."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * sum(int(fields[name].split()[0]) for name in ("RssAnon", "VmSwap") if name in fields)


def as_json(tally: Tally, seconds: float, memory: list[tuple[int, int]]) -> dict[str, Any]:
    """Every count. memory: (requests so far, bytes) after each round."""
    grown, middle = None, len(memory) // 2  # caches of grammars and of the times of 10,000 requests fill first
    if len(memory) > 4:
        grown = (memory[-1][1] - memory[middle][1]) / (memory[-1][0] - memory[middle][0]) * 1e5 / 1e6
    return {
        "requests": tally.num_requests,
        "compared": sum(tally.compared.values()),
        "differ_or_fail": tally.num_problems,
        "blocks_lost": tally.num_lost_blocks,
        "audits": tally.num_audits,
        "engine_deaths": tally.num_deaths,
        "faults": tally.faults,
        "compared_by_fault": tally.compared,
        "problems": tally.problems,
        "seconds": round(seconds, 1),
        "memory_mb_per_100000_requests": None if grown is None else round(grown, 2),
    }


def as_table(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"{'fault':26} {'times':>8} {'compared':>9}"]
    for name, count in report["faults"].items():
        lines.append(f"{name:26} {count:8,} {report['compared_by_fault'].get(name, 0):9,}")
    lines.append(
        f"{report['requests']:,} requests, {report['compared']:,} whole answers compared with LLM.generate's, {report['differ_or_fail']:,}"
        f" differ or fail, {report['blocks_lost']:,} blocks lost in {report['audits']:,} audits; {report['seconds']:,.1f} s"
    )
    if report["memory_mb_per_100000_requests"] is not None:
        lines.append(
            f"memory of the whole process, client included: {report['memory_mb_per_100000_requests']:,.2f} MB per 100,000 requests"
        )
    lines += report["problems"]
    return "\n".join(lines)


def legend() -> str:
    """What each kind of fault is."""
    return "\n".join(f"{name}: {faults.wording(fault)}" for name, fault in faults.FAULTS.items())


def save(report: dict[str, Any], path: str | None) -> None:
    """Writes the JSON, if a path was given."""
    if path is not None:
        Path(path).write_text(json.dumps(report, indent=1) + "\n")
