"""The core's configurations of speculation for one LLM."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from typing import TYPE_CHECKING

from llmi import _core
from llmi.outputs.speculation import SpecDecodeMetrics
from llmi.requests.submission import Submission
from llmi.speculation.auto import AutoDrafters
from llmi.speculation.config import SpeculativeConfig
from llmi.speculation.drafters import Drafter, drafter_name
from llmi.speculation.eagle import Eagle
from llmi.speculation.runner import DrafterRunner
from llmi.speculation.verification import VerificationRunner

if TYPE_CHECKING:
    from llmi.session import Session

_MAX_KEPT = 64  # core drafters that an LLM keeps for the next call
#: Core drafters that tell how sure they are of each token: "auto" takes the tokens that pay from what several of them propose.
_WITH_KINDS = (_core.CorpusDrafter, _core.EagleDrafter, _core.PromptLookup, _core.TokenRecycling)
_MAX_SIZED = 4


@dataclasses.dataclass(frozen=True, slots=True)
class RequestSpeculation:
    """How requests with one configuration speculate; a `Speculation` of llmi.requests.submission."""

    config: SpeculativeConfig
    factory: SpeculationFactory

    @property
    def is_coupled(self) -> bool:
        """Whether tokens are those of plain decoding."""
        return bool(self.config.verification == "coupled")

    @property
    def judges_whole_drafts(self) -> bool:
        """Whether its verification sees all rows of a draft at once."""
        return self.config._judges_whole_drafts

    @property
    def verification_name(self) -> str:
        """As metrics and receipts show it."""
        return self.config.verification_name

    def build(self, submission: Submission, request_id: int) -> _core.SpeculationConfig:
        """The core's configuration for one request."""
        return self.factory.build(self.config, submission, request_id)

    def metrics(self, counts: _core.SpeculationStats) -> SpecDecodeMetrics:
        """The metrics of one continuation, from the core's counts."""
        config, num_drafts, num_draft_tokens = self.config, counts.num_drafts, counts.num_draft_tokens
        num_accepted = counts.num_accepted_tokens
        return SpecDecodeMetrics(
            drafter="+".join(drafter_name(drafter) for drafter in config._drafters),
            verification=config.verification_name,
            lossless=isinstance(config.verification, str) or config.verification.lossless,
            num_drafts=num_drafts,
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=num_accepted,
            num_accepted_tokens_per_pos=counts.num_accepted_per_position,
            acceptance_rate=num_accepted / num_draft_tokens if num_draft_tokens else float("nan"),
            mean_acceptance_length=1 + num_accepted / num_drafts if num_drafts else float("nan"),
            draft_time_s=counts.draft_time_s,
            verify_time_s=counts.verify_time_s,
        )


class SpeculationFactory:
    """Builds the core's configurations for one LLM; one core drafter for each Python one, so that calls are batched."""

    def __init__(self, llm: Session) -> None:
        self._llm = weakref.ref(llm)
        self._auto: list[Drafter] | None = None  # what the drafter "auto" stands for
        self._built: dict[object, tuple[object, _core.Drafter, DrafterRunner | None]] = {}  # by identity; the key object is kept alive

    def of(self, config: SpeculativeConfig) -> RequestSpeculation:
        """How requests speculate with this configuration. Raises if a drafter does not fit this LLM."""
        llm = self._llm()
        assert llm is not None
        has_heads = any(isinstance(drafter, Eagle) for drafter in config._drafters)
        parts = [
            part
            for drafter in config._drafters
            for part in self._parts(drafter, llm)
            if part is drafter or not (has_heads and isinstance(part, Eagle))  # one layer is loaded, so it drafts once
        ]
        for drafter in parts:
            drafter._attach(llm)
        if parts != config._drafters:
            config = copy.copy(config)
            config._drafters = parts
            config._is_auto = True
        return RequestSpeculation(config, self)

    def _parts(self, drafter: Drafter, llm: Session) -> list[Drafter]:
        if type(drafter) is not AutoDrafters:
            return [drafter]
        if self._auto is None:
            self._auto = drafter.parts(llm)
        return self._auto

    def num_bytes(self) -> int:
        """Memory of the tables and weights of the drafters in use."""
        return sum(core.num_bytes for key, core, _ in list(self._built.values()) if isinstance(key, Drafter))  # a union holds none itself

    def build(self, config: SpeculativeConfig, submission: Submission, request_id: int) -> _core.SpeculationConfig:
        """The core's SpeculationConfig for one request."""
        parts = []
        for drafter in config._drafters:
            core, runner = self._core_drafter(drafter)
            if runner is not None:
                runner.submissions[request_id] = submission
            parts.append(core)
        length = config.num_speculative_tokens
        sizes_alone = config._is_auto or (length == "auto" and isinstance(parts[0], _core.EagleDrafter))  # as one of a union of one
        combined = parts[0] if len(parts) == 1 and not sizes_alone else self._union(parts, length == "auto")
        verification = config.verification
        if isinstance(verification, str):
            kind, rule = verification, None
        else:
            rule = VerificationRunner(verification, dataclasses.replace(submission.params, seed=submission.seed))
            kind = "judge" if config._judges_whole_drafts else "rule"
        return _core.SpeculationConfig(
            combined, length if isinstance(length, int) else -1, None if isinstance(length, int | str) else length, kind, rule, request_id
        )

    def _union(self, parts: list[_core.Drafter], sized: bool) -> _core.Drafter:
        """One drafter of several; the same for the same parts, so that what "auto" learns of it lasts."""
        sized = sized and len(parts) <= _MAX_SIZED and all(isinstance(part, _WITH_KINDS) for part in parts)
        key = (sized, *map(id, parts))
        if key not in self._built:
            self._keep(key, (parts, _core.SizedUnion(parts) if sized else _core.UnionDrafter(parts), None))
        return self._built[key][1]

    def _keep(self, key: object, entry: tuple[object, _core.Drafter, DrafterRunner | None]) -> None:
        self._built[key] = entry
        while len(self._built) > _MAX_KEPT:  # requests under way hold what they need themselves
            self._built.pop(next(iter(self._built)))

    def _core_drafter(self, drafter: Drafter) -> tuple[_core.Drafter, DrafterRunner | None]:
        known = self._built.get(id(drafter))
        if known is not None:
            return known[1], known[2]
        core, runner = drafter._core(), None
        if core is None:
            llm = self._llm()
            assert llm is not None
            runner = DrafterRunner(llm, drafter)
            core = _core.PyDrafter(runner, drafter_name(drafter))
        self._keep(id(drafter), (drafter, core, runner))
        return core, runner
