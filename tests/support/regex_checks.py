"""Whether a regular expression can take more than linear time at one place of a text: by its form, since Python counts no steps of `re`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_ALPHABET = [chr(code) for code in range(0x250)]


def ambiguities(pattern: re.Pattern[str]) -> list[str]:
    """What in it may read one text in several ways, each of which is tried where the rest fails.

    That is a repetition without a bound that gives back what it took, around another one, or around alternatives that begin alike.
    """
    return [*_walk(_parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG), pattern.flags, False)]


def _walk(items: Iterable[Any], flags: int, repeated: bool) -> Iterator[str]:
    for op, value in items:
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            unbounded = value[1] is sre.MAXREPEAT
            if unbounded and repeated:
                yield "a repetition inside a repetition"
            yield from _walk(value[2], flags, repeated or unbounded)
        elif op is sre.POSSESSIVE_REPEAT:
            yield from _walk(value[2], flags, False)
        elif op is sre.ATOMIC_GROUP:
            yield from _walk(value, flags, False)
        elif op is sre.SUBPATTERN:
            yield from _walk(value[3], flags, repeated)
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _walk(value[1], flags, False)
        elif op is sre.BRANCH:
            firsts = [_first(branch, flags) for branch in value[1]]
            if repeated and any(a & b for index, a in enumerate(firsts) for b in firsts[:index]):
                yield "alternatives that begin alike inside a repetition"
            for branch in value[1]:
                yield from _walk(branch, flags, repeated)


def _first(items: Any, flags: int) -> set[str]:
    """Letters with which a part can begin; all of them, where that is not plain."""
    for op, value in items:
        if op is sre.LITERAL:
            return {chr(value)}
        if op is sre.NOT_LITERAL:
            return {*_ALPHABET} - {chr(value)}
        if op is sre.ANY:
            return {*_ALPHABET} - ({"\n"} if not flags & re.DOTALL else set())
        if op is sre.IN:
            one = re.compile(_class_text(value), flags & re.ASCII)
            return {letter for letter in _ALPHABET if one.match(letter)}
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT) and value[0] > 0:
            return _first(value[2], flags)
        if op is sre.SUBPATTERN:
            return _first(value[3], flags)
        if op is not sre.ASSERT:
            break
    return {*_ALPHABET}


def _class_text(items: Any) -> str:
    categories = {
        sre.CATEGORY_DIGIT: r"\d",
        sre.CATEGORY_NOT_DIGIT: r"\D",
        sre.CATEGORY_SPACE: r"\s",
        sre.CATEGORY_NOT_SPACE: r"\S",
        sre.CATEGORY_WORD: r"\w",
        sre.CATEGORY_NOT_WORD: r"\W",
    }
    parts = []
    for op, value in items:
        if op is sre.NEGATE:
            parts.append("^")
        elif op is sre.LITERAL:
            parts.append(f"\\U{value:08x}")
        elif op is sre.RANGE:
            parts.append(f"\\U{value[0]:08x}-\\U{value[1]:08x}")
        else:
            parts.append(categories[value])
    return f"[{''.join(parts)}]"
