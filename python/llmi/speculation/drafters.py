"""Drafters propose tokens; DraftContext is what one sees of a sequence.

Under coupled verification the tokens are those of plain decoding, bit for bit, whatever a drafter proposes: a draft
can only change the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from llmi import _core
from llmi.base.kinds import Whole, parse, show
from llmi.base.travel import Alike
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.lab.capture import Capture
from llmi.lab.tree import TokenTree
from llmi.speculation.context import DraftContext

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from llmi.session import Session

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]
else:
    from llmi.base.lazy_numpy import np


_NGRAM = Whole(1, 64)


class Draft(TokenTree):
    """A TokenTree with the distributions that its tokens were drawn from.

    Parameters
    ----------
    draft_probs : arrays [num_nodes, vocab_size], optional
        Row i is the distribution that node i was drawn from, given its earlier siblings; None: point masses. Coupled
        verification does not need it.

    Examples
    --------
    >>> draft = Draft([5, 7, 9], parents=[-1, 0, 0])  # 5, and behind it 7 or 9
    >>> draft.token_ids.tolist(), draft.parents.tolist(), draft.draft_probs
    ([5, 7, 9], [-1, 0, 0], None)
    """

    def __init__(self, token_ids: Iterable[int], parents: Iterable[int] | None = None, draft_probs: ArrayLike | None = None) -> None:
        super().__init__(token_ids, parents)
        self.draft_probs = draft_probs


Proposal = TokenTree | Iterable[int] | None
DrafterLike: TypeAlias = "str | Drafter | Callable[[DraftContext], Proposal]"


class Drafter:
    """Proposes tokens. Override `propose`, or `propose_batch` to see all sequences at once.

    Called between steps, on the engine's thread. It may run other LLMs, never its own (EngineBusyError). What it
    raises, or proposes wrongly, ends that request alone with a DraftError.

    Attributes
    ----------
    expected_acceptance : float
        The probability that a first token is accepted, before any was seen: from it "auto" tells whether a try is worth its price.
    capture : Capture or None
        Layers of the target whose hidden states `propose` sees in `context.hidden_states` (the last token's source) and
        `context.hidden_rows` (every token's, once), as `Capture(hidden_states=[...])`; these layers' rows are kept at each step.

    Examples
    --------
    >>> class Again(Drafter):
    ...     "Proposes the tokens of the prompt once more."
    ...     def propose(self, context):
    ...         return context.token_ids[: context.num_speculative_tokens]
    >>> params = SamplingParams(max_tokens=16, seed=1)
    >>> llm.generate("The sea is", params, speculative_config=Again()).texts == llm.generate("The sea is", params).texts
    True
    """

    expected_acceptance: float = 0.5
    capture: Capture | None = None

    def propose(self, context: DraftContext) -> Proposal:
        """A Draft, a TokenTree, token ids, or None for no draft."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither propose nor propose_batch")

    def propose_batch(self, contexts: list[DraftContext]) -> list[Proposal]:
        """One proposal for each context."""
        return [self.propose(context) for context in contexts]

    def observe(self, context: DraftContext, num_accepted: int, target_logprobs: F32) -> None:
        """After each verification, if overridden.

        Parameters
        ----------
        context : DraftContext
            As it was when the draft was proposed.
        num_accepted : int
            Depth to which the draft was accepted.
        target_logprobs : float32 array [num_nodes]
            The target's processed log-probability of each node's token; NaN for nodes that the walk did not reach.
        """

    def _attach(self, llm: Session) -> None:
        """Called once for each LLM that uses this drafter; raises if they do not fit."""

    def _core(self) -> _core.Drafter | None:
        """The core's own drafter, if this is one."""
        return None


class LoadedDrafter(Alike, Drafter):
    """One that is loaded with the model, and drafts inside the engine."""

    def propose_batch(self, contexts: list[DraftContext]) -> list[Proposal]:
        name = type(self).__name__
        raise UnsupportedCombinationError(f"{name} drafts inside the engine that was loaded with it", name, "arena")

    def _refuse(self, path: str, loaded: str) -> NoReturn:
        """For a model that was loaded without it, or with another one."""
        raise UnsupportedCombinationError(
            f"{type(self).__name__}({path!r}) is loaded with the model, and this one was loaded {loaded}: give it to"
            " LLM(speculative_config=)",
            "speculative_config",
            "LLM",
        )


class FunctionDrafter(Drafter):
    """A function of a DraftContext as a drafter."""

    def __init__(self, function: Callable[[DraftContext], Proposal]) -> None:
        self.function = function

    def propose(self, context: DraftContext) -> Proposal:
        return self.function(context)


class PromptLookup(Alike, Drafter):
    """Looks for the last tokens earlier in the prompt or the output, and proposes the tokens that followed them there.

    Longer n-grams are tried first; of several places the latest counts (Saxena, 2023). It costs nothing, and helps where the output
    copies from the prompt: summaries, questions about a text, code edits.

    Parameters
    ----------
    prompt_lookup_max, prompt_lookup_min : int
        Longest and shortest n-gram to look for, in tokens; 1 <= min <= max <= 64.

    Examples
    --------
    >>> config = llmi.SpeculativeConfig(PromptLookup(prompt_lookup_max=3), num_speculative_tokens=4)
    >>> params = SamplingParams(max_tokens=16, seed=1)
    >>> llm.generate("one two one", params, speculative_config=config).texts == llm.generate("one two one", params).texts
    True
    """

    def __init__(self, prompt_lookup_max: int = 4, prompt_lookup_min: int = 1) -> None:
        prompt_lookup_max = parse(_NGRAM, "prompt_lookup_max", prompt_lookup_max)
        prompt_lookup_min = parse(_NGRAM, "prompt_lookup_min", prompt_lookup_min)
        if prompt_lookup_min > prompt_lookup_max:
            raise InvalidParamsError(
                f"1 <= prompt_lookup_min <= prompt_lookup_max <= 64 is needed, not {prompt_lookup_min} and {prompt_lookup_max}",
                "prompt_lookup_max",
            )
        self.prompt_lookup_max = prompt_lookup_max
        self.prompt_lookup_min = prompt_lookup_min

    def _core(self) -> _core.PromptLookup:
        return _core.PromptLookup(self.prompt_lookup_min, self.prompt_lookup_max)

    def propose(self, context: DraftContext) -> list[int]:
        """The same from Python, for drafters that ask this one; an engine uses the core's own, which keeps its index."""
        return self._core().propose(context.token_ids.tolist(), context.num_speculative_tokens)

    def __repr__(self) -> str:
        return f"PromptLookup(prompt_lookup_max={self.prompt_lookup_max}, prompt_lookup_min={self.prompt_lookup_min})"


def drafter_name(drafter: Drafter) -> str:
    """A drafter's name in reports."""
    if isinstance(drafter, FunctionDrafter):
        return getattr(drafter.function, "__name__", "function")
    return type(drafter).__name__


def plain_proposal(proposal: Proposal) -> tuple[list[int], list[int] | None]:
    """(ids, parents or None) of what a drafter returned."""
    if proposal is None:
        return [], None
    if isinstance(proposal, TokenTree):
        return proposal.token_ids.tolist(), proposal.parents.tolist()
    ids = np.asarray(list(proposal) if not isinstance(proposal, np.ndarray) else proposal)
    if ids.size == 0:
        return [], None
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TypeError(f"a proposal is a flat list of token ids, not {show(proposal)}")
    return [int(token) for token in ids], None
