"""What a drafter sees of a sequence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.kinds import array_of
from llmi.errors import EngineBusyError, InvalidParamsError
from llmi.params.sampling import SamplingParams
from llmi.requests.submission import Submission

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from llmi.lab.sequence import TokenSequence
    from llmi.session import Session

    F32 = NDArray[np.float32]
    I32 = NDArray[np.int32]
    Source = TokenSequence | F32 | tuple[I32, F32]
else:
    from llmi.base.lazy_numpy import np


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
    hidden_rows : dict
        {layer: float32 array [num_new, hidden_size]} of the target, for the same layers: row i is that of the token at position `first_row
        + i`, the prompt's tokens included. Each row comes once, in the next call after the target has computed it: what was preempted, or
        passed without a draft, is not lost or repeated, rows of rejected tokens never come, and the last token has no row yet. Where the
        prefix cache gave the request its beginning, the target never computes these rows, and the first call's `first_row` says how many
        there are; under verification by acceptance ("rejection", "block" and the like), where no other request may reach a draft, such a
        request takes nothing from the prefix cache, and first_row begins at 0.
    first_row : int
        The position of the first of these rows; the next one's if there is none.
    state : any
        The drafter's own slot for this sequence; None at first.

    Examples
    --------
    >>> def last_again(context):
    ...     return [int(context.token_ids[-1])] * context.num_speculative_tokens
    >>> params = SamplingParams(max_tokens=8, seed=1)
    >>> llm.generate("aaaa", params, speculative_config=last_again).texts == llm.generate("aaaa", params).texts
    True
    """

    def __init__(self, llm: Session, submission: Submission, index: int) -> None:
        self.request_id = submission.hooks.request_id
        self.index = index
        self.token_ids: I32 = np.zeros(0, np.int32)
        self.prompt_len = 0
        self.num_speculative_tokens = 0
        self.sampling_params: SamplingParams = dataclasses.replace(submission.params, seed=submission.seed)
        self.hidden_states: dict[int, F32] = {}
        self.hidden_rows: dict[int, F32] = {}
        self.first_row = 0
        self.state: Any = None  # Any: the drafter's own
        self._llm = llm
        self._hooks = submission.hooks
        assert submission.core_params is not None
        self._core_params = submission.core_params
        self._sequences: dict[tuple[int, bool], TokenSequence] = {}
        self._sampler_state = _core.SamplerState()  # the target's, after token_ids
        self._round = 0  # of verification; 0: coupled, drafts share the target's noise
        self._asked = False  # its drafter is being called

    def sequence(self, draft_llm: Session) -> TokenSequence:
        """This request's own sequence on a draft model, in step with `token_ids`; closed with the request."""
        return self._sequence(draft_llm, None)

    def _sequence(
        self,
        draft_llm: Session,
        shortlist_of: Callable[[DraftContext], _core.Shortlist | None] | None,
        steering: Mapping[int, F32] | None = None,
    ) -> TokenSequence:
        """This context's sequence of the draft model. steering: of the draft model.

        With a shortlist, logits are over its ids, those of the text and of the request's parameters; -inf elsewhere.
        """
        params = self.sampling_params
        key = (id(draft_llm), shortlist_of is not None)
        sequence = self._sequences.get(key)
        if sequence is None:
            sequence = draft_llm.sequence(self.token_ids, seed=params.seed, steering=steering)
            sequence._owned_by_drafter(self.prompt_len, self.index)
            shortlist = None if shortlist_of is None else shortlist_of(self)
            if shortlist is not None:
                vocab_size = draft_llm.model_info.vocab_size
                named = {*(params.logit_bias or {}), *(params.stop_token_ids or ()), *draft_llm._builder.ends(params)}
                _core.lab_restrict(draft_llm._engine, sequence._core, shortlist, [token for token in named if token < vocab_size])
            self._sequences[key] = sequence
        else:
            sequence.sync(self.token_ids)
        return sequence

    def head(self, hidden: ArrayLike, *, shortlist: Iterable[int] | None = None) -> F32 | tuple[I32, F32]:
        """Logits of hidden states by the target's own head, as LLM.head; in the drafter's call alone.

        Raises
        ------
        InvalidParamsError
            As LLM.head.
        EngineBusyError
            The drafter's call is over, or another thread than its own asks.

        Examples
        --------
        >>> tokens, rows = context.draw(context.head(guess, shortlist=frequent))  # doctest: +SKIP
        """
        on_thread = self._llm._engine.on_engine_thread()
        if self._asked and not on_thread:
            raise EngineBusyError("context.head runs on the thread that called the drafter, which waits for it: call it there")
        from llmi.lab.model_rows import head  # noqa: PLC0415 (loads NumPy)

        return head(self._llm, hidden, shortlist, in_drafter=self._asked and on_thread)

    def draw(self, source: Source, *, num_tokens: int = 1, path: Iterable[int] = ()) -> tuple[list[int], list[F32]]:
        """Siblings without replacement, as the target itself would draw them from these logits.

        Parameters
        ----------
        source : TokenSequence, array [vocab_size], or (ids, array [num_ids])
            Logits after this request's tokens and `path`; a sequence knows its path itself. Both forms that `head` gives for one row are
            taken as they are; ids that are not among those of a shortlist are not drawn.
        num_tokens : int
        path : ids
            Drafted tokens between the request's last token and this position.

        Returns
        -------
        (token ids, rows)
            rows[i] [vocab_size]: the distribution that token i was drawn from, given its earlier siblings. Nothing, if the
            request's masks leave no id of a shortlist.
        """
        try:
            token_ids, law, _ = self._law(_whole_row(source, self._llm.model_info.vocab_size), path)
        except _core.CoreError as error:
            if isinstance(source, tuple) and error.kind == "non_finite_logits" and np.isfinite(source[1]).all():
                return [], []
            raise
        drawn = _core.draw_siblings(self._llm._engine, law, self._core_params, len(token_ids), self.index, num_tokens, self._round)
        greedy = self.sampling_params.temperature == 0
        rows, probs = [], softmax(law)
        for token in drawn:
            total = probs.sum()
            rows.append(point_mass(law, token) if greedy else probs / total)
            probs[token] = 0.0
        return drawn, rows

    def _law(self, source: TokenSequence | F32, path: Iterable[int]) -> tuple[list[int], F32, int]:
        """(tokens before, processed distribution, the token that the target's own noise draws from it)."""

        from llmi.lab.sequence import TokenSequence  # noqa: PLC0415 (which loads NumPy)

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
            self._llm._engine,
            self._core_params,
            logits,
            token_ids=token_ids,
            prompt_len=self.prompt_len,
            sample_index=self.index,
            output_text="",
            hooks=None,
            sampler_state=self._sampler_state,
            allowed=None,
        )
        return token_ids, drawn.law, drawn.token_id

    def _close(self) -> None:
        for sequence in self._sequences.values():
            sequence.close()


