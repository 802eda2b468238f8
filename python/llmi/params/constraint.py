"""Constraints: automata that say which tokens may come next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

S = TypeVar("S")

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi import _core


class Constraint(Generic[S]):
    """An automaton with explicit, immutable states, given as `structured_outputs`.

    Safe under forks, drafts and n > 1: a state is a value, and each sample walks its own path. End-of-text is allowed in
    final states, and only there. A state that allows nothing ends that request with ConstraintError.

    Its methods are called for the states behind drafted tokens, too, which may not come.

    Examples
    --------
    >>> class Even(Constraint):
    ...     "Texts of letters a and b with an even number of tokens."
    ...     def initial_state(self):
    ...         return 0
    ...     def allowed(self, state):
    ...         return [98, 99]
    ...     def advance(self, state, token_id):
    ...         return 1 - state
    ...     def is_final(self, state):
    ...         return state == 0
    >>> set(llm.generate("The sea is", structured_outputs=Even(), max_tokens=9, seed=1)[0].text) <= set("ab")
    True
    """

    _template: _core.GrammarMatcher | None = None  # of a grammar: the core fills its masks, and calls no method here

    def initial_state(self) -> S:
        """The state before the first token."""
        raise NotImplementedError

    def allowed(self, state: S) -> NDArray[np.bool_] | Iterable[int]:
        """The allowed tokens: bool [vocab_size], or token ids. Remembered for each hashable state."""
        raise NotImplementedError

    def advance(self, state: S, token_id: int) -> S:
        """The state after `token_id`, which was allowed."""
        raise NotImplementedError

    def is_final(self, state: S) -> bool:
        """Whether the text may end here."""
        raise NotImplementedError
