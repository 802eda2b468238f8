"""The grammar library, llguidance: found, checked, and given a tokenizer's vocabulary.

It is an extra (`pip install 'llmi[structured]'`). Before it is used, its version must be in the tested range, and three grammars with
known answers must have these answers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import threading
import weakref
from collections.abc import Callable, Container
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from llmi import _core
from llmi.base.log import log
from llmi.errors import EngineError, LlmiError, import_extra
from llmi.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from llmi.base.lazy_numpy import np


class Matcher(Protocol):
    """A place in a grammar's language, of the library. Its methods do not raise: `is_error` says that one failed."""

    def deep_copy(self) -> Matcher:
        """Another one at this place."""

    def consume_token(self, token: int, /) -> bool:
        """Reads one more token."""

    def consume_tokens(self, tokens: list[int], /) -> bool:
        """Reads several."""

    def is_error(self) -> bool:
        """Whether something has failed; it stays so."""

    def get_error(self) -> str:
        """The first failure, in words."""

    def is_accepting(self) -> bool:
        """Whether the text may end here."""

    def unsafe_compute_mask_ptr(self, address: int, num_bytes: int, /) -> None:
        """Writes the mask of the next token, a bit for each."""


#: Tested versions: from the first to below the second.
VERSIONS = ((1, 7, 0), (1, 10, 0))
_lock = threading.Lock()
_vocabularies: weakref.WeakKeyDictionary[Tokenizer, Vocabulary] = weakref.WeakKeyDictionary()


@functools.cache
def load() -> ModuleType:
    """The library's Python methods. Raises MissingExtraError without it, EngineError for another version or for wrong answers."""
    llguidance: ModuleType = import_extra("llguidance", "structured")
    version = version_text()
    low, high = (".".join(map(str, bound)) for bound in VERSIONS)
    if not VERSIONS[0] <= _numbers(version) < VERSIONS[1]:
        raise EngineError(f"llguidance {version} is outside the tested versions, {low} to below {high}: pip install 'llmi[structured]'")
    vocabulary = _bytes_vocabulary()
    compiled = llguidance.LLTokenizer(vocabulary, n_vocab=258, eos_token=[257])
    _check_answers(llguidance, vocabulary, lambda grammar: llguidance.LLMatcher(compiled, grammar, log_level=0))
    return llguidance


def version_text() -> str:
    """The installed version, which tokens depend on (docs/numerics.md)."""
    return importlib.metadata.version("llguidance")


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")
    return tuple(int(part) if part.isdecimal() else 0 for part in parts[:3])


