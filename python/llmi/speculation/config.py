"""Speculation of one LLM: its configuration, and what stands between the core and drafters written in Python."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from llmi import _core
from llmi.base.kinds import Choice, Either, Object, Place, Real, Text, Whole, callable_object, dimensions, parse, show
from llmi.base.travel import Record
from llmi.errors import InvalidParamsError, LlmiError, UnsupportedCombinationError
from llmi.params.options import nearest
from llmi.speculation.drafters import DraftContext, Drafter, DraftModel, PromptLookup, as_drafter, drafter_name, plain_proposal
from llmi.speculation.verification import Typical, Verification, VerificationRunner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.llm import LLM
    from llmi.requests.build import Submission

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]
else:
    from llmi.base.lazy_numpy import np

MAX_SPECULATIVE_TOKENS = 256
MAX_JUDGED_TOKENS = 64  # where verification looks at the whole draft
_VERIFICATION = Either(
    (Choice(("coupled", "rejection", "block", "typical")), Object("", lambda value: isinstance(value, Verification))),
    "'coupled', 'rejection', 'block', 'typical' or a Verification",
)
_MAX_KEPT = 64  # core drafters that an LLM keeps for the next call


class LengthPolicy(Protocol):
    """Chooses how many tokens to draft; may not look at drawn tokens.

    Under verification other than "coupled", lengths enter the result: tokens then depend on costs and on other sequences exactly as far
    as the policy looks at `cost_curve` and `num_running`.
    """

    def choose(self, acceptance: F32, cost_curve: F32, num_running: int) -> int:
        """A length.

        Parameters
        ----------
        acceptance : float32 array [32]
            Probability that the draft's token at each depth is accepted, given those before it were.
        cost_curve : float32 array [32]
            Seconds of a step of 1, 2, ... rows on this machine.
        num_running : int
            Sequences that run.
        """
        ...


def _is_length_policy(value: Any) -> bool:
    return callable_object(getattr(value, "choose", None)) and not isinstance(value, type) and dimensions(value) is None


@dataclasses.dataclass
class SpeculativeConfig:
    """How a request speculates.

    Parameters
    ----------
    drafter : Drafter, callable, or a list of them
        Several propose one merged tree, earlier ones first.
    num_speculative_tokens : int, "auto", or LengthPolicy
        Most tokens in a draft. "auto" picks, at each step, the length with the most expected tokens per second from the cost of a step
        and the acceptance seen, down to none; under verification other than "coupled" from a fixed table of costs and this sequence's
        own acceptance.
    verification : {"coupled", "rejection", "block", "typical"} or Verification
        "coupled": the very tokens of plain decoding, at any temperature. "rejection": accepts with probability
        min(1, target / draft), else draws from the rest; the law is exactly the target's. "block": the
        same law, chains only, judged as a whole: accepts more. "typical", and a Verification of your own, may change the law.
        All but "coupled" make tokens depend on the drafter and on num_speculative_tokens too, and on nothing else of the run: a draft
        goes whole into a step that has room for it.
    """

    drafter: Any
    num_speculative_tokens: Any = "auto"
    verification: Any = "coupled"

    def __post_init__(self) -> None:
        drafters = self.drafter if isinstance(self.drafter, list | tuple) else [self.drafter]
        self._drafters = [as_drafter(entry) for entry in drafters]
        if not self._drafters:
            raise InvalidParamsError("drafter is an empty list", "drafter")
        self.verification = parse(_VERIFICATION, "verification", self.verification)
        if isinstance(self.verification, str) and self.verification == "typical":
            self.verification = Typical()
        if _is_length_policy(self.num_speculative_tokens):
            return
        longest = MAX_JUDGED_TOKENS if self._judges_whole_drafts else MAX_SPECULATIVE_TOKENS
        number = Whole(1, longest)
        rule = f"'auto', a LengthPolicy, or an integer in [1, {longest}] with verification {self.verification_name!r}"
        self.num_speculative_tokens = parse(
            Either((Choice(("auto",)), number), rule), "num_speculative_tokens", self.num_speculative_tokens
        )

    @property
    def _judges_whole_drafts(self) -> bool:
        return self.verification == "block" or (isinstance(self.verification, Verification) and self.verification.judges_whole_drafts)

    @property
    def verification_name(self) -> str:
        """As metrics and receipts show it."""
        return self.verification if isinstance(self.verification, str) else type(self.verification).__name__

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> SpeculativeConfig:
        """vLLM's keys: method, model, num_speculative_tokens, prompt_lookup_max, prompt_lookup_min."""
        if not config:
            raise InvalidParamsError("speculative_config is empty: None switches speculation off", "speculative_config")
        known = {"method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "verification"}
        if unknown := [key for key in config if key not in known]:
            names = ", ".join(f"{show(key)}{nearest(str(key), known, {})}" for key in unknown)
            raise InvalidParamsError(
                f"speculative_config has no key {names}; its keys are {', '.join(sorted(known))}", "speculative_config"
            )
        if config.get("model") is not None:
            parse(
                Either((Place(), Object("", lambda value: type(value).__name__ == "LLM")), "a path or an LLM"),
                "speculative_config's model",
                config["model"],
            )
        method = config.get("method")
        if method is None:
            model = config.get("model")
            method = "ngram" if model is None or (isinstance(model, str) and model in ("ngram", "[ngram]")) else "draft_model"
        method = parse(Text(64), "speculative_config's method", method)
        drafter: Drafter
        if method in ("ngram", "[ngram]", "prompt_lookup"):
            if method != "ngram" and config.get("model") is not None and config["model"] not in ("ngram", "[ngram]"):
                raise InvalidParamsError(
                    f"speculative_config: method {method!r} has no model, not {show(config['model'])}", "speculative_config"
                )
            longest, shortest = config.get("prompt_lookup_max"), config.get("prompt_lookup_min")
            drafter = PromptLookup(4 if longest is None else longest, 1 if shortest is None else shortest)
        elif method == "draft_model":
            if config.get("model") is None:
                raise InvalidParamsError("speculative_config: method 'draft_model' needs 'model'", "speculative_config")
            drafter = DraftModel(config["model"])
        else:
            raise UnsupportedCombinationError(
                f"speculative_config: method {method!r} is unknown: ngram or draft_model", "speculative_config", str(method)
            )
        length, verification = config.get("num_speculative_tokens"), config.get("verification")
        return cls(drafter, "auto" if length is None else length, "coupled" if verification is None else verification)


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


def parse_speculation(value: Any) -> SpeculativeConfig | None:
    """The SpeculativeConfig for a value of the argument speculative_config, in any form that users may give."""
    if value is None or isinstance(value, SpeculativeConfig):
        return value
    if isinstance(value, Mapping):
        return SpeculativeConfig.from_dict(value)
    return SpeculativeConfig(value)


@dataclasses.dataclass(slots=True)
class Proposal:
    """What the core gets for one sequence.

    parents: None for a chain. laws: dense rows that the tokens were drawn from; None: point masses. error: ends the request alone.
    """

    token_ids: list[int] = dataclasses.field(default_factory=list)
    parents: list[int] | None = None
    laws: list[F32] | None = None
    error: str | None = None


class DrafterRunner:
    """Between the core and one Python drafter: keeps a DraftContext for each sequence, catches what goes wrong."""

    def __init__(self, llm: LLM, drafter: Drafter) -> None:
        self._llm = weakref.ref(llm)
        self._drafter = drafter
        self.submissions: weakref.WeakValueDictionary[int, Submission] = weakref.WeakValueDictionary()
        self._contexts: dict[tuple[int, int], DraftContext] = {}
        self._batched = type(drafter).propose_batch is not Drafter.propose_batch
        self.wants_observe = type(drafter).observe is not Drafter.observe
        named = f"{type(drafter).__name__}.expected_acceptance"
        self.expected_acceptance: float = parse(Real(-1e300, 1e300, "a number in [0, 1]"), named, drafter.expected_acceptance)
        if not 0 <= self.expected_acceptance <= 1:
            raise InvalidParamsError(f"{named} must lie in [0, 1], not {drafter.expected_acceptance!r}", "expected_acceptance")
        self.hidden_layers = _hidden_layers(drafter, llm.model_info.num_layers)

    def propose(self, wanted: list[_core.DraftQuery]) -> list[Proposal]:
        """A proposal for each query."""
        contexts = [self._context(query) for query in wanted]
        present = [context for context in contexts if context is not None]
        proposals: dict[int, Any] = {}
        if self._batched and present:
            try:
                answers = self._drafter.propose_batch(present)
                if len(answers) != len(present):
                    raise LlmiError(f"propose_batch returned {len(answers)} proposals for {len(present)} contexts")
                proposals = {id(context): answer for context, answer in zip(present, answers, strict=True)}
            except KeyboardInterrupt:  # the core knows whose it is
                raise
            except BaseException as error:
                for context in present:
                    self._fail(context, error)
                return [Proposal(error=self._message(error)) for _ in wanted]
        results: list[Proposal] = []
        for entry in contexts:
            if entry is None:  # its call was dropped
                results.append(Proposal())
                continue
            try:
                proposal = proposals[id(entry)] if self._batched else self._drafter.propose(entry)
                results.append(Proposal(*plain_proposal(proposal), _rows(proposal, entry) if entry._round else None))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._fail(entry, error)
                results.append(Proposal(error=self._message(error)))
        return results

    def observe(self, request_id: int, index: int, num_accepted: int, target_logprobs: F32) -> None:
        """Reports the result of a sequence's last draft."""
        context = self._contexts.get((request_id, index))
        if context is None:
            return
        try:
            self._drafter.observe(context, num_accepted, target_logprobs)
        except BaseException as error:
            self._fail(context, error)
            raise

    def forget(self, request_id: int, index: int) -> None:
        """The sequence has ended."""
        context = self._contexts.pop((request_id, index), None)
        if context is not None:
            context._close()

    def _context(self, query: _core.DraftQuery) -> DraftContext | None:
        request_id, index = query.request_id, query.sample_index
        context = self._contexts.get((request_id, index))
        if context is None:
            submission, llm = self.submissions.get(request_id), self._llm()
            if submission is None or llm is None:
                return None
            context = self._contexts[request_id, index] = DraftContext(llm, submission, index)
            first = self._contexts.get((request_id, 0))
            context.state = copy.deepcopy(first.state) if first is not None and index else None
        context.token_ids, context.prompt_len, context.num_speculative_tokens = query.token_ids, query.prompt_len, query.max_nodes
        context._round = query.round if query.wants_laws else 0
        context.hidden_states = query.hidden_states
        return context

    def _fail(self, context: DraftContext, error: BaseException) -> None:
        hooks = context._hooks
        hooks.error, hooks.failed_hook, hooks.failed_in_drafter = error, drafter_name(self._drafter), True

    def _message(self, error: BaseException) -> str:
        return f"{drafter_name(self._drafter)} raised {type(error).__name__}: {error}"


def _hidden_layers(drafter: Drafter, num_layers: int) -> list[int]:
    """The layers of its `capture`, counted from the embedding's output."""
    if drafter.capture is None:
        return []
    from llmi.lab.sequence import Capture, capture_layers

    if not isinstance(drafter.capture, Capture):
        raise InvalidParamsError(f"{type(drafter).__name__}.capture must be None or a Capture, not {show(drafter.capture)}", "capture")
    hidden, logits, attention = capture_layers(drafter.capture, num_layers)
    if logits or attention:
        raise UnsupportedCombinationError(
            f"{type(drafter).__name__}.capture asks for layer logits or attention: a drafter sees hidden_states alone", "capture", "drafter"
        )
    return sorted(set(hidden))


def _rows(proposal: Any, context: DraftContext) -> list[F32] | None:
    """draft_probs as dense rows; None: point masses."""
    rows = getattr(proposal, "draft_probs", None)
    if rows is None:
        return None
    vocab_size = context._llm.model_info.vocab_size
    if isinstance(rows, tuple) and len(rows) == 2:  # ids and probs [num_nodes, m]
        dense = np.zeros((len(rows[0]), vocab_size), np.float32)
        np.put_along_axis(dense, np.asarray(rows[0], np.int64), np.asarray(rows[1], np.float32), axis=1)
        return list(dense)
    return [np.asarray(row, np.float32) for row in rows]


class SpeculationFactory:
    """Builds the core's configurations for one LLM; one core drafter for each Python one, so that calls are batched."""

    def __init__(self, llm: LLM) -> None:
        self._llm = weakref.ref(llm)
        self._built: dict[int, tuple[object, _core.Drafter, DrafterRunner | None]] = {}  # by identity; the key object is kept alive

    def check(self, config: SpeculativeConfig) -> None:
        """Raises if a drafter does not fit this LLM."""
        llm = self._llm()
        assert llm is not None
        for drafter in config._drafters:
            drafter._attach(llm)

    def build(self, config: SpeculativeConfig, submission: Submission, request_id: int) -> _core.SpeculationConfig:
        """The core's SpeculationConfig for one request."""
        parts = []
        for drafter in config._drafters:
            core, runner = self._core_drafter(drafter)
            if runner is not None:
                runner.submissions[request_id] = submission
            parts.append(core)
        combined = parts[0] if len(parts) == 1 else self._union(config, parts)
        length = config.num_speculative_tokens
        kind: Any = config.verification
        rule = None
        if isinstance(kind, Verification):
            rule = VerificationRunner(kind, dataclasses.replace(submission.params, seed=submission.seed))
            kind = "judge" if config._judges_whole_drafts else "rule"
        return _core.SpeculationConfig(
            combined, length if isinstance(length, int) else -1, None if isinstance(length, int | str) else length, kind, rule, request_id
        )

    def _union(self, config: SpeculativeConfig, parts: list[_core.Drafter]) -> _core.Drafter:
        if id(config) not in self._built:
            self._keep(id(config), (config, _core.UnionDrafter(parts), None))
        return self._built[id(config)][1]

    def _keep(self, key: int, entry: tuple[object, _core.Drafter, DrafterRunner | None]) -> None:
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


def spec_metrics(config: SpeculativeConfig, counts: _core.SpeculationStats) -> SpecDecodeMetrics:
    """Makes the metrics from the core's counts."""
    num_drafts, num_draft_tokens, num_accepted = counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens
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
