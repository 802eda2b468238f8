"""What a step takes with several ranks: the costs of one rank, and the gathers of `llmi inspect --tp`."""

from __future__ import annotations

import dataclasses

from llmi.errors import InvalidParamsError
from llmi.models.inspection import ModelReport
from llmi.ranks.forecast import CALLS, gathers, shares, spec_fields
from llmi.simulation.costs import Costs, link_of

_PIECE_ROWS = 256  # an MLP gathers as many rows at once, so a step's gathers grow behind each of them
_MOST_ROWS = 1 << 15


def rank_costs(costs: Costs, report: ModelReport, num_ranks: int, most_rows: int) -> Costs:
    """Those of an engine of so many ranks, of which each is as fast as the one that `costs` are of. most_rows: of a step.

    Work and reads of K and V are divided as weights and heads are, and the slowest rank is waited for; ranks of one machine ("shm") share
    what it can do. Gathers come on top.

    Raises
    ------
    InvalidParamsError, UnsupportedModelError
    """
    link = link_of(costs.rank_link)
    if link is None:
        raise InvalidParamsError("simulate: with tensor_parallel_size the costs say what carries gathers: rank_link", "costs")
    spec = spec_fields(report)
    ranks, alone = shares(report, num_ranks), shares(report, 1)[0]
    work = 1.0 if link.shares_machine else max(rank.read_bytes for rank in ranks) / alone.read_bytes
    reads = [rank.kv_bytes / alone.kv_bytes for rank in ranks] if alone.kv_bytes else [0.0]

    def exchange_s(num_rows: int, num_wanted: int) -> float:
        count, num_bytes = gathers(spec, report.config, num_rows, num_wanted, num_ranks)
        return link.exchange_s(num_ranks, count + CALLS, num_bytes)

    ends = range(_PIECE_ROWS, min(most_rows, _MOST_ROWS) + _PIECE_ROWS, _PIECE_ROWS)
    rows = {rows for rows, _ in costs.points} | {1, 2, *ends, *(end + 1 for end in ends[:-1])}
    return dataclasses.replace(
        costs,
        points=tuple((count, work * costs.seconds(count) + exchange_s(count, 0)) for count in sorted(rows)),
        kv_s=costs.kv_s * (sum(reads) if link.shares_machine else max(reads)),
        logits_s=costs.logits_s + exchange_s(1, 1) - exchange_s(1, 0),
        note=f"{costs.note}, {num_ranks} ranks over {link.name}",
    )