class Writer:
    """How a tokenizer writes texts. Special tokens never come inside a text."""

    def __init__(self, tokens: list[bytes], special: Container[int], encode: Callable[[str], list[int]] | None) -> None:
        self._tokens = tokens
        self._encode = encode
        self._plain = {token: index for index, token in reversed([*enumerate(tokens)]) if token and index not in special}
        self._longest = max(map(len, self._plain), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """A text as the tokenizer writes it; where it adds a space or cannot read the bytes, the longest token at each place."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        if self._encode is not None:
            with contextlib.suppress(UnicodeDecodeError, LlmiError):
                ids = self._encode(data.decode())
                if b"".join(self._tokens[token] for token in ids) == data:
                    return ids
        return self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(data):
            fits = (size for size in range(min(self._longest, len(data) - at), 0, -1) if data[at : at + size] in self._plain)
            size = next(fits, 0)
            if size == 0:
                break  # the library takes what was written, and allows by bytes from there
            ids.append(self._plain[data[at : at + size]])
            at += size
        return ids


class Vocabulary:
    """A tokenizer as the library needs it: the bytes of each token, which are special, which end a text, and how a text is written.

    Special tokens never come inside a text. A tokenizer without an end gets one of its own, an id after the last that the model lacks.
    Where a grammar forces bytes, the library allows the token with which the tokenizer itself would write them.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(
        self, tokens: list[bytes], special: dict[int, str], ends: list[int], encode: Callable[[str], list[int]] | None = None
    ) -> None:
        self.num_tokens = len(tokens)
        self._write = Writer(tokens, special, encode)
        self.tokens = [b"\xff" + special[index].encode() if index in special else token for index, token in enumerate(tokens)]
        self.special = {text: index for index, text in special.items()}
        self.special_token_ids = sorted(special)
        self.ends = ends
        if not ends:
            self.ends = [len(tokens)]
            self.tokens.append(b"\xff<end>")
            self.special_token_ids.append(len(tokens))
        self.eos_token_id = self.ends[0]

    def __call__(self, text: bytes | str) -> list[int]:
        """A text in tokens (Writer)."""
        return self._write(text)

    @functools.cached_property
    def compiled(self) -> object:
        """The library's own tokenizer, for its Python methods; made in about a second."""
        return load().LLTokenizer(self, n_vocab=len(self.tokens), eos_token=self.ends)

    @functools.cached_property
    def core(self) -> _core.GrammarVocabulary | None:
        """The same behind the C interface; None where that is not used."""
        library = core_library()
        return None if library is None else _core.GrammarVocabulary(library, self.tokens, self.ends, self._write)

    def matcher(self, grammar: str, name: str = "grammar") -> Matcher:
        """A matcher at the beginning of a grammar's language. name: of the grammar, for errors."""
        load()
        if self.core is not None:
            return _core.GrammarMatcher(self.core, grammar, name)
        made: Matcher = load().LLMatcher(self.compiled, grammar, log_level=0)
        return made

    def warnings(self, grammar: str) -> list[str]:
        """What the grammar's compiler leaves out of account, in words."""
        if self.core is not None:
            return [line.removeprefix("WARNING: ") for line in self.core.warnings(grammar).splitlines() if line]
        left_out: list[str] = load().LLMatcher(self.compiled, grammar, log_level=0).get_grammar_warnings()
        return left_out

    def mask(self, matcher: Matcher) -> NDArray[np.bool_]:
        """What the matcher allows next, but for the ends: bool [num_tokens], a new array. The caller asks the matcher for errors."""
        words = np.zeros((len(self.tokens) + 31) // 32, np.int32)
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: self.num_tokens]
        allowed = bits.view(np.bool_)
        allowed[[token for token in self.ends if token < self.num_tokens]] = False
        return allowed


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """A tokenizer's vocabulary in the library; made once."""
    load()
    with _lock:
        if tokenizer not in _vocabularies:
            special, ends = dict(tokenizer.special_tokens), sorted(tokenizer.eos_token_ids)
            _vocabularies[tokenizer] = Vocabulary(list(tokenizer.vocab_bytes), special, ends, _encoder(tokenizer))
        return _vocabularies[tokenizer]


def _encoder(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """The tokenizer's way to write a text, without keeping the tokenizer alive."""
    held = weakref.ref(tokenizer)

    def encode(text: str) -> list[int]:
        alive = held()
        if alive is None:
            raise EngineError("the tokenizer is gone")
        return alive.encode(text, add_special_tokens=False)

    return encode


@functools.cache
def core_library() -> _core.GrammarLibrary | None:
    """The library's C interface, which the core's threads call without Python.

    It must be of the installed version, have the functions that the core calls, and give the answers of the Python methods. Otherwise it is
    None, and the log says why, once: the Python methods are then used in its place.
    """
    library = load()
    try:
        opened = _core.GrammarLibrary(import_extra("llguidance._lib", "structured").__file__)
        if opened.version and f"llguidance@{version_text()} " not in f"{opened.version} ":
            raise EngineError(f"its file says {opened.version}, the package {version_text()}")
        vocabulary = _bytes_vocabulary()
        core = _core.GrammarVocabulary(opened, vocabulary.tokens, vocabulary.ends, vocabulary)
        _check_answers(library, vocabulary, lambda grammar: _core.GrammarMatcher(core, grammar, "grammar"))
        forced = _core.GrammarMatcher(core, str(library.LLMatcher.grammar_from_regex("x(abab)z")), "regex").forced(9)
        if forced != [ord("x"), 256, 256, ord("z")]:
            raise EngineError(f"it forces {forced}")
    except (LlmiError, _core.CoreError) as error:
        log.warning("structured_outputs: llguidance is called through Python, since its C interface cannot be used: %s", error)
        return None
    return opened


def _bytes_vocabulary() -> Vocabulary:
    """Single bytes, "ab", and an end."""
    return Vocabulary([*(bytes([byte]) for byte in range(256)), b"ab"], {}, [])


def _check_answers(library: ModuleType, vocabulary: Vocabulary, make: Callable[[str], Matcher]) -> None:
    """Three grammars over single bytes, whose first masks and ends are known. Raises EngineError."""
    matcher = library.LLMatcher
    cases = [
        (matcher.grammar_from_regex("(ab|b)c"), [], {ord("a"), ord("b"), 256}, False),
        (matcher.grammar_from_lark('start: "x" "y"?'), [ord("x")], {ord("y")}, True),
        (matcher.grammar_from_json_schema('{"enum": [12, 3]}'), [ord("1")], {ord("2")}, False),
    ]
    for grammar, path, allowed, final in cases:
        state = make(grammar)
        state.consume_tokens(path)
        found = set(np.flatnonzero(vocabulary.mask(state)).tolist())
        if state.is_error() or found != allowed or state.is_accepting() != final:
            raise EngineError(f"llguidance {version_text()} gives another answer than tested versions: it is not used")
