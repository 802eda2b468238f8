"""Counts of one continuation's speculation."""

from __future__ import annotations

import dataclasses

from llmi.base.travel import Record


@dataclasses.dataclass(slots=True, eq=False)
class SpecDecodeMetrics(Record):
    """Counts of one continuation's speculation.

    Attributes
    ----------
    drafter, verification : str
    lossless : bool
        Whether the verification keeps the target's distribution.
    num_drafts, num_draft_tokens, num_accepted_tokens : int
    num_accepted_tokens_per_pos : list of int
        [i] counts drafts whose token at depth i + 1 was accepted.
    acceptance_rate : float
        Accepted / drafted.
    mean_acceptance_length : float
        1 + accepted / drafts: tokens per verifying step.
    draft_time_s, verify_time_s : float

    Examples
    --------
    >>> config = llmi.SpeculativeConfig(llmi.PromptLookup(), num_speculative_tokens=4)
    >>> output = llm.generate("one two one", max_tokens=16, seed=1, speculative_config=config)[0]
    >>> metrics = output.outputs[0].spec_decode_metrics
    >>> metrics.num_accepted_tokens <= metrics.num_draft_tokens, metrics.lossless
    (True, True)
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