def _whole_row(source: Source, vocab_size: int) -> TokenSequence | F32:
    """One row of either form that `head` gives, as logits [vocab_size]; -inf outside a shortlist. All else as it is."""
    from llmi.lab.sequence import TokenSequence  # noqa: PLC0415 (loads NumPy)

    if isinstance(source, TokenSequence):
        return source
    ids, logits = source if isinstance(source, tuple) and len(source) == 2 else (None, source)
    row = array_of("source", logits)
    if row.ndim == 2 and len(row) == 1:
        row = row[0]
    if row.ndim != 1 or row.dtype.kind not in "iuf" or (ids is not None and len(row) != len(ids)):
        of = "[vocab_size]" if ids is None else f"[{len(ids)}], one for each id"
        raise InvalidParamsError(f"source: logits of one row {of} are expected, not an array of shape {row.shape}", "source")
    if ids is None:
        return np.asarray(row, np.float32)
    whole = np.full(vocab_size, -np.inf, np.float32)
    whole[np.asarray(ids, np.int64)] = row
    return whole


def softmax(law: F32) -> F32:
    probs: F32 = np.exp(law - np.float32(_core.log_sum_exp(law)))
    return probs


def point_mass(law: F32, token: int) -> F32:
    probs = np.zeros(len(law), np.float32)
    probs[token] = 1.0
    return probs
