"""Comments, docstrings and documents are in plain English: retired phrases do not come back.

`python tests/test_plain_english.py [FOLDER ..]` lists the places. `python tests/test_plain_english.py --sample FOLDER COUNT` prints
comments, docstrings or sentences that are chosen with a fixed seed, to be read aloud; the folder docs includes README.md and CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import io
import random
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PHRASES = Path(__file__).parent / "data" / "plain_english.txt"
SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".py", ".pyi", ".md"}
#: The most hits in each folder or file. Lower a number when you have removed phrases; never raise one.
CEILINGS = {
    "csrc": 0,
    "python": 0,
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


def passages(file: Path) -> list[tuple[int, str]]:
    """The passages of a file, each with its line: a block of comment lines, a docstring, or a sentence of a document."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return list(sentences(text))
    lines: list[tuple[int, str, bool]] = []  # line, comment, whether the comment has the line to itself
    found: list[tuple[int, str]] = []
    if file.suffix in {".py", ".pyi"}:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node):
                found.append((node.body[0].lineno, str(ast.get_docstring(node))))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and not re.match(r"#!|# (fmt|noqa|type|mypy)\b", token.string):
                lines.append((token.start[0], token.string.lstrip("#: "), not token.line[: token.start[1]].strip()))
    else:
        for number, line in enumerate(text.splitlines(), 1):
            for match in re.finditer(r'"(?:\\.|[^"\\])*"|//(.*)', line):
                if match[1] and not match[1].startswith(" namespace"):
                    lines.append((number, match[1].strip(), not line[: match.start()].strip()))
    previous = (0, False)
    for number, comment, alone in lines:
        if alone and previous == (number - 1, True):
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{comment}")
        else:
            found.append((number, comment))
        previous = (number, alone)
    return sorted(found)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a document's paragraphs and list items, and the table rows of eight words or more."""
    paragraph: list[tuple[int, str]] = []

    def split() -> Iterator[tuple[int, str]]:
        words = [(number, word) for number, line in paragraph for word in line.split()]
        begin = 0
        for i, (_, word) in enumerate(words, 1):
            if i == len(words) or (re.search(r"[.!?][)*]*$", word) and re.match(r"[A-Z`*(\[]", words[i][1])):
                yield words[begin][0], " ".join(part for _, part in words[begin:i])
                begin = i
        paragraph.clear()

    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_fence = line.lstrip().startswith("```")
        in_code ^= is_fence
        is_row = line.lstrip().startswith(("|", "#", "<"))
        if is_fence or in_code or is_row or not line.strip() or re.match(r"\s*(-|\d+\.) ", line):
            yield from split()
        if is_row and len(re.findall(r"[A-Za-z]{3,}", line)) >= 8:
            yield number, line.strip()
        elif not (is_fence or in_code or is_row) and line.strip():
            paragraph.append((number, re.sub(r"^\s*(-|\d+\.) ", "", line)))
    yield from split()


def sample(top: str, count: int) -> list[str]:
    """`count` passages of a folder, chosen with a fixed seed."""
    found: list[str] = []
    for path in [ROOT / top, *([ROOT / "README.md", ROOT / "CONTRIBUTING.md"] if top == "docs" else [])]:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in SUFFIXES:
                found += [f"{file.relative_to(ROOT)}:{line}: {text}" for line, text in passages(file)]
    return random.Random(38).sample(found, count)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sample"]:
        print(*sample(sys.argv[2], int(sys.argv[3])), sep="\n\n")
        sys.exit()
    for folder in sys.argv[1:] or CEILINGS:
        places = list(hits(folder))
        print(*places, f"{folder}: {len(places)}", sep="\n")
