"""Regular expressions that end a text, as a program of the core (csrc/engine/stop_matcher.h).

Python's own parser of `re` reads them, so their syntax is Python's. They are not run by `re`, which may take exponential time: the core
follows all ways through them at once. What that cannot do is refused by name.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeAlias

from llmi.base.code_points import LAST, Ranges, all_but, joined
from llmi.errors import InvalidParamsError

#: Most instructions of all expressions of a request: a character visits each at most once.
MAX_INSTRUCTIONS = 1024
_MATCH, _SPLIT, _READ, _TEXT_BEGIN, _LINE_BEGIN = range(5)
_END_UNKNOWN = "where the text ends is not known while it grows: leave it out, or write the character that must follow"
_NEXT_UNKNOWN = "what follows is not known while the text grows: write the character that must follow"
_REFUSED = {
    "ASSERT": "look-ahead and look-behind are not supported",
    "ASSERT_NOT": "look-ahead and look-behind are not supported",
    "GROUPREF": "backreferences are not supported: they take exponential time",
    "GROUPREF_EXISTS": "conditions on groups are not supported",
    "ATOMIC_GROUP": "atomic groups and possessive repeats are not supported: write (?:...)",
    "POSSESSIVE_REPEAT": "atomic groups and possessive repeats are not supported: write *, + or {m,n}",
    "AT_END": f"$ is not supported: {_END_UNKNOWN}",
    "AT_END_STRING": f"\\Z is not supported: {_END_UNKNOWN}",
    "AT_BOUNDARY": f"\\b is not supported: {_NEXT_UNKNOWN}",
    "AT_NON_BOUNDARY": f"\\B is not supported: {_NEXT_UNKNOWN}",
}

_Part: TypeAlias = Any  # Any: what a node has besides its name, in a module without types
_Tree: TypeAlias = Iterable[tuple[Any, _Part]]


@functools.lru_cache(maxsize=64)
def stop_program(patterns: tuple[str, ...]) -> tuple[int, ...]:
    """The program of several expressions. Raises InvalidParamsError that names the one that is wrong."""
    program = _Program()
    for index, pattern in enumerate(patterns):
        name = "stop_regex" if len(patterns) == 1 else f"stop_regex[{index}]"
        try:
            program.add(pattern, index, is_last=index + 1 == len(patterns))
        except _PatternError as error:
            raise InvalidParamsError(f"{name} = {pattern!r:.80}: {error}", "stop_regex") from None
    return program.numbers()


class _PatternError(ValueError):
    pass


def _refuse(name: str) -> NoReturn:
    raise _PatternError(_REFUSED.get(name, f"{name.lower()} is not supported"))


class _Program:
    """Instructions in order; one that is no split and no match goes on at the next."""

    def __init__(self) -> None:
        self.code: list[list[int]] = []
        self.ranges: list[int] = []
        self._places: dict[Ranges, int] = {}

    def add(self, pattern: str, index: int, is_last: bool) -> None:
        """Adds an expression as an alternative."""
        tree = _parsed(pattern)
        branch = None if is_last else self._emit(_SPLIT)
        start = len(self.code)
        try:
            self._sequence(tree, tree.state.flags)
        except RecursionError:
            raise _PatternError("it is nested too deeply") from None
        self._emit(_MATCH, index)
        if self._matches_nothing(start):
            raise _PatternError("it matches the empty text, so it would end every output at once: let it need a character")
        if branch is not None:
            self.code[branch][1:] = [start, len(self.code)]

    def numbers(self) -> tuple[int, ...]:
        """As the core reads them."""
        return (len(self.code), *(number for instruction in self.code for number in instruction), *self.ranges)

    def _emit(self, op: int, x: int = 0, y: int = 0) -> int:
        if len(self.code) == MAX_INSTRUCTIONS:
            raise _PatternError(f"it needs more than the {MAX_INSTRUCTIONS:,} states that all of stop_regex may have: shorten its repeats")
        self.code.append([op, x, y])
        return len(self.code) - 1

    def _read(self, ranges: Ranges) -> None:
        if ranges not in self._places:
            self._places[ranges] = len(self.ranges)
            self.ranges += [bound for entry in ranges for bound in entry]
        self._emit(_READ, self._places[ranges], len(ranges))

    def _sequence(self, tree: _Tree, flags: int) -> None:
        for op, argument in tree:
            name = str(op)
            if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
                self._read(_ranges(name, argument, flags))
            elif name == "SUBPATTERN":
                _, added, removed, inner = argument
                self._sequence(inner, (flags | added) & ~removed)
            elif name == "BRANCH":
                self._branch(argument[1], flags)
            elif name in ("MAX_REPEAT", "MIN_REPEAT"):
                low, high, inner = argument
                self._repeat(low, high, inner, flags)
            elif name == "AT" and str(argument) in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
                self._emit(_LINE_BEGIN if str(argument) == "AT_BEGINNING" and flags & re.MULTILINE else _TEXT_BEGIN)
            else:
                _refuse(str(argument) if name == "AT" else name)

    def _branch(self, alternatives: list[Any], flags: int) -> None:
        jumps = []
        for alternative in alternatives[:-1]:
            split = self._emit(_SPLIT)
            self._sequence(alternative, flags)
            jumps.append(self._emit(_SPLIT))
            self.code[split][1:] = [split + 1, len(self.code)]
        self._sequence(alternatives[-1], flags)
        for jump in jumps:
            self.code[jump][1:] = [len(self.code), len(self.code)]

    def _repeat(self, low: int, high: int, inner: _Tree, flags: int) -> None:
        for _ in range(low):
            before = len(self.code)
            self._sequence(inner, flags)
            if len(self.code) == before:
                return  # of nothing
        if high == _parser().MAXREPEAT:
            split = self._emit(_SPLIT)
            self._sequence(inner, flags)
            self._emit(_SPLIT, split, split)
            self.code[split][1:] = [split + 1, len(self.code)]
            return
        splits = []
        for _ in range(high - low):
            splits.append(self._emit(_SPLIT))
            self._sequence(inner, flags)
        for split in splits:
            self.code[split][1:] = [split + 1, len(self.code)]

    def _matches_nothing(self, start: int) -> bool:
        """Whether a match is reached from `start` without a character."""
        seen: set[int] = set()
        waiting = [start]
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            op, x, y = self.code[at]
            if op == _MATCH:
                return True
            waiting += [x, y] if op == _SPLIT else [at + 1] if op != _READ else []
        return False


def _parser() -> Any:  # Any: a module without types
    """The parser of `re`, which has no public name."""
    return importlib.import_module("re._parser")


def _parsed(pattern: str) -> Any:  # Any: of that module
    try:
        return _parser().parse(pattern)
    except re.error as error:
        raise _PatternError(f"it is no regular expression of Python's: {error}") from None
    except (RecursionError, OverflowError) as error:
        raise _PatternError(f"it is nested too deeply, or repeats too often ({type(error).__name__})") from None


def _ranges(name: str, argument: _Part, flags: int) -> Ranges:
    """The characters that one place of an expression takes, ascending."""
    if name == "ANY":
        return ((0, LAST),) if flags & re.DOTALL else all_but(((10, 10),))
    if name != "IN":
        own = _folded(((argument, argument),), flags)
        return all_but(own) if name == "NOT_LITERAL" else own
    found: list[tuple[int, int]] = []
    negated = False
    for op, value in argument:
        kind = str(op)
        if kind == "NEGATE":
            negated = True
        elif kind == "LITERAL":
            found += _folded(((value, value),), flags)
        elif kind == "RANGE":
            found += _folded((tuple(value),), flags)
        elif kind == "CATEGORY":
            found += _category(str(value), bool(flags & re.ASCII))
        else:
            _refuse(kind)
    return all_but(joined(found)) if negated else joined(found)


def _points(holds: Callable[[str], Iterator[int]]) -> Ranges:
    """All code points that `holds` finds in a text, of which it gets the whole of Unicode in pieces."""
    step = 0x1000
    return joined((point, point) for begin in range(0, LAST + 1, step) for point in holds("".join(map(chr, range(begin, begin + step)))))


@functools.cache
def _category(name: str, ascii_only: bool) -> Ranges:
    """\\d, \\w, \\s and their complements, as `re` has them."""
    letter = {"CATEGORY_DIGIT": "d", "CATEGORY_SPACE": "s", "CATEGORY_WORD": "w"}.get(name.replace("_NOT_", "_"))
    if letter is None:
        _refuse(name)
    pattern = re.compile(f"\\{letter}", re.ASCII if ascii_only else 0)
    found = _points(lambda text: (ord(match[0]) for match in pattern.finditer(text)))
    return all_but(found) if "_NOT_" in name else found


@functools.cache
def _cased() -> str:
    """All letters that have another case."""
    found = _points(lambda text: (ord(char) for char in text if char.lower() != char or char.upper() != char))
    return "".join(chr(point) for low, high in found for point in range(low, high + 1))


@functools.cache
def _alike(char: str, ascii_only: bool) -> Ranges:
    """The letters that `re` takes for this one where case does not matter."""
    pattern = re.compile(re.escape(char), re.IGNORECASE | (re.ASCII if ascii_only else 0))
    return joined((ord(match[0]), ord(match[0])) for match in pattern.finditer(_cased()))


def _folded(ranges: Ranges, flags: int) -> Ranges:
    if not flags & re.IGNORECASE:
        return ranges
    ascii_only = bool(flags & re.ASCII)
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return joined([*ranges, *_alike(chr(ranges[0][0]), ascii_only)])
    inside = [char for char in _cased() if any(low <= ord(char) <= high for low, high in ranges)]
    return joined([*ranges, *(entry for char in inside for entry in _alike(char, ascii_only))])
