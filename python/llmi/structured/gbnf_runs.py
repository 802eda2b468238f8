"""Which repetitions of a class may be one terminal, which takes the longest match, without a change of the language.

Each class of the grammar is a position. `follow` holds all pairs of positions that may stand next to each other in a text, by the rules
without regard to where a rule was called from: more pairs than there are, and never fewer. Two positions meet if the same beginning of a
text may end at both.

The characters that position q repeats may be one terminal if, wherever q may come next, no other position that may come next has a
character with the same first byte, and q follows itself by its own repetition alone. Then all readings of a text that enter q enter it at
the same character and leave it at the first one outside of its class: the longest match is the only one. (Bytes, since the lexer reads
bytes: it reads a byte that may begin one more character of the class, and does not return.)
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator

from llmi.structured.gbnf_tree import Chars, Choice, Named, Part, Sequence, Times

_MOST_POSITIONS = 400
_MOST_PAIRS = 200_000  # of positions that are read, so that the work is bounded
_MOST_STEPS = 100_000  # before them: parts that are read, times the rounds, and neighbours


@dataclasses.dataclass
class _Ends:
    """What a part may begin and end with, and whether it may be empty."""

    empty: bool
    first: frozenset[Chars]
    last: frozenset[Chars]


_NOTHING = _Ends(False, frozenset(), frozenset())


class _TooLargeError(Exception):
    """The grammar takes too many steps."""


def runs_of(rules: dict[str, Part]) -> set[Chars]:
    """The classes whose repetitions may be one terminal: none, where the grammar is too large to tell."""
    parts = [*_parts(rules.values())]
    candidates = {chars: part for part in parts if isinstance(part, Times) for chars in _repeated(part)}
    if not candidates or sum(isinstance(part, Chars) for part in parts) > _MOST_POSITIONS:
        return set()
    try:
        follow = _Follow(rules)
    except _TooLargeError:
        return set()
    runs = {chars for chars, times in candidates.items() if follow.sources[chars, chars] <= {times}}
    return follow.without_meetings(runs)


class _Follow:
    """The pairs of neighbours. sources: of each pair, the parts of the grammar that make them neighbours."""

    def __init__(self, rules: dict[str, Part]) -> None:
        self._ends = dict.fromkeys(rules, _NOTHING)
        self._left = _MOST_STEPS
        self._notes = False
        self.sources: defaultdict[tuple[Chars, Chars], set[Part]] = defaultdict(set)
        while (ends := {name: self._of(part) for name, part in rules.items()}) != self._ends:
            self._ends = ends
        self._notes = True  # once, when all ends are known
        for part in rules.values():
            self._of(part)
        self._next: defaultdict[Chars | None, set[Chars]] = defaultdict(set)
        for first, second in self.sources:
            self._next[first].add(second)
        self._next[None] |= self._ends["root"].first

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TooLargeError

    def _of(self, part: Part) -> _Ends:
        """Ends of a part; its neighbours are noted on the way, if wanted."""
        self._spend(1)
        if isinstance(part, Chars):
            return _Ends(False, frozenset({part}), frozenset({part}))
        if isinstance(part, Named):
            return self._ends[part.name]
        if isinstance(part, Times):
            inner = self._of(part.part)
            self._join(inner, inner, part)
            return inner if part.least else dataclasses.replace(inner, empty=True)
        if isinstance(part, Choice):
            all_ends = [self._of(entry) for entry in part.parts]
            self._spend(sum(len(ends.first) + len(ends.last) for ends in all_ends) // 8)
            first, last = (frozenset().union(*(getattr(ends, name) for ends in all_ends)) for name in ("first", "last"))
            return _Ends(any(ends.empty for ends in all_ends), first, last)
        whole = _Ends(True, frozenset(), frozenset())
        for entry in part.parts:
            ends = self._of(entry)
            self._join(whole, ends, part)
            self._spend((len(whole.first) + len(whole.last)) // 8)
            first = whole.first | ends.first if whole.empty else whole.first
            last = whole.last | ends.last if ends.empty else ends.last
            whole = _Ends(whole.empty and ends.empty, first, last)
        return whole

    def _join(self, before: _Ends, behind: _Ends, source: Part) -> None:
        if not self._notes:
            return
        self._spend(len(before.last) * len(behind.first))
        for last in before.last:
            for first in behind.first:
                self.sources[last, first].add(source)

    def without_meetings(self, runs: set[Chars]) -> set[Chars]:
        """The runs that no other position may take the place of."""
        runs = set(runs)
        waiting: list[tuple[Chars | None, Chars | None]] = [(None, None)]
        seen = {*waiting}
        num_pairs = 0
        while waiting:
            one, other = waiting.pop()
            for first in self._next[one]:
                for second in self._next[other]:
                    num_pairs += 1 + (len(first.codes) + len(second.codes)) // 16
                    if num_pairs > _MOST_PAIRS:
                        return set()
                    if first is not second and first.begins_like(second):
                        runs -= {first, second}
                    if first.meets(second) and (first, second) not in seen:
                        seen.add((first, second))
                        waiting.append((first, second))
        return runs


def _parts(parts: Iterable[Part]) -> Iterator[Part]:
    """These parts and all in them, each in front of what is in it."""
    waiting = [*parts][::-1]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += [part.part] if isinstance(part, Times) else part.parts[::-1] if isinstance(part, (Sequence, Choice)) else []


def _repeated(times: Times) -> Iterator[Chars]:
    """The classes that a repetition repeats as they are, or, without a bound, as one of its choices."""
    if times.most is not None and times.most < 2:
        return
    part = times.part
    if isinstance(part, Chars):
        yield part
    elif isinstance(part, Choice) and times.most is None and times.least < 2:
        yield from (entry for entry in part.parts if isinstance(entry, Chars))
