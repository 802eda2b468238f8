"""Drafters: who proposes tokens, and what they are told.

Under coupled verification the tokens are those of plain decoding, bit for bit, whatever a drafter proposes: a draft
can only change the speed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from llmi import _core
from llmi.base.kinds import Choice, Listed, Maybe, Text, Whole, entries_of, parse, refuse, show
from llmi.base.travel import Alike
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.text.prompts import token_list

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.lab.sequence import Capture, TokenSequence
    from llmi.llm import LLM
    from llmi.params.sampling import SamplingParams
    from llmi.requests.build import Submission

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]
else:
    from llmi.base.lazy_numpy import np


SHORTLIST = 32768


_PARENTS = Listed(Whole(-1, 2**31 - 1, "a parent, an integer of -1 or more"), "a list of parents", 1 << 20)
_NGRAM = Whole(1, 64)
_SAMPLE_METHOD = Choice(("probabilistic", "greedy"))
_SHORTLIST = Maybe(Whole(1, 2**31 - 1, "None (all of the vocabulary) or an integer of 1 or more"))


def checked_shortlist(shortlist: int | None) -> int | None:
    parsed: int | None = parse(_SHORTLIST, "shortlist", shortlist)
    return parsed


class TokenTree(Alike):
    """Tokens to try behind a sequence: a chain, or a tree.

    Parameters
    ----------
    token_ids : ids [num_nodes]
    parents : ints [num_nodes], optional
        parents[i] < i is the node before node i; -1 = after the last committed token. None: a chain.
    """

    def __init__(self, token_ids: Iterable[int], parents: Iterable[int] | None = None) -> None:
        self.token_ids: I32 = np.asarray(token_list(token_ids, "token_ids"), np.int32)
        chain = np.arange(-1, len(self.token_ids) - 1, dtype=np.int32)
        self.parents: I32 = chain if parents is None else np.asarray(parse(_PARENTS, "parents", parents), np.int32)
        if len(self.parents) != len(self.token_ids):
            raise InvalidParamsError(f"{len(self.parents)} parents for {len(self.token_ids)} tokens", "parents")

    @classmethod
    def from_paths(cls, paths: Iterable[Iterable[int]], max_nodes: int | None = None) -> TokenTree:
        """The tree of these paths: shared beginnings are merged, earlier paths first, cut to max_nodes nodes."""
        nodes: dict[tuple[int, int], int] = {}
        token_ids: list[int] = []
        parents: list[int] = []
        max_nodes = parse(Maybe(Whole(0, 2**31 - 1, "None or an integer of 0 or more")), "max_nodes", max_nodes)
        listed = entries_of("paths", paths)
        if listed is None:
            raise refuse("paths", "a list of lists of token ids", paths)
        for path in listed:
            node = -1
            for token in token_list(path, "paths"):
                key = (node, token)
                if key not in nodes:
                    if max_nodes is not None and len(token_ids) >= max_nodes:
                        break
                    nodes[key] = len(token_ids)
                    token_ids.append(token)
                    parents.append(node)
                node = nodes[key]
        return cls(token_ids, parents)

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.token_ids.tolist()}, parents={self.parents.tolist()})"


class Draft(TokenTree):
    """A TokenTree with the laws that its tokens were drawn from.

    Parameters
    ----------
    draft_probs : arrays [num_nodes, vocab_size], optional
        Row i is the law that node i was drawn from, given its earlier siblings; None: point masses. Coupled
        verification does not need it.
    """

    def __init__(self, token_ids: Iterable[int], parents: Iterable[int] | None = None, draft_probs: Any = None) -> None:
        super().__init__(token_ids, parents)
        self.draft_probs = draft_probs


class DraftContext:
    """One running sequence, as a drafter sees it.

    Attributes
    ----------
    request_id : str
    index : int
        Of the sample among n.
    token_ids : int32 array [len]
        Prompt and output so far.
    prompt_len : int
    num_speculative_tokens : int
        The most nodes that may be proposed now.
    sampling_params : SamplingParams
        The request's, with its seed.
    hidden_states : dict
        {layer: float32 array [hidden_size]} of the target at the row that the last token was drawn from, for the layers
        of the drafter's `capture`: what EAGLE and Medusa draft from.
    state : any
        The drafter's own slot for this sequence; None at first.
    """

    def __init__(self, llm: LLM, submission: Submission, index: int) -> None:
        self.request_id = submission.hooks.request_id
        self.index = index
        self.token_ids: I32 = np.zeros(0, np.int32)
        self.prompt_len = 0
        self.num_speculative_tokens = 0
        self.sampling_params: SamplingParams = dataclasses.replace(submission.params, seed=submission.seed)
        self.hidden_states: dict[int, F32] = {}
        self.state: Any = None
        self._llm = llm
        self._hooks = submission.hooks
        assert submission.core_params is not None
        self._core_params = submission.core_params
        self._sequences: dict[tuple[int, bool], TokenSequence] = {}
        self._round = 0  # of verification; 0: coupled, drafts share the target's noise

    def sequence(self, draft_llm: LLM) -> TokenSequence:
        """This request's own sequence on a draft model, in step with `token_ids`; closed with the request."""
        return self._sequence(draft_llm, None)

    def _sequence(self, draft_llm: LLM, shortlist: _core.Shortlist | None) -> TokenSequence:
        """With a shortlist, logits over its ids, over those of the text and of the request's parameters; -inf elsewhere."""
        params = self.sampling_params
        if params.allowed_token_ids is not None:
            shortlist = None  # nothing might be left
        key = (id(draft_llm), shortlist is not None)
        sequence = self._sequences.get(key)
        if sequence is None:
            sequence = draft_llm.sequence(self.token_ids, seed=params.seed)
            sequence._owned_by_drafter(self.prompt_len, self.index)
            if shortlist is not None:
                vocab_size = draft_llm.model_info.vocab_size
                named = {*(params.logit_bias or {}), *(params.stop_token_ids or ()), *draft_llm._builder.ends(params)}
                _core.lab_restrict(draft_llm._engine, sequence._core, shortlist, [token for token in named if token < vocab_size])
            self._sequences[key] = sequence
        else:
            sequence.sync(self.token_ids)
        return sequence

    def draw(self, source: TokenSequence | F32, *, num_tokens: int = 1, path: Iterable[int] = ()) -> tuple[list[int], list[F32]]:
        """Siblings without replacement, as the target itself would draw them from these logits.

        Parameters
        ----------
        source : TokenSequence or array [vocab_size]
            Logits after this request's tokens and `path`; a sequence knows its path itself.
        num_tokens : int
        path : ids
            Drafted tokens between the request's last token and this position.

        Returns
        -------
        (token ids, rows)
            rows[i] [vocab_size]: the law that token i was drawn from, given its earlier siblings.
        """
        token_ids, law, _ = self._law(source, path)
        drawn = _core.draw_siblings(self._llm._engine, law, self._core_params, len(token_ids), self.index, num_tokens, self._round)
        greedy = self.sampling_params.temperature == 0
        rows, probs = [], _softmax(law)
        for token in drawn:
            total = probs.sum()
            rows.append(_point(law, token) if greedy else probs / total)
            probs[token] = 0.0
        return drawn, rows

    def _law(self, source: TokenSequence | F32, path: Iterable[int]) -> tuple[list[int], F32, int]:
        """(tokens before, processed law, the token that the target's own noise draws from it)."""
        from llmi.lab.sequence import TokenSequence

        if isinstance(source, TokenSequence):
            token_ids, logits = source.token_ids.tolist(), source.logits
        else:
            token_ids, logits = [*self.token_ids.tolist(), *path], np.asarray(source, np.float32)
        vocab_size = self._llm.model_info.vocab_size
        if len(logits) != vocab_size:  # a padded head on either side
            padded = np.full(vocab_size, -np.inf, np.float32)
            padded[: len(logits)] = logits[:vocab_size]
            logits = padded
        drawn = _core.law(
            self._llm._engine, self._core_params, logits,
            token_ids=token_ids, prompt_len=self.prompt_len, sample_index=self.index, output_text="", hooks=None,
        )  # fmt: skip
        return token_ids, drawn.law, drawn.token_id

    def _close(self) -> None:
        for sequence in self._sequences.values():
            sequence.close()


