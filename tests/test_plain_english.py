"""Comments, docstrings and documents are in plain English: retired phrases do not come back.

`python tests/test_plain_english.py [FOLDER ..]` lists the places.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PHRASES = Path(__file__).parent / "data" / "plain_english.txt"
SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".py", ".pyi", ".md"}
#: The most hits in each folder or file. Lower a number when you have removed phrases; never raise one.
CEILINGS = {
    "csrc": 37,
    "python": 8,
    "docs": 0,
    "README.md": 0,
    "CHANGELOG.md": 0,
    "CONTRIBUTING.md": 0,
    "SECURITY.md": 0,
}

pytestmark = pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not next to the tests")


def phrases() -> list[tuple[re.Pattern[str], str]]:
    """Each retired phrase, and what to write instead."""
    lines = [line for line in PHRASES.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [(re.compile(pattern, re.IGNORECASE | re.MULTILINE), instead) for pattern, instead in (line.split(" => ") for line in lines)]


def hits(top: str) -> Iterator[str]:
    """Each retired phrase in the files below a folder, or in a file."""
    path = ROOT / top
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
    for file in files:
        text = file.read_text(encoding="utf-8")
        for pattern, instead in phrases():
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{file.relative_to(ROOT)}:{line}: {match[0].strip()!r}: write {instead}"


@pytest.mark.parametrize("top", CEILINGS)
def test_retired_phrases(top: str) -> None:
    found = list(hits(top))
    more = f"{top} has {len(found)} retired phrases (tests/data/plain_english.txt), at most {CEILINGS[top]} are allowed:\n"
    assert len(found) <= CEILINGS[top], more + "\n".join(found)


def test_phrases_are_found() -> None:
    lines = ["Weights are asked for early.", "measured by turns", "of so many rows", "It lies beside the others, in place of one."]
    assert [sum(bool(pattern.search(line)) for pattern, _ in phrases()) for line in lines] == [1, 1, 1, 3]
    assert not any(pattern.search("Prefetch the next block; the caller's memory is stored on the device.") for pattern, _ in phrases())


if __name__ == "__main__":
    for folder in sys.argv[1:] or CEILINGS:
        places = list(hits(folder))
        print(*places, f"{folder}: {len(places)}", sep="\n")
