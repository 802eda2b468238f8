"""A Constraint's masks, as the core takes them."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from llmi.base.kinds import plain, show
from llmi.errors import ConstraintError, InvalidParamsError
from llmi.params.constraint import Constraint
from llmi.text.prompts import token_list

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from llmi.base.lazy_numpy import np

_MAX_MEMO = 4096  # states whose masks are kept, for each constraint


class NothingAllowedError(ConstraintError):
    """A state allows no token: it ends the request, or drops one of its beams."""


class ConstraintMasks:
    """A Constraint with the tokens that end a text: they are allowed in final states, and no state reads them."""

    def __init__(self, constraint: Constraint[Any], eos_token_ids: Iterable[int]) -> None:
        self.constraint = constraint
        self._eos = np.asarray(sorted(eos_token_ids), np.int64)
        self._ends = frozenset(self._eos.tolist())
        self._memo: dict[Any, NDArray[np.uint32]] = {}
        self.__name__ = type(constraint).__name__

    def after(self, state: object, token_ids: Iterable[int]) -> Any:
        """The state after more tokens; state None: before the first one."""
        if state is None:
            state = self.constraint.initial_state()
        for token in token_ids:
            if token not in self._ends:  # under ignore_eos the text goes on where it was
                state = self.constraint.advance(state, int(token))
        return state

    def place(self, slot: dict[str, Any], output: NDArray[np.int32]) -> Any:
        """The state after an output, and keeps it in `slot` for the next call. The output may have been rolled back since."""
        read, state = slot.get("constraint", (output[:0], None))
        if len(read) == 0 or not np.array_equal(output[: len(read)], read):
            read, state = output[:0], None
        state = self.after(state, output[len(read) :].tolist())
        slot["constraint"] = (output.copy(), state)
        return state

    def completes(self, token_ids: Iterable[int]) -> bool:
        """Whether an output is a whole of the constraint's language."""
        return bool(plain(self.constraint.is_final(self.after(None, token_ids))))

    def words(self, state: object, vocab_size: int) -> NDArray[np.uint32]:
        """The same as `mask` in bits, uint32 [ceil(vocab_size / 32)]; remembered for each hashable state. Raises NothingAllowedError."""
        key = state if isinstance(state, Hashable) else None
        words = self._memo.get(key) if key is not None else None
        if words is None:
            padded = np.zeros((vocab_size + 31) // 32 * 32, np.bool_)
            padded[:vocab_size] = self.mask(state, vocab_size)
            words = np.packbits(padded, bitorder="little").view(np.uint32)
            if key is not None and len(self._memo) < _MAX_MEMO:
                self._memo[key] = words
        if not words.any():
            raise NothingAllowedError(f"{self.__name__}: state {show(state)} allows no token and is not final")
        return words

    def allowed_counts(self, token_ids: Iterable[int], begin: int, vocab_size: int) -> NDArray[np.int64]:
        """Position, tokens that the mask allowed, and whether the token was one of them, for each token of an output; int64 [tokens, 3].

        The output's first token stands at `begin`.
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
        mask[self._eos] = self.accepts(state)
        return mask

    def accepts(self, state: object) -> bool:
        """Whether the text may end in `state`."""
        final = plain(self.constraint.is_final(state))
        if not isinstance(final, bool):
            raise ConstraintError(f"{self.__name__}.is_final returns True or False, not {show(final)}")
        return final

    @staticmethod
    def copied(state: object) -> Any:
        """A state for another path, whatever its class does with it."""
        return copy.deepcopy(state)