def _softmax(law: F32) -> F32:
    probs: F32 = np.exp(law - np.float32(_core.log_sum_exp(law)))
    return probs


def _point(law: F32, token: int) -> F32:
    probs = np.zeros(len(law), np.float32)
    probs[token] = 1.0
    return probs


Proposal = TokenTree | Iterable[int] | None


class Drafter:
    """Proposes tokens. Override `propose`, or `propose_batch` to see all sequences at once.

    Called between steps, on the engine's thread. It may run other LLMs, never its own (EngineBusyError). What it
    raises, or proposes wrongly, ends that request alone with a DraftError.

    `expected_acceptance` is the probability that a first token is accepted, before any was seen: from it "auto" tells
    whether a try is worth its price. `capture` names layers of the target whose hidden states `propose` sees in
    `context.hidden_states`, as `Capture(hidden_states=[...])`; these layers' rows are kept at each step.
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

    def _attach(self, llm: LLM) -> None:
        """Called once for each LLM that uses this drafter; raises if they do not fit."""

    def _core(self) -> Any:
        """The core's own drafter, if this is one."""
        return None


class _Function(Drafter):
    def __init__(self, function: Callable[[DraftContext], Proposal]) -> None:
        self.function = function

    def propose(self, context: DraftContext) -> Proposal:
        return self.function(context)


