"""Between the core and one Python drafter."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.kinds import Real, parse, show
from llmi.errors import InvalidParamsError, LlmiError, UnsupportedCombinationError
from llmi.requests.submission import Submission
from llmi.speculation.context import DraftContext
from llmi.speculation.drafters import Drafter, drafter_name, plain_proposal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.session import Session

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]
else:
    from llmi.base.lazy_numpy import np


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

    def __init__(self, llm: Session, drafter: Drafter) -> None:
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
                with _asking(present):
                    answers = self._drafter.propose_batch(present)
                if len(answers) != len(present):
                    raise LlmiError(f"propose_batch returned {len(answers)} proposals for {len(present)} contexts")
                proposals = {id(context): answer for context, answer in zip(present, answers, strict=True)}
            except KeyboardInterrupt:  # the core ends the request that it is meant for
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
                with _asking([entry]):
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
            with _asking([context]):
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
        context.hidden_rows, context.first_row = query.hidden_rows, query.first_row
        context._sampler_state = query.sampler_state
        return context

    def _fail(self, context: DraftContext, error: BaseException) -> None:
        hooks = context._hooks
        hooks.error, hooks.failed_hook, hooks.failed_in_drafter = error, drafter_name(self._drafter), True

    def _message(self, error: BaseException) -> str:
        return f"{drafter_name(self._drafter)} raised {type(error).__name__}: {error}"


@contextlib.contextmanager
def _asking(contexts: list[DraftContext]) -> Iterator[None]:
    """While a drafter is called with these."""
    for context in contexts:
        context._asked = True
    try:
        yield
    finally:
        for context in contexts:
            context._asked = False


def _hidden_layers(drafter: Drafter, num_layers: int) -> list[int]:
    """The layers of its `capture`, counted from the embedding's output."""
    if drafter.capture is None:
        return []
    from llmi.lab.capture import Capture, capture_layers  # noqa: PLC0415 (loads NumPy)

    if not isinstance(drafter.capture, Capture):
        raise InvalidParamsError(f"{type(drafter).__name__}.capture must be None or a Capture, not {show(drafter.capture)}", "capture")
    hidden, logits, attention = capture_layers(drafter.capture, num_layers)
    if logits or attention:
        raise UnsupportedCombinationError(
            f"{type(drafter).__name__}.capture has layer_logits or attention: a drafter sees hidden_states alone", "capture", "drafter"
        )
    return sorted(set(hidden))


def _rows(proposal: object, context: DraftContext) -> list[F32] | None:
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
