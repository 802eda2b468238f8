"""The state of an engine at one moment, without waiting for it."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True, slots=True)
class EngineHealth:
    """Whether an engine's steps go on.

    alive : it is open, and its last sign of life is at most `limit_s` old, or it has nothing to do.
    stalled_s : seconds since a step ended or began while work waits; 0 without work.
    reason : why it is not alive; "" if it is.
    """

    alive: bool
    stalled_s: float
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class LiveRequest:
    """One request under way. Counts are over its continuations."""

    request_id: str
    number: int  # the engine's own, as block tables have it
    state: Literal["waiting", "running"]  # waiting: nothing has come of it; its prompt may be computed already
    age_s: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_tokens: int
    num_draft_tokens: int
    num_accepted_tokens: int
    drafts: dict[int, tuple[int, int]]  # by continuation: (tokens that were drafted, those of them that were accepted)


@dataclasses.dataclass(frozen=True, slots=True)
class LiveState:
    """The engine after its last step.

    num_waiting : requests that no step has begun.
    stats : the counters of LLM.get_metrics(), docs/metrics.md, those that need a walk over all pages as they were last computed.
    requests : in order of arrival.
    """

    num_waiting: int
    stats: dict[str, Any]
    requests: list[LiveRequest]
