"""A parser of lm-format-enforcer as a Constraint: the masks are the library's own, the states its immutable parsers."""

from __future__ import annotations

import codecs
import dataclasses
import functools
import weakref
from typing import TYPE_CHECKING, Any

from llmi.errors import ConstraintError, import_extra
from llmi.params.constraint import Constraint
from llmi.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from lmformatenforcer import CharacterLevelParser

# Any: objects of lm-format-enforcer. Its tree of a vocabulary takes a second for 50,000 tokens.
_trees: weakref.WeakKeyDictionary[Tokenizer, Any] = weakref.WeakKeyDictionary()


class _State:
    """A place in the text: its parser, and the bytes of a character that is not whole yet. Not hashable, so that nobody remembers masks by
    it."""

    __slots__ = ("parser", "pending")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, parser: CharacterLevelParser, pending: bytes = b"") -> None:
        self.parser = parser
        self.pending = pending

    def __copy__(self) -> _State:
        return self

    def __deepcopy__(self, memo: object) -> _State:
        return self


class CharacterParserConstraint(Constraint[_State]):
    """The texts of one parser. Its library finds the tokens of whole characters; those that begin or end within one are found here."""

    def __init__(self, parser: CharacterLevelParser, tokenizer: Tokenizer) -> None:
        library = import_extra("lmformatenforcer", "lm-format-enforcer")
        self._bytes, self._special = tokenizer.vocab_bytes, tokenizer.special_tokens
        whole = _whole_tokens(tokenizer)
        known = {token_id for token_id, _, _ in whole}
        self._parts = [
            token_id for token_id, spelling in enumerate(self._bytes) if spelling and token_id not in known | self._special.keys()
        ]
        tree = _trees.get(tokenizer)
        if tree is None:
            tree = _trees[tokenizer] = library.TokenEnforcerTokenizerData(whole, tokenizer.decode, [], False, len(self._bytes))
        own = getattr(parser, "config", None)
        self._enforcer = library.TokenEnforcer(tree, parser)  # which gives the parser its defaults
        if own is not None:
            parser.config = dataclasses.replace(own, alphabet=parser.config.alphabet)
        self._first = parser

    def initial_state(self) -> _State:
        """Before the first token."""
        return _State(self._first)

    def allowed(self, state: _State) -> list[int]:
        """Token ids."""
        found = [token_id for token_id in self._parts if self._after(state, token_id) is not None]
        if state.pending:
            return found
        self._enforcer.root_parser, self._enforcer.prefix_states = state.parser, {}
        return [*self._enforcer.get_allowed_tokens([]).allowed_tokens, *found]

    def advance(self, state: _State, token_id: int) -> _State:
        """The place after one more token. Raises ConstraintError for one that the parser does not take."""
        after = None if token_id in self._special else self._after(state, token_id)
        if after is None:
            raise ConstraintError(f"the {type(self._first).__name__} does not continue with token {token_id}")
        return after

    def is_final(self, state: _State) -> bool:
        """Whether the text may end here."""
        return not state.pending and bool(state.parser.can_end())

    def _after(self, state: _State, token_id: int) -> _State | None:
        """The place after a token; None if the parser does not take it."""
        text, pending = _read(state.pending + self._bytes[token_id])
        parser = state.parser
        for character in text or "":
            if character not in _characters(parser.get_allowed_characters())[0]:
                return None
            parser = parser.add_character(character)
        if text is None or (pending and pending not in _characters(parser.get_allowed_characters())[1]):
            return None
        return _State(parser, pending)


@functools.lru_cache(maxsize=1 << 16)
def _read(spelling: bytes) -> tuple[str | None, bytes]:
    """The whole characters at the beginning, and the bytes of one that is not whole; None where it is no UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(spelling), decoder.getstate()[0]
    except UnicodeDecodeError:
        return None, b""


@functools.lru_cache(maxsize=64)
def _characters(allowed: str) -> tuple[frozenset[str], frozenset[bytes]]:
    """The characters, and the beginnings of those that have several bytes."""
    several = [character.encode() for character in allowed if ord(character) > 127]
    return frozenset(allowed), frozenset(spelling[:count] for spelling in several for count in range(1, len(spelling)))


def _whole_tokens(tokenizer: Tokenizer) -> list[tuple[int, str, bool]]:
    """(id, text, whether it may be read without the tokens before it) of all tokens of whole characters, special ones left out."""
    found = []
    for token_id, spelling in enumerate(tokenizer.vocab_bytes):
        if not spelling or token_id in tokenizer.special_tokens:
            continue
        try:
            found.append((token_id, spelling.decode(), True))
        except UnicodeDecodeError:
            continue
    return found
