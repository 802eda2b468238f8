"""A Constraint at work: a logits processor that masks what it does not allow."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from llmi.base.kinds import plain, show
from llmi.errors import ConstraintError, InvalidParamsError
from llmi.params.constraint import Constraint
from llmi.params.sampling import TokenContext
from llmi.text.prompts import token_list

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from llmi.base.lazy_numpy import np

_MAX_MEMO = 4096  # states whose masks are kept, for each constraint


class NothingAllowedError(ConstraintError):
    """A state allows no token: it ends the request, or drops one of its beams."""


class ConstraintProcessor:
    """A Constraint as a logits processor; its state sits in context.state.

    begin: position of the first token that it reads; None: the first after the prompt.
    """

    def __init__(self, constraint: Constraint[Any], eos_token_ids: Iterable[int], begin: int | None = None) -> None:
        self.constraint = constraint
        self._begin = begin
        self._eos = np.asarray(sorted(eos_token_ids), np.int64)
        self._ends = frozenset(self._eos.tolist())
        self._memo: dict[Any, NDArray[np.bool_]] = {}
        self.__name__ = type(constraint).__name__

    def __call__(self, context: TokenContext, logits: NDArray[np.float32]) -> None:
        """Sets what is not allowed to -inf."""
        slot = context.state
        output = context.token_ids[context.prompt_len if self._begin is None else self._begin :]
        read, state = slot.get("constraint", (output[:0], None))
        if len(read) == 0 or not np.array_equal(output[: len(read)], read):  # a sequence of the lab may have been rolled back
            read, state = output[:0], self.constraint.initial_state()
        for token in output[len(read) :].tolist():
            if token not in self._ends:  # under ignore_eos the text goes on where it was
                state = self.constraint.advance(state, int(token))
        slot["constraint"] = (output.copy(), state)
        mask = self.mask(state, len(logits))
        if not mask.any():
            raise NothingAllowedError(f"{self.__name__}: state {show(state)} allows no token and is not final")
        np.copyto(logits, -np.inf, where=~mask)

    def completes(self, token_ids: Iterable[int]) -> bool:
        """Whether an output is a whole of the constraint's language."""
        state = self.constraint.initial_state()
        for token in token_ids:
            if token not in self._ends:
                state = self.constraint.advance(state, token)
        return bool(plain(self.constraint.is_final(state)))

    def allowed_counts(self, token_ids: Iterable[int], begin: int, vocab_size: int) -> NDArray[np.int64]:
        """For each token of an output whose first one stands at `begin`: its position, how many tokens the mask allowed, and whether it
        was one of them; int64 [tokens, 3].
        """
        state, rows = self.constraint.initial_state(), []
        for position, token in enumerate(token_ids, begin):
            mask = self.mask(state, vocab_size)
            rows.append((position, int(np.count_nonzero(mask)), int(mask[token])))
            if token not in self._ends:
                state = self.constraint.advance(state, int(token))
        return np.asarray(rows, np.int64).reshape(len(rows), 3)

    def mask(self, state: object, vocab_size: int) -> NDArray[np.bool_]:
        """The tokens that may follow in `state`, bool [vocab_size]; all False in a dead end."""
        key = state if isinstance(state, Hashable) else None
        if key is not None and key in self._memo:
            return self._memo[key]
        allowed = self.constraint.allowed(state)
        mask = np.zeros(vocab_size, np.bool_)
        if isinstance(allowed, np.ndarray) and allowed.dtype == np.bool_:
            if allowed.shape != (vocab_size,) and not (allowed.ndim == 1 and not allowed[vocab_size:].any()):
                raise ConstraintError(f"{self.__name__}.allowed returned a mask of shape {allowed.shape}, not [{vocab_size}]")
            mask[: len(allowed)] = allowed[:vocab_size]
        else:
            try:
                ids = np.asarray(token_list(allowed, "allowed"), np.int64)
            except InvalidParamsError as error:
                raise ConstraintError(f"{self.__name__}.allowed returns bool [vocab_size] or token ids: {error}") from None
            if len(ids) == vocab_size > 2 and ids.max() <= 1:
                raise ConstraintError(f"{self.__name__}.allowed returned {vocab_size} numbers 0 and 1: a mask is of bools")
            if len(ids) and ids.max() >= vocab_size:
                raise ConstraintError(f"{self.__name__}.allowed returned a token id outside [0, {vocab_size})")
            mask[ids] = True
        final = plain(self.constraint.is_final(state))
        if not isinstance(final, bool):
            raise ConstraintError(f"{self.__name__}.is_final returns True or False, not {show(final)}")
        mask[self._eos] = final
        if key is not None and len(self._memo) < _MAX_MEMO:
            self._memo[key] = mask
        return mask
