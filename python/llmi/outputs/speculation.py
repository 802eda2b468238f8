"""Counts of one continuation's speculation."""

from __future__ import annotations

import dataclasses

from llmi.base.travel import Record


@dataclasses.dataclass(slots=True, eq=False)
class SpecDecodeMetrics(Record):
    """Counts of one continuation's speculation.

    `acceptance_rate` is accepted / drafted; `mean_acceptance_length` is 1 + accepted / drafts: tokens per verifying
    step. `num_accepted_tokens_per_pos[i]` counts drafts whose token at depth i + 1 was accepted.
    """

    drafter: str
    verification: str
    lossless: bool
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: list[int]
    acceptance_rate: float
    mean_acceptance_length: float
    draft_time_s: float
    verify_time_s: float
