"""Kinds of values: what an argument may be, and its plain Python form. Nothing is rounded, cut or guessed."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import numbers
import operator
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from llmi.errors import InvalidParamsError, LlmiError, UnsupportedCombinationError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Longest list that is read from an argument, and most that is read of an iterator, which may have no end.
MAX_ENTRIES: int = 1 << 24
MAX_ITERATED = 1 << 20
FLOAT32_MAX = 3.4028234663852886e38
TOKEN_ID_LIMIT = 2**31

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


class Kind(Protocol):
    """What an argument may be."""

    def parse(self, name: str, value: object) -> Any:
        """The value in its plain form. Raises InvalidParamsError that names the argument."""
        ...


def show(value: object) -> str:
    """A value as an error shows it: short, and in any case something."""
    try:
        if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
            return f"an integer of {value.bit_length():,} bits"
        return " ".join(_short.repr(value).split())[:120]
    except Exception:
        return f"a value of type {type(value).__name__}"


def refuse(name: str, rule: str, value: object) -> InvalidParamsError:
    """The error for a value that is not what it must be."""
    return InvalidParamsError(f"{name} must be {rule}, not {show(value)}", name)


def parse(kind: Kind, name: str, value: object) -> Any:
    """kind.parse, where what goes wrong inside a foreign value (a broken iterator, a tensor elsewhere) names the argument too."""
    try:
        return kind.parse(name, value)
    except LlmiError:
        raise
    except Exception as error:
        raise InvalidParamsError(f"{name} cannot be read: {type(error).__name__}: {error}", name) from error


def plain(value: object) -> Any:
    """numpy scalars and arrays, tensors, Series and arrays as Python's own values; all else as it is."""
    if type(value) in (int, float, bool, str, list, tuple, dict, type(None)) or isinstance(value, type):
        return value
    convert = getattr(value, "tolist", None) or getattr(value, "to_list", None)
    if convert is None or isinstance(value, memoryview) or is_date(value):
        return value  # dates and durations would become plain integers
    try:
        return convert()
    except Exception:  # a tensor without values, an array of a kind that Python lacks
        return value


def is_date(value: object) -> bool:
    """Whether it is a date or a duration of numpy's, or an array of these."""
    return getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")


def dimensions(value: object) -> int | None:
    """How many axes an array has; None for what is no array."""
    ndim = getattr(value, "ndim", None)
    return ndim if isinstance(ndim, int) and not isinstance(value, type) else None


def entries_of(name: str, value: object) -> list[Any] | None:
    """The entries of a list, tuple, range, array, set or iterator, of a set in rising order; None for what is no list."""
    given = plain(value)
    if not iterable(given):
        return None
    limit = MAX_ITERATED if isinstance(given, Iterator) else MAX_ENTRIES
    try:
        entries = sorted(given) if isinstance(given, set | frozenset) else list(itertools.islice(given, limit + 1))
    except Exception as error:
        raise InvalidParamsError(f"{name} cannot be read: {type(error).__name__}: {error}", name) from error
    if len(entries) > limit:
        raise InvalidParamsError(f"{name} has more than {limit:,} entries", name)
    return entries


