"""Strings that remember where each of their characters came from, so that what a user wrote is never taken for a template's markup.

It runs in the process that renders templates. `Traced` has the value, and under `origin` one letter for each character:
"t" the template's own text, "c" content (what a message, a tool or a document says), "a" what an assistant's message says, "f" content of
the final message, which an answer continues, "u" unknown: content and template, mixed by an operation that does not say how. Operations
give the same text as those of str; where they also move characters, the letters move with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import SupportsIndex

TEMPLATE, CONTENT, ASSISTANT, FINAL, UNKNOWN = "t", "c", "a", "f", "u"
OBJECT = "o"  # no letter of a character: what is neither text nor a list or dict, and may hold content
ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}")
NO_ADDRESS = "the template prints an object's address, which differs from run to run"
_PLAIN = (int, float, bool, type(None))


class Traced(str):
    """A str with the origin of its characters."""

    __slots__ = ("origin",)
    origin: str

    def __new__(cls, text: str, origin: str | None = None) -> Traced:
        self = super().__new__(cls, text)
        self.origin = UNKNOWN * len(text) if origin is None else origin
        return self

    def __str__(self) -> str:
        return self

    def __iter__(self) -> Iterator[str]:
        return (Traced(character, letter) for character, letter in zip(str.__str__(self), self.origin, strict=True))

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        return Traced(super().__getitem__(key), self.origin[key])

    def __add__(self, other: str) -> str:
        return join((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return join((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> Traced:
        return Traced(str.__mul__(self, count), self.origin * count)

    __rmul__ = __mul__

    def __mod__(self, values: object) -> str:
        return percent(self, values)

    def __rmod__(self, template: object) -> str:
        return percent(template, self) if isinstance(template, str) else NotImplemented

    # --- methods whose results are parts of the text

    def _cut(self, start: int, stop: int) -> Traced:
        return Traced(str.__getitem__(self, slice(start, stop)), self.origin[start:stop])

    def strip(self, characters: str | None = None) -> Traced:
        left = len(self) - len(str.lstrip(self, characters))
        return self._cut(left, left + len(str.strip(self, characters)))

    def lstrip(self, characters: str | None = None) -> Traced:
        return self._cut(len(self) - len(str.lstrip(self, characters)), len(self))

    def rstrip(self, characters: str | None = None) -> Traced:
        return self._cut(0, len(str.rstrip(self, characters)))

    def removeprefix(self, prefix: str) -> Traced:
        return self._cut(len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str) -> Traced:
        return self._cut(0, len(str.removesuffix(self, suffix)))

    def _locate(self, parts: list[str]) -> list[str]:
        """Parts of the text from left to right, with what stands between them left out."""
        located: list[str] = []
        position = 0
        for part in parts:
            start = str.find(self, part, position)
            position = start + len(part)
            located.append(self._cut(start, position))
        return located

    def split(self, separator: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        if separator is None:
            return self._locate(str.split(self, None, maxsplit))
        located: list[str] = []
        position = 0
        for part in str.split(self, separator, maxsplit):
            located.append(self._cut(position, position + len(part)))
            position += len(part) + len(separator)
        return located

    def rsplit(self, separator: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        located: list[str] = []
        end = len(self)
        for part in reversed(str.rsplit(self, separator, maxsplit)):
            start = str.rfind(self, part, 0, end) if separator is None else end - len(part)
            located.append(self._cut(start, start + len(part)))
            end = start - (0 if separator is None else len(separator))
        return located[::-1]

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines: list[str] = []
        position = 0
        for line, whole in zip(str.splitlines(self, keepends), str.splitlines(self, True), strict=True):
            lines.append(self._cut(position, position + len(line)))
            position += len(whole)
        return lines

    def partition(self, separator: str) -> tuple[str, str, str]:
        before, middle, _ = str.partition(self, separator)
        ends = (0, len(before), len(before) + len(middle), len(self))
        return self._cut(ends[0], ends[1]), self._cut(ends[1], ends[2]), self._cut(ends[2], ends[3])

    def rpartition(self, separator: str) -> tuple[str, str, str]:
        before, middle, _ = str.rpartition(self, separator)
        ends = (0, len(before), len(before) + len(middle), len(self))
        return self._cut(ends[0], ends[1]), self._cut(ends[1], ends[2]), self._cut(ends[2], ends[3])

    # --- methods that put texts together

    def join(self, parts: Iterable[str]) -> str:
        return join_with(self, list(parts))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        text = str.replace(self, old, new, count)
        if not old:
            return Traced(text, mixed((self, new)) * len(text))
        return traced(new).join(self.split(old, count))

    def _changed(self, text: str) -> Traced:
        """Operations that change characters one by one, or the whole."""
        return Traced(text, self.origin if len(text) == len(self) else mixed((self,)) * len(text))


def _changing(name: str) -> Callable[..., Traced]:
    method = getattr(str, name)
    return lambda self, *args, **kwargs: self._changed(method(self, *args, **kwargs))


def _opaque(name: str) -> Callable[..., Traced]:
    method = getattr(str, name)

    def call(self: Traced, *args: object, **kwargs: object) -> Traced:
        text = method(self, *args, **kwargs)
        before = text.find(self)  # what widens a text has it inside
        if before < 0 or name == "translate":
            return Traced(text, mixed((self, *args)) * len(text))
        around = mixed(args) if letters_in(args) else TEMPLATE
        return Traced(text, around * before + self.origin + around * (len(text) - len(self) - before))

    return call


for _name in ("upper", "lower", "title", "capitalize", "swapcase", "casefold"):
    setattr(Traced, _name, _changing(_name))
for _name in ("center", "ljust", "rjust", "zfill", "expandtabs", "translate"):
    setattr(Traced, _name, _opaque(_name))


def origin_of(text: str) -> str:
    """The letters of a text. A text without letters is the template's."""
    return text.origin if isinstance(text, Traced) else TEMPLATE * len(text)