class PromptLookup(Alike, Drafter):
    """Proposes what followed when the last tokens stood earlier in the prompt or the output.

    The longest n-gram first, the latest of several (Saxena, 2023). Free, and good where the output copies: summaries,
    questions over a text, code edits.

    Parameters
    ----------
    prompt_lookup_max, prompt_lookup_min : int
        Longest and shortest n-gram to look for, in tokens; 1 <= min <= max <= 64.
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

    def _core(self) -> Any:
        return _core.PromptLookup(self.prompt_lookup_min, self.prompt_lookup_max)

    def propose(self, context: DraftContext) -> list[int]:
        """The same from Python, for drafters that ask this one; an engine uses the core's own, which keeps its index."""
        ids: list[int] = self._core().propose(context.token_ids.tolist(), context.num_speculative_tokens)
        return ids

    def __repr__(self) -> str:
        return f"PromptLookup(prompt_lookup_max={self.prompt_lookup_max}, prompt_lookup_min={self.prompt_lookup_min})"


class DraftModel(Drafter):
    """A small model of the same vocabulary drafts with the target's own noise, so that it often draws the same token.

    Parameters
    ----------
    model : LLM or path
        A path is loaded with `engine_args`.
    draft_sample_method : {"probabilistic", "greedy"}
        "probabilistic" draws under the target's temperature, filters and noise; "greedy" takes the likeliest token.
    shortlist : int, optional
        Where the vocabulary has more than twice as many ids, drafts are drawn from this number of its first, from those of
        one or two ASCII characters and from those that the text holds: the head's other rows are not read. None: from all.
        Zhao et al., FR-Spec, 2025.
    """

    expected_acceptance = 0.7
    _listed: _core.Shortlist | None = None  # made when it is first needed

    def __init__(
        self,
        model: Any,
        *,
        draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic",
        shortlist: int | None = SHORTLIST,
        **engine_args: Any,
    ) -> None:
        from llmi.llm import LLM

        self.shortlist = checked_shortlist(shortlist)
        self.draft_sample_method = parse(_SAMPLE_METHOD, "draft_sample_method", draft_sample_method)
        if isinstance(model, LLM) and engine_args:
            raise InvalidParamsError(f"give an LLM or a path with engine arguments ({', '.join(engine_args)}), not both", "model")
        self.llm = model if isinstance(model, LLM) else LLM(model, **engine_args)

    def _attach(self, llm: LLM) -> None:
        if llm is self.llm:
            raise UnsupportedCombinationError("a model cannot draft for itself: give DraftModel another LLM", "DraftModel", "LLM")
        ours, theirs = self.llm.tokenizer.vocab_bytes, llm.tokenizer.vocab_bytes
        shared = min(len(ours), len(theirs))  # heads are padded differently; what has text must agree
        if ours[:shared] != theirs[:shared] or any(ours[shared:]) or any(theirs[shared:]):
            raise UnsupportedCombinationError(
                "the draft model has another tokenizer than its target: token ids would mean other text", "DraftModel", "tokenizer"
            )

    def _shortlist(self) -> _core.Shortlist | None:
        vocab_size = self.llm.model_info.vocab_size
        if self.shortlist is None or vocab_size <= 2 * self.shortlist:
            return None
        if self._listed is None:
            pieces = self.llm.tokenizer.vocab_bytes
            short = (token for token, piece in enumerate(pieces[:vocab_size]) if 1 <= len(piece) <= 2 and piece.isascii())
            self._listed = _core.Shortlist(vocab_size, [*range(self.shortlist), *short])
        return self._listed

    def propose_batch(self, contexts: list[DraftContext]) -> list[Proposal]:
        sequences = [context._sequence(self.llm, self._shortlist()) for context in contexts]
        drafts: list[list[int]] = [[] for _ in contexts]
        rows: dict[int, list[F32]] = {id(context): [] for context in contexts}
        self.llm.extend({sequence: [] for sequence in sequences})
        greedy = self.draft_sample_method == "greedy"
        while True:
            step = {}
            for context, sequence, draft in zip(contexts, sequences, drafts, strict=True):
                room = min(context.num_speculative_tokens, self.llm.model_info.max_model_len - len(context.token_ids))
                if len(draft) >= room:
                    continue
                _, law, token = context._law(sequence, ())
                if greedy:
                    token = int(law.argmax())
                elif context._round:  # judged drafts have noise of their own
                    position = len(context.token_ids) + len(draft)
                    token = _core.draw_siblings(
                        context._llm._engine, law, context._core_params, position, context.index, 1, context._round
                    )[0]
                draft.append(token)
                if context._round:
                    rows[id(context)].append(_point(law, token) if greedy or context.sampling_params.temperature == 0 else _softmax(law))
                if len(draft) < room:
                    step[sequence] = [token]
            if not step:
                return [Draft(draft, None, rows[id(c)] if c._round else None) for c, draft in zip(contexts, drafts, strict=True)]
            self.llm.extend(step)

    def __repr__(self) -> str:
        return f"DraftModel({self.llm!r})"


def as_drafter(entry: Any) -> Drafter:
    if isinstance(entry, str):
        return _by_name(parse(Text(256), "drafter", entry))
    if isinstance(entry, Drafter):
        return entry
    if isinstance(entry, type) or not callable(entry):
        raise InvalidParamsError(f"a drafter is a Drafter or a function of a DraftContext, not {show(entry)}", "drafter")
    return _Function(entry)


def _by_name(name: str) -> Drafter:
    """A drafter that a package registered under the entry point group llmi.drafters: a class or function without arguments."""
    from importlib.metadata import entry_points

    if name == "prompt_lookup":
        return PromptLookup()
    found = entry_points(group="llmi.drafters")
    for point in found:
        if point.name == name:
            return as_drafter(point.load()())
    known = ", ".join(sorted({"prompt_lookup", *(point.name for point in found)}))
    raise InvalidParamsError(f"no drafter is called {name!r}: {known}", "drafter")


def drafter_name(drafter: Drafter) -> str:
    """A drafter's name in reports."""
    if isinstance(drafter, _Function):
        return getattr(drafter.function, "__name__", "function")
    return type(drafter).__name__


def plain_proposal(proposal: Any) -> tuple[list[int], list[int] | None]:
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