def iterable(value: Any) -> TypeGuard[Iterable[Any]]:  # Any: whether iter() takes it is the question
    """Whether `value` can be read as a list. Texts, bytes, mappings, tables and single values cannot."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or type(value).__name__ == "DataFrame" or dimensions(value) == 0:
        return False
    try:
        iter(value)
    except Exception:
        return False
    return True


def materialised(name: str, value: object) -> Any:
    """A value that can be read only once, as a tuple that can be read again; others unchanged."""
    return tuple(entries_of(name, value) or ()) if isinstance(value, Iterator) else value


@dataclasses.dataclass(frozen=True)
class Flag:
    """True or False: no number, no word."""

    def parse(self, name: str, value: object) -> bool:
        flag = plain(value)
        if not isinstance(flag, bool):
            raise refuse(name, "True or False", value)
        return flag


@dataclasses.dataclass(frozen=True)
class Whole:
    """An integer in [low, high], a multiple of step: no float, no bool, no digits in a string. `says` is how an error puts it."""

    low: int
    high: int
    says: str = ""
    also: str = ""  # what else an error names, such as None
    step: int = 1

    def parse(self, name: str, value: object) -> int:
        number = plain(value)
        if isinstance(number, bool) or not hasattr(type(number), "__index__"):
            raise refuse(name, self._rule(), value)
        index = operator.index(number)
        if not self.low <= index <= self.high or index % self.step:
            raise refuse(name, self._rule(), value)
        return index

    def _rule(self) -> str:
        return self.says or f"an integer in [{self.low:,}, {self.high:,}]{self.also}"


@dataclasses.dataclass(frozen=True)
class Real:
    """A finite number in [low, high], or (low, high] where open_low; `zero` is allowed besides."""

    low: float
    high: float
    says: str = ""
    open_low: bool = False
    zero: bool = False
    minus_infinity: bool = False

    def parse(self, name: str, value: object) -> float:
        given = plain(value)
        rule = self.says or f"a number in {'(' if self.open_low else '['}{self.low:g}, {self.high:g}]"
        if isinstance(given, bool) or is_date(given) or not (isinstance(given, numbers.Real) or type(given).__name__ == "Decimal"):
            raise refuse(name, rule, value)
        try:
            number = float(given)
        except (OverflowError, ValueError):
            raise refuse(name, rule, value) from None
        inside = self.low < number <= self.high if self.open_low else self.low <= number <= self.high
        if inside or (self.zero and number == 0 and given == 0) or (self.minus_infinity and number == -math.inf):
            return number
        raise refuse(name, rule, value)


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of some words. `spellings` are other engines' words for them; `unavailable_in`: other words may come later there."""

    words: tuple[str, ...]
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unavailable_in: str = ""
    says: str = ""

    def parse(self, name: str, value: object) -> str:
        word = value
        if isinstance(value, enum.Enum):  # vLLM's RequestOutputKind.DELTA
            word = value.name.lower()
        elif type(value).__module__ == "torch" and type(value).__name__ == "dtype":
            word = str(value).removeprefix("torch.")
        if isinstance(word, str):
            word = self.spellings.get(str(word), str(word))
            if word in self.words:
                return word
        error = refuse(name, self.says or "one of " + ", ".join(self.words), value)
        raise UnsupportedCombinationError(str(error), name, self.unavailable_in) if self.unavailable_in and isinstance(word, str) else error


