"""Sets of code points as ranges in order and apart, both ends included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

LAST = 0x10FFFF
Ranges: TypeAlias = tuple[tuple[int, int], ...]


def joined(found: Iterable[tuple[int, int]]) -> Ranges:
    """The code points of ranges in any order, which may overlap."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(found):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return tuple(result)


def all_but(ranges: Ranges) -> Ranges:
    """The other code points."""
    result = []
    begin = 0
    for low, high in ranges:
        if low > begin:
            result.append((begin, low - 1))
        begin = high + 1
    return (*result, (begin, LAST)) if begin <= LAST else tuple(result)
