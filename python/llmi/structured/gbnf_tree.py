"""Expressions of a GBNF grammar, and how Lark writes them."""

from __future__ import annotations

import dataclasses
import functools
from typing import TypeAlias

from llmi.base.code_points import Ranges
from llmi.structured.budget import Budget

_MOST_WRITTEN_OUT = 16


@dataclasses.dataclass(eq=False)
class Chars:
    """One character of a class, at one place of the grammar."""

    codes: Ranges

    def meets(self, other: Chars) -> bool:
        """Whether a character is of both classes."""
        return _overlap(self.codes, other.codes)

    def begins_like(self, other: Chars) -> bool:
        """Whether characters of both begin with the same byte in UTF-8."""
        return not self._leads.isdisjoint(other._leads)

    @functools.cached_property
    def _leads(self) -> frozenset[int]:
        return frozenset(byte for low, high in self.codes for byte in range(_lead(low), _lead(high) + 1))

    def pattern(self) -> str:
        """The class as a regular expression."""
        return "[" + "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in self.codes) + "]"


@dataclasses.dataclass(eq=False)
class Named:
    """What a rule says."""

    name: str


@dataclasses.dataclass(eq=False)
class Sequence:
    """All parts, in order."""

    parts: list[Part]


@dataclasses.dataclass(eq=False)
class Choice:
    """One of the parts."""

    parts: list[Part]


@dataclasses.dataclass(eq=False)
class Times:
    """A part, repeated. most: None for any number."""

    part: Part
    least: int
    most: int | None


Part: TypeAlias = Chars | Named | Sequence | Choice | Times


def _lead(code: int) -> int:
    """The first byte of a character in UTF-8."""
    return code if code < 0x80 else 0xC0 | code >> 6 if code < 0x800 else 0xE0 | code >> 12 if code < 0x10000 else 0xF0 | code >> 18


def _overlap(own: Ranges, other: Ranges) -> bool:
    """Whether two lists of ranges, each in order, share a number."""
    i = j = 0
    while i < len(own) and j < len(other):
        if own[i][1] < other[j][0]:
            i += 1
        elif other[j][1] < own[i][0]:
            j += 1
        else:
            return True
    return False


def repeated(part: Part, least: int, most: int | None, budget: Budget) -> Part:
    """A part, repeated. A small count of a class is written out: each place then has neighbours of its own (gbnf_runs)."""
    if isinstance(part, Chars) and least == most and least <= _MOST_WRITTEN_OUT:
        budget.spend(least * (1 + len(part.codes)))
        return Sequence([Chars(part.codes) for _ in range(least)])
    return Times(part, least, most)


def lark_of(part: Part, names: dict[str, str], runs: set[Chars]) -> str:
    """A part in Lark. names: of the rules; runs: classes whose repetitions are one terminal (gbnf_runs)."""
    if isinstance(part, Chars):
        return f"/{part.pattern()}{'+' if part in runs else ''}/"
    if isinstance(part, Named):
        return names[part.name]
    if isinstance(part, Times):
        counts = f"{{{part.least},{'' if part.most is None else part.most}}}"
        if isinstance(part.part, Chars) and part.part in runs:
            run = f"/{part.part.pattern()}{{{max(part.least, 1)},{'' if part.most is None else part.most}}}/"
            return run if part.least else f"({run})?"
        return f"({lark_of(part.part, names, runs)}){counts}"
    inner = [lark_of(entry, names, runs) for entry in part.parts]
    if isinstance(part, Sequence):
        return " ".join(inner) or '""'
    return f"({' | '.join(inner)})"