@dataclasses.dataclass(frozen=True)
class Text:
    """A string of whole characters, of 1 to max_bytes bytes in UTF-8 (0 where empty is allowed)."""

    max_bytes: int = 64 << 20
    empty: bool = False

    def parse(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise refuse(name, "a string", value)
        text = str(value)
        try:
            size = len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise InvalidParamsError(
                f"{name} holds a lone surrogate at character {error.start}, which is no character: {show(text)}", name
            ) from None
        if size > self.max_bytes or (size == 0 and not self.empty):
            raise refuse(name, f"a string of {0 if self.empty else 1} to {self.max_bytes:,} bytes (it has {size:,})", value)
        return text


@dataclasses.dataclass(frozen=True)
class Place:
    """A path: a string or os.PathLike, not empty, without NUL."""

    def parse(self, name: str, value: object) -> str | os.PathLike[str]:
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(path, str):
            raise refuse(name, "a path", value)
        Text(1 << 16).parse(name, path)
        if "\0" in path:
            raise InvalidParamsError(f"{name} holds a NUL character, which no path has: {show(path)}", name)
        return value if isinstance(value, os.PathLike) else str(path)


@dataclasses.dataclass(frozen=True)
class Listed:
    """A list whose entries are of one kind; `single` also takes one entry without a list."""

    entry: Kind
    what: str  # of the whole, for errors: "a list of strings"
    max_len: int
    min_len: int = 0
    single: bool = False

    def parse(self, name: str, value: object) -> list[Any]:
        if self.single and self._is_single(value):
            return [self.entry.parse(name, value)]
        entries = entries_of(name, value)
        if entries is None:
            raise refuse(name, self.what, value)
        if not self.min_len <= len(entries) <= self.max_len:
            problem = "is empty" if len(entries) < self.min_len else f"has {len(entries):,} entries, at most {self.max_len:,} may be there"
            raise InvalidParamsError(f"{name} {problem}: it must be {self.what}, not {show(value)}", name)
        return [self._entry(name, index, entry) for index, entry in enumerate(entries)]

    def _is_single(self, value: object) -> bool:
        value = plain(value)
        return isinstance(value, str) or (not isinstance(value, bool) and hasattr(type(value), "__index__"))

    def _entry(self, name: str, index: int, entry: object) -> Any:
        try:
            return self.entry.parse(f"{name}[{index}]", entry)
        except InvalidParamsError as error:
            raise InvalidParamsError(f"{name} must be {self.what}: {error}", name) from None


@dataclasses.dataclass(frozen=True)
class Bias:
    """A mapping of token ids to numbers, -inf for ids that are banned."""

    max_len: int

    def parse(self, name: str, value: object) -> dict[int, float]:
        rule = "a mapping of token ids to numbers, such as {50: -1.5}"
        if not isinstance(value, Mapping):
            raise refuse(name, rule, value)
        if len(value) > self.max_len:
            raise InvalidParamsError(f"{name} has {len(value):,} entries, at most {self.max_len:,} may be there", name)
        result: dict[int, float] = {}
        for token, bias in value.items():
            try:
                index = TOKEN_ID.parse(f"a key of {name}", token)
                result[index] = BIAS.parse(f"{name}[{index}]", bias)
            except InvalidParamsError as error:
                error.parameter = name
                raise
        return result


@dataclasses.dataclass(frozen=True)
class Object:
    """An object that can do something."""

    says: str
    accepts: Callable[[object], bool]

    def parse(self, name: str, value: object) -> Any:
        if not self.accepts(value):
            raise refuse(name, self.says, value)
        return value


@dataclasses.dataclass(frozen=True)
class Objects:
    """Objects that can do something, as a tuple; one alone is a tuple of one, None an empty one."""

    says: str
    accepts: Callable[[object], bool]

    def parse(self, name: str, value: object) -> tuple[Any, ...]:
        if value is None:
            return ()
        if not isinstance(value, list | tuple) and self.accepts(value):  # transformers' lists of hooks can be called, too
            return (value,)
        entries = entries_of(name, value)
        if entries is None:
            raise refuse(name, f"a list of {self.says}", value)
        for index, entry in enumerate(entries):
            if not self.accepts(entry):
                raise InvalidParamsError(f"{name}[{index}] must be {self.says}, not {show(entry)}", name)
        return tuple(entries)


@dataclasses.dataclass(frozen=True)
class Maybe:
    """None, or a value of a kind; `none` are values that mean None."""

    kind: Kind
    none: tuple[object, ...] = ()

    def parse(self, name: str, value: object) -> Any:
        if value is None:
            return None
        parsed = self.kind.parse(name, value)
        return None if parsed in self.none else parsed


@dataclasses.dataclass(frozen=True)
class Neutral:
    """A value of a kind; None is the one that changes nothing, as in transformers."""

    kind: Kind
    neutral: object

    def parse(self, name: str, value: object) -> Any:
        return self.neutral if value is None else self.kind.parse(name, value)


@dataclasses.dataclass(frozen=True)
class Either:
    """A value of the first kind that takes it; `says` is how an error puts it."""

    kinds: tuple[Kind, ...]
    says: str

    def parse(self, name: str, value: object) -> Any:
        value = materialised(name, value)  # each kind reads it
        for kind in self.kinds:
            try:
                return kind.parse(name, value)
            except InvalidParamsError as error:
                last = error
        raise refuse(name, self.says, value) from last


TOKEN_ID: Whole = Whole(0, TOKEN_ID_LIMIT - 1, "a token id, an integer in [0, 2^31)")
TOKEN_IDS: Listed = Listed(TOKEN_ID, "a list of token ids", MAX_ENTRIES)
BIAS = Real(-FLOAT32_MAX, FLOAT32_MAX, "a finite number or -inf", minus_infinity=True)


def callable_object(value: object) -> bool:
    """Whether it can be called and is no class, which somebody forgot to make an instance of."""
    return callable(value) and not isinstance(value, type)


def array_of(name: str, value: object) -> NDArray[np.generic]:
    """A numpy array of it. Raises InvalidParamsError for bytes and for what numpy makes no array of."""
    import numpy as np  # noqa: PLC0415 (a heavy package)

    if isinstance(value, bytes | bytearray | memoryview):
        raise refuse(name, "an array of numbers", value)
    try:
        return np.asarray(value)
    except Exception as error:
        raise InvalidParamsError(f"{name} must be an array of numbers: {type(error).__name__}: {error}", name) from None
