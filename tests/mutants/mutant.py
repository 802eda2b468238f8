"""One planted bug: the place that it changes, found by names, so that code can move and be reformatted around it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".h", ".cc", ".cpp", ".cu", ".py")


@dataclass(frozen=True)
class Mutant:
    """In the block that `anchor` names, `old` becomes `new`; `tests` must then fail.

    within: a file of the repository, or a folder whose sources are all searched: files may move and be renamed inside it.
    anchor: a word of the line that opens the block, as a rule the name of a function, a class or a constant. The block is that line and
        the lines below it that are indented more.
    old: the code to replace. Spaces and line breaks in it match any others; `…` matches anything up to the end of the statement.
        It must match at one place in all blocks of that anchor.
    new: the code to put there, as it is; "" deletes.
    tests: the files that find it, below tests/, with spaces between them.
    """

    name: str
    within: str
    anchor: str
    old: str
    new: str
    tests: str

    def files(self) -> tuple[str, ...]:
        """The tests' paths in the repository."""
        return tuple(f"tests/{name}" for name in self.tests.split())

    def find(self, root: Path) -> tuple[Path, int, int]:
        """The file below `root`, and the positions where `old` begins and ends in its text; AssertionError unless there is one place."""
        places = [(path, *place) for path in _sources(root / self.within) for place in sorted(self._places(path))]
        shown = ", ".join(f"{path.relative_to(root)}:{_text(path).count(chr(10), 0, begin) + 1}" for path, begin, _ in places)
        assert len(places) == 1, f"{self.name}: {self.old!r} is at {shown or 'no place'} in blocks of {self.anchor} in {self.within}"
        return places[0]

    def apply(self, root: Path) -> tuple[Path, str]:
        """Plants the bug; returns the file and its text without the bug."""
        path, begin, end = self.find(root)
        text = _text(path)
        path.write_text(text[:begin] + self.new + text[end:])
        return path, text

    def _places(self, path: Path) -> set[tuple[int, int]]:
        text = _text(path)
        if self.anchor not in text:
            return set()
        words = [r"\s+".join(map(re.escape, part.split())) for part in self.old.split("…")]
        pattern = re.compile("[^;]*?".join(words))
        blocks = _blocks(text, self.anchor)
        return {match.span() for begin, end in blocks for match in pattern.finditer(text, begin, end)}


@functools.cache
def _sources(within: Path) -> list[Path]:
    return sorted(path for path in within.rglob("*") if path.suffix in SUFFIXES) if within.is_dir() else [within]


@functools.cache
def _text(path: Path) -> str:
    return path.read_text()


def _blocks(text: str, anchor: str) -> list[tuple[int, int]]:
    """Where the blocks that `anchor` opens begin and end. Preprocessor lines and the line that closes a parameter list end none."""
    lines = text.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))
    word = re.compile(rf"(?<!\w){re.escape(anchor)}(?!\w)")
    blocks = []
    for first, line in enumerate(lines):
        if not word.search(line):
            continue
        last = first + 1
        while last < len(lines) and _continues(lines[last], _indent(line)):
            last += 1
        blocks.append((begins[first], begins[last]))
    return blocks


def _continues(line: str, indent: int) -> bool:
    return not line.strip() or line.startswith("#") or _indent(line) > indent or line.lstrip()[0] in ")]"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
