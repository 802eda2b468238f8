"""A grammar as a Constraint: its states are places in the grammar's language, each with the tokens that may follow."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from llmi.errors import ConstraintError
from llmi.params.constraint import Constraint
from llmi.params.structured import StructuredOutputsParams
from llmi.structured.grammars import compiled, refused
from llmi.structured.library import Matcher, Vocabulary, vocabulary_of
from llmi.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAX_GRAMMARS = 64
_cache: OrderedDict[tuple[int, StructuredOutputsParams], GrammarConstraint] = OrderedDict()
_lock = threading.Lock()


class State:
    """A place in the language: the tokens before it, and a matcher that has read them.

    A state is a value. The first state that follows it takes its matcher, which is cheaper than a copy; another one gets a copy of the
    grammar's first matcher and reads the tokens again.
    """

    __slots__ = ("final", "mask", "matcher", "path")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, path: tuple[State, int] | None, matcher: Matcher | None, mask: NDArray[np.bool_], final: bool) -> None:
        self.path = path
        self.matcher = matcher
        self.mask = mask
        self.final = final

    def __copy__(self) -> State:
        return self

    def __deepcopy__(self, memo: object) -> State:
        return self

    def tokens(self) -> list[int]:
        """The tokens before this place."""
        tokens: list[int] = []
        path = self.path
        while path is not None:
            tokens.append(path[1])
            path = path[0].path
        return tokens[::-1]


class GrammarConstraint(Constraint[State]):
    """A grammar of StructuredOutputsParams. The library's errors are ConstraintError."""

    def __init__(self, params: StructuredOutputsParams, vocabulary: Vocabulary) -> None:
        self.params = params
        self._vocabulary = vocabulary
        self._first = compiled(params, vocabulary.compiled)
        matcher = self._first.deep_copy()
        mask = vocabulary.mask(matcher)
        if matcher.is_error() or not (mask.any() or matcher.is_accepting()):
            raise refused(f"no output matches the {params.kind}")
        self._root = State(None, matcher, mask, bool(matcher.is_accepting()))

    def initial_state(self) -> State:
        """Before the first token."""
        return State(None, self._first.deep_copy(), self._root.mask, self._root.final)

    def allowed(self, state: State) -> NDArray[np.bool_]:
        """bool [tokens of the vocabulary]."""
        return state.mask

    def advance(self, state: State, token_id: int) -> State:
        """The place after one more token. Raises ConstraintError if the grammar does not allow it, or reaches a limit of the library."""
        matcher, state.matcher = state.matcher, None
        if matcher is None:
            matcher = self._first.deep_copy()
            matcher.consume_tokens(state.tokens())
        matcher.consume_token(token_id)
        mask = self._vocabulary.mask(matcher)
        if matcher.is_error():
            raise ConstraintError(f"the {self.params.kind} cannot go on after token {token_id}: {_first_line(matcher.get_error())}")
        return State((state, token_id), matcher, mask, bool(matcher.is_accepting()))

    def is_final(self, state: State) -> bool:
        """Whether the text so far is a whole of the language."""
        return state.final


def _first_line(message: str) -> str:
    return message.strip().split("\n")[0][:200] or "it gives no reason"


def grammar_constraint(params: StructuredOutputsParams, tokenizer: Tokenizer) -> GrammarConstraint:
    """The compiled grammar; the latest 64 are kept. Raises InvalidParamsError for what cannot be enforced, MissingPackageError."""
    vocabulary = vocabulary_of(tokenizer)
    key = (id(vocabulary), params)
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    made = GrammarConstraint(params, vocabulary)
    with _lock:
        _cache[key] = made
        if len(_cache) > _MAX_GRAMMARS:
            _cache.popitem(last=False)
    return made
