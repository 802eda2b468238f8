"""What `llmi inspect --tp` says: memory of each rank, what they exchange, and how long a token and a prompt would take."""

from __future__ import annotations

import argparse
import itertools

from llmi.models.inspection import ModelReport
from llmi.ranks.forecast import LINKS, Link, forecast, gathers, shares, slower_from, spec_fields

_MOST_RANKS = 256


def parse_degrees(text: str) -> list[int]:
    """2,3,4: numbers of ranks, each in [1, 256]."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:9]) <= _MOST_RANKS for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers in [1, {_MOST_RANKS}], as 2,3,4")
    return [int(part) for part in parts]


def parse_link(text: str) -> Link:
    """A link's name, or US,GBPS: microseconds of an exchange between two, and gigabits a second."""
    if text in LINKS:
        return LINKS[text]
    try:
        latency_us, gigabits = map(float, text.split(","))
    except ValueError:
        latency_us = gigabits = 0.0
    if not (0 < latency_us <= 1e9 and 0 < gigabits <= 1e6):
        raise argparse.ArgumentTypeError(
            f"{text!r} is none of {', '.join(LINKS)}, and no US,GBPS as 50,10: microseconds, gigabits a second"
        )
    return Link(f"{latency_us:g} us, {gigabits:g} Gb/s", latency_us * 1e-6, gigabits * 1e9 / 8)


def rank_lines(
    report: ModelReport, degrees: list[int], stages: list[int], link: Link, read_bytes_per_s: float, ops_per_s: float
) -> list[str]:
    """A line for each number of ranks, and which of them to take. The speeds are those of one machine."""
    tokens, spec = report.num_tokens, spec_fields(report)
    speed = (read_bytes_per_s, ops_per_s)
    count, num_bytes = gathers(spec, report.config, 1, 1, max(degrees))
    where = "one machine, which they share" if link.shares_machine else "a machine each like this one"
    lines = [
        f"  ranks        over {link.name}, on {where}: {read_bytes_per_s / 1e9:,.1f} GB/s, {ops_per_s / 1e9:,.0f} Gop/s",
        f"               a token of several: {count:,} gathers of {num_bytes / 1e3:,.1f} KB in all, and 4 calls",
    ]
    found = []
    for number, degree in itertools.product(sorted({1, *stages}), sorted({1, *degrees})):
        ranks = shares(report, degree, number)
        place = f" in each of {number} stages" if number > 1 else ""
        found.append(forecast(report, ranks, link, *speed))
        weights = [rank.weight_bytes / 1e6 for rank in ranks]
        caches = [rank.kv_bytes / 1e6 for rank in ranks]
        lines.append(
            f"               {degree}{place}: {min(weights):,.1f} to {max(weights):,.1f} MB of weights a rank, cache of {tokens:,} tokens"
            f" {min(caches):,.1f} to {max(caches):,.1f}; a token at least {found[-1].decode_s * 1e3:,.2f} ms,"
            f" prefill of {tokens:,} {found[-1].prefill_s * 1e3:,.0f} ms"
        )
    best = min(found, key=lambda one: one.decode_s)
    also = f", pipeline_parallel_size={best.num_stages}" if best.num_stages > 1 else ""
    slower = slower_from(report, link, *speed)
    after = f"; {slower} ranks decode slower than {slower - 1}" if slower else ""
    return [*lines, f"               fastest of these for a token: tensor_parallel_size={best.num_ranks}{also}{after}"]
