"""Reads C++ as far as the tests of the code's shape need it: braces, functions, parameters. No compiler is asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def without_comments(text: str) -> str:
    """The code without comments, preprocessor lines and the contents of strings; each line keeps its number."""
    text = re.sub(r"(?<!\d)'(?=\d)", "", text)
    text = re.sub(
        r'//[^\n]*|/\*(?:.|\n)*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
        lambda match: _blank(match) if match[0][0] == "/" else '""',
        text,
    )
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", _blank, text, flags=re.MULTILINE)


def closing(text: str, opening: int) -> int:
    """The place of the bracket that closes the one at `opening`, which is "(", "[" or "{"."""
    left, right = text[opening], {"(": ")", "[": "]", "{": "}"}[text[opening]]
    depth = 0
    for place in range(opening, len(text)):
        depth += (text[place] == left) - (text[place] == right)
        if depth == 0:
            return place
    raise AssertionError(f"a {left} is never closed")


@dataclass
class Function:
    name: str  # that of the function around it first: "Run.lambda"
    line: int
    num_lines: int  # from the line with the name to that of the closing brace
    num_parameters: int


_HEAD = re.compile(r"(?P<name>~?\w+|\boperator\s*(?:\(\)|[^\s\w(]+))\s*\(|(?P<lambda>\])\s*[({]")
_NO_FUNCTIONS = {"if", "for", "while", "switch", "catch", "constexpr", "return", "sizeof", "decltype", "alignas", "requires", "noexcept"}
_QUALIFIERS = re.compile(
    r"(?:\s|\bconst\b|\bmutable\b|\bnoexcept\b|\boverride\b|\bfinal\b|&)*(?:->\s*[\w:<>,&*\s]+?)?\s*(?=\{|(?<!:):(?!:))"
)


def num_parameters(text: str) -> int:
    """How many parameters a list of them declares."""
    text = re.sub(r"->|<=|>=", "", text)
    depth, count = 0, 1 if text.strip() not in ("", "void") else 0
    for character in text:
        depth += (character in "(<[{") - (character in ")>]}")
        count += character == "," and depth == 0
    return count


def _after_initialisers(text: str, place: int) -> int | None:
    """The place of the body after a constructor's initialisers, which begin at `place`; None if it is something else."""
    initialiser = re.compile(r"\s*[\w:]+(?:<[^;{}]*?>)?(?:\.\.\.)?\s*(?=[({])")
    while found := initialiser.match(text, place):
        place = closing(text, found.end()) + 1
        while text[place : place + 1] in (" ", "\n", "."):
            place += 1
        if text[place : place + 1] == "{":
            return place
        if text[place : place + 1] != ",":
            return None
        place += 1
    return None


def functions(text: str) -> Iterator[Function]:
    """Each function and lambda that `text`, which has no comments, defines."""
    place = 0
    around: list[tuple[int, str]] = []  # where the functions around this place end, and their names
    while head := _HEAD.search(text, place):
        place = head.end()
        name = head["name"] or "lambda"
        if name in _NO_FUNCTIONS:
            continue
        parameters, body = "", head.end() - 1
        if text[body] == "(":
            end = closing(text, body)
            parameters = text[body + 1 : end]
            found = _QUALIFIERS.match(text, end + 1)
            if found is None:
                continue
            body = found.end()
            if text[body] == ":":
                after = _after_initialisers(text, body + 1)
                if after is None:
                    continue
                body = after
        end = closing(text, body)
        around = [outer for outer in around if outer[0] > end]
        name = f"{around[-1][1]}.{name}" if around else name
        around.append((end, name))
        first = text.count("\n", 0, head.start()) + 1
        yield Function(name, first, text.count("\n", 0, end) + 2 - first, num_parameters(parameters))
        place = body + 1