def traced(text: str) -> Traced:
    """`text` with its letters."""
    return text if isinstance(text, Traced) else Traced(text, TEMPLATE * len(text))


def mixed(values: Iterable[object]) -> str:
    """The letter of what was made of `values` in an unknown way."""
    letters = {CONTENT if letter == OBJECT else letter for value in values for letter in letters_in(value)}
    if letters == {ASSISTANT}:
        return ASSISTANT
    return UNKNOWN if UNKNOWN in letters or (TEMPLATE in letters and letters & {CONTENT, ASSISTANT, FINAL}) else CONTENT


def letters_in(value: object) -> set[str]:
    """The letters of all traced strings in a value, and OBJECT where something cannot be looked into."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, Traced):
            found |= set(entry.origin)
        elif isinstance(entry, Mapping):
            waiting += [*entry.keys(), *entry.values()]
        elif isinstance(entry, list | tuple):
            waiting += entry
        elif not isinstance(entry, (str, *_PLAIN)) and type(entry).__name__ != "Undefined":
            found.add(OBJECT)
    return found


def holds(value: object, wanted: object) -> bool:
    """Whether `wanted` itself is in a value made of lists and dicts."""
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if entry is wanted:
            return True
        if isinstance(entry, Mapping):
            waiting += entry.values()
        elif isinstance(entry, list | tuple):
            waiting += entry
    return False


def join(parts: Iterable[str]) -> str:
    """The parts one after another; a plain str if none of them is traced."""
    parts = list(parts)
    text = "".join(parts)
    if not any(isinstance(part, Traced) for part in parts):
        return text
    return Traced(text, "".join([origin_of(part) for part in parts]))


def as_text(value: object) -> str:
    """str(value); a text that shows content is content."""
    if isinstance(value, str):
        return value
    text = str(value)
    if isinstance(text, Traced) or isinstance(value, _PLAIN):
        return text
    letters = letters_in(value)
    if OBJECT in letters and ADDRESS.search(text):
        raise ValueError(NO_ADDRESS)
    return Traced(text, mixed((value,)) * len(text)) if letters else text


def join_with(separator: str, parts: list[str]) -> str:
    """separator.join(parts)"""
    if isinstance(separator, Traced) or any(isinstance(part, Traced) for part in parts):
        return join([piece for part in parts for piece in (separator, part)][1:])
    return separator.join(parts)


_FIELD = re.compile(r"%(?:\((\w+)\))?s|%%")


def percent(template: str, values: object) -> str:
    """template % values."""
    text = str.__mod__(template, values)
    if not (isinstance(template, Traced) or letters_in(values)):
        return text
    parts: list[str] = []
    whole, position = traced(template), 0
    waiting = iter(values if isinstance(values, tuple) else (values,))
    for match in _FIELD.finditer(template):
        parts.append(whole[position : match.start()])
        if match.group() == "%%":
            parts.append(whole[match.start() : match.start() + 1])
        else:
            value = values.get(match.group(1)) if match.group(1) and isinstance(values, Mapping) else next(waiting, "")
            parts.append(as_text(value))
        position = match.end()
    return agreed(text, join([*parts, whole[position:]]))


def agreed(text: str, modelled: str) -> Traced:
    """`text` with the letters of `modelled`, if they are of the same text."""
    return Traced(text, origin_of(modelled) if str.__eq__(text, modelled) else UNKNOWN * len(text))
