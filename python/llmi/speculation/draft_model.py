"""DraftModel: a small model drafts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from llmi import _core
from llmi.base.kinds import Choice, Maybe, Whole, parse
from llmi.base.opening import is_llm, open_llm
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.speculation.context import DraftContext, point_mass, softmax
from llmi.speculation.drafters import Draft, Drafter, Proposal

if TYPE_CHECKING:
    import os

    import numpy as np
    from numpy.typing import NDArray

    from llmi.session import Session

    F32 = NDArray[np.float32]

SHORTLIST = 32768
DRAFT_BITS = 8  # activation_bits of a draft model: it only proposes, and each step waits for it
_SAMPLE_METHOD = Choice(("probabilistic", "greedy"))
_SHORTLIST = Maybe(Whole(1, 2**31 - 1, "None (all of the vocabulary) or an integer of 1 or more"))


def checked_shortlist(shortlist: int | None) -> int | None:
    """The argument `shortlist` in its plain form."""
    parsed: int | None = parse(_SHORTLIST, "shortlist", shortlist)
    return parsed


class DraftModel(Drafter):
    """A small model of the same vocabulary drafts with the target's own noise, so that it often draws the same token.

    Parameters
    ----------
    model : LLM or path
        A path is loaded with `engine_args`, and with activation_bits=8 unless they say otherwise: drafts are only proposals. An LLM keeps
        its own mode.
    draft_sample_method : {"probabilistic", "greedy"}
        "probabilistic" draws under the target's temperature, filters and noise; "greedy" takes the likeliest token.
    shortlist : int, optional
        Where the vocabulary has more than twice as many ids, drafts are drawn from this number of its first, from those of
        one or two ASCII characters and from those that the text holds: the head's other rows are not read. None: from all.
        Zhao et al., FR-Spec, 2025.

    Examples
    --------
    >>> small = llmi.testing.tiny_model(vocab_size=257, num_layers=1)
    >>> drafter = DraftModel(small, kv_cache_memory_bytes=1 << 24)
    >>> output = llm.generate("The sea is", max_tokens=8, seed=1, speculative_config=drafter)[0]
    >>> output.token_ids == llm.generate("The sea is", max_tokens=8, seed=1)[0].token_ids
    True
    """

    expected_acceptance = 0.7
    _listed: _core.Shortlist | None = None  # made when it is first needed

    def __init__(
        self,
        model: Session | str | os.PathLike[str],
        *,
        draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic",
        shortlist: int | None = SHORTLIST,
        **engine_args: Any,  # Any: LLM checks its own arguments
    ) -> None:
        self.shortlist = checked_shortlist(shortlist)
        self.draft_sample_method = parse(_SAMPLE_METHOD, "draft_sample_method", draft_sample_method)
        if is_llm(model) and engine_args:
            raise InvalidParamsError(f"give an LLM or a path with engine arguments ({', '.join(engine_args)}), not both", "model")
        self.llm = model if is_llm(model) else open_llm(model, **{"activation_bits": DRAFT_BITS, **engine_args})

    def _attach(self, llm: Session) -> None:
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

    def _shortlist_of(self, context: DraftContext) -> _core.Shortlist | None:
        """The ids that are drawn from: those that the request allows, if any. All others are banned, so the distribution is that of all
        ids."""
        allowed = context.sampling_params.allowed_token_ids
        if allowed is None:
            return self._shortlist()
        vocab_size = self.llm.model_info.vocab_size
        known = [token for token in allowed if token < vocab_size]
        return _core.Shortlist(vocab_size, known) if known else None

    def _steering_of(self, context: DraftContext) -> Mapping[int, F32] | None:
        """No steering: the vectors of a request are the target's."""
        return None

    def propose_batch(self, contexts: list[DraftContext]) -> list[Proposal]:
        sequences = [context._sequence(self.llm, self._shortlist_of, self._steering_of(context)) for context in contexts]
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
                    rows[id(context)].append(point_mass(law, token) if greedy or context.sampling_params.temperature == 0 else softmax(law))
                if len(draft) < room:
                    step[sequence] = [token]
            if not step:
                return [Draft(draft, None, rows[id(c)] if c._round else None) for c, draft in zip(contexts, drafts, strict=True)]
            self.llm.extend(step)

    def __repr__(self) -> str:
        return f"DraftModel({self.llm!r})"
