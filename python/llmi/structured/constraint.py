"""A grammar as a Constraint: its states are places in the grammar's language, each with the tokens that may follow."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from llmi import _core
from llmi.errors import ConstraintError
from llmi.params.constraint import Constraint
from llmi.params.structured import StructuredOutputsParams
from llmi.structured.budget import Budget
from llmi.structured.compiling import Compilations, Deadline
from llmi.structured.grammars import compiled, refused
from llmi.structured.library import Matcher, Vocabulary, vocabulary_of
from llmi.structured.trial import LONG, SHORT, Limits, NeedsLongerError
from llmi.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Grammars that are kept, and their characters: what the library makes of a text may take thousands of times its size.
_MAX_GRAMMARS, _MAX_CHARS = 64, 256 << 10
_cache: OrderedDict[tuple[int, StructuredOutputsParams, str], GrammarConstraint] = OrderedDict()
_lock = threading.Lock()
_compilations: Compilations[GrammarConstraint] = Compilations()
_long_compilations: Compilations[GrammarConstraint] = Compilations(1)  # what takes longer waits for its own kind alone


class State:
    """A place in the language: the tokens before it, and a matcher that has read them.

    A state is a value. The first state that follows it takes its matcher, which is cheaper than a copy; another one gets a copy of the
    grammar's first matcher and reads the tokens again. The mask is filled when it is read first: a walk over a whole text needs none.
    """

    __slots__ = ("final", "mask", "matcher", "path")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, path: tuple[State, int] | None, matcher: Matcher, mask: NDArray[np.bool_] | None = None) -> None:
        self.path = path
        self.matcher: Matcher | None = matcher
        self.mask = mask  # None until it is read
        self.final = bool(matcher.is_accepting())

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

    def __init__(
        self,
        params: StructuredOutputsParams,
        vocabulary: Vocabulary,
        prelude: str = "",
        budget: Budget | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.params = params
        self._vocabulary = vocabulary
        self._first = compiled(params, vocabulary, prelude, budget, limits)
        matcher = self._first.deep_copy()
        self._first_mask = vocabulary.mask(matcher)
        if matcher.is_error() or not (self._first_mask.any() or matcher.is_accepting()):
            raise refused(f"no output matches the {params.kind}")
        if isinstance(self._first, _core.GrammarMatcher):
            self._template = self._first

    def initial_state(self) -> State:
        """Before the first token."""
        return State(None, self._first.deep_copy(), self._first_mask)

    def allowed(self, state: State) -> NDArray[np.bool_]:
        """bool [tokens of the vocabulary]. Raises ConstraintError where the library reaches a limit."""
        if state.mask is None:
            state.matcher = self._matcher_of(state)
            state.mask = self._vocabulary.mask(state.matcher)
            self._check(state.matcher, state.path)
        return state.mask

    def advance(self, state: State, token_id: int) -> State:
        """The place after one more token. Raises ConstraintError if the grammar does not allow it, or reaches a limit of the library."""
        matcher, state.matcher = self._matcher_of(state), None
        matcher.consume_token(token_id)
        path = (state, token_id)
        self._check(matcher, path)
        return State(path, matcher)

    def _matcher_of(self, state: State) -> Matcher:
        """The state's own, or another one that has read its tokens."""
        if state.matcher is not None:
            return state.matcher
        matcher = self._first.deep_copy()
        matcher.consume_tokens(state.tokens())
        return matcher

    def _check(self, matcher: Matcher, path: tuple[State, int] | None) -> None:
        if matcher.is_error():
            where = "begin" if path is None else f"go on after token {path[1]}"
            raise ConstraintError(f"the {self.params.kind} cannot {where}: {_first_line(matcher.get_error())}")

    def is_final(self, state: State) -> bool:
        """Whether the text so far is a whole of the language."""
        return state.final


def _first_line(message: str) -> str:
    return message.strip().split("\n")[0][:200] or "it gives no reason"


def grammar_constraint(
    params: StructuredOutputsParams,
    tokenizer: Tokenizer,
    prelude: str = "",
    *,
    deadline: Deadline | None = None,
    budget: Budget | None = None,
) -> GrammarConstraint:
    """The compiled grammar, behind a prelude of thinking; the latest ones are kept. budget: of the request, where it has several grammars.

    Raises InvalidParamsError for what cannot be enforced, MissingExtraError, and GrammarTimeoutError at the deadline; None waits.
    """
    vocabulary = vocabulary_of(tokenizer)
    key = (id(vocabulary), params, prelude)
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]

    def make(limits: Limits) -> GrammarConstraint:
        made = GrammarConstraint(params, vocabulary, prelude, budget, limits)
        with _lock:
            _cache[key] = made
            while len(_cache) > 1 and (len(_cache) > _MAX_GRAMMARS or sum(entry[1].num_chars for entry in _cache) > _MAX_CHARS):
                _cache.popitem(last=False)
        return made

    if deadline is None:
        return make(LONG)
    try:
        return _compilations.wait(key, lambda: make(SHORT), deadline)
    except NeedsLongerError:
        return _long_compilations.wait(key, lambda: make(LONG), deadline)
