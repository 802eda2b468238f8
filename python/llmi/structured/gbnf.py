"""GBNF, llama.cpp's notation of grammars, as Lark of the same language.

Terminals are single characters, and repetitions of a class where that is proven equal (gbnf_runs). The library's lexer takes the longest
match of a terminal, so the language would depend on where longer ones end: with `word ::= [a-z]+` as a terminal, `root ::= word "s"` has
no text.
"""

from __future__ import annotations

import re
from typing import NoReturn

from llmi.base.code_points import LAST, all_but, joined
from llmi.base.kinds import show
from llmi.structured.budget import Budget
from llmi.structured.gbnf_runs import runs_of
from llmi.structured.gbnf_tree import Chars, Choice, Named, Part, Sequence, lark_of, repeated

# A comment takes its whole line, and nothing of it is given back: a line of # signs can be read in one way alone.
_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*+)*+")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*+)*+")
_NAME = re.compile(r"[A-Za-z0-9_-]++")
_FIRST_RULE = re.compile(rf"{_BLANK_LINES.pattern}{_NAME.pattern}[ \t]*+::=")
_COUNTS = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{1,9})?[ \t]*)?\}")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt\"\\\[\]]))")
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_SURROGATES = ((0xD800, 0xDFFF),)


class GbnfError(ValueError):
    """A text that is no grammar of GBNF, with the line."""


def is_gbnf(grammar: str) -> bool:
    """Whether a grammar begins, behind comments, with a rule of GBNF."""
    return _FIRST_RULE.match(grammar) is not None


def lark_of_gbnf(grammar: str, budget: Budget) -> str:
    """The same language in Lark. Raises GbnfError, and InvalidParamsError where the budget has no steps left."""
    try:
        return _Converter(grammar, budget).lark()
    except RecursionError:
        raise GbnfError("parentheses are nested too deep") from None


class _Converter:
    """Reads the rules from left to right."""

    def __init__(self, text: str, budget: Budget) -> None:
        self._text = text
        self._budget = budget
        self._at = 0
        self._uses: dict[str, int] = {}  # where each rule is named first
        self._bodies: dict[str, Part] = {}

    def lark(self) -> str:
        """All rules."""
        self._skip(_BLANK_LINES)
        while self._at < len(self._text):
            self._rule()
            self._skip(_BLANK_LINES)
        if "root" not in self._bodies:
            raise GbnfError("it has no rule 'root'")
        for name, at in self._uses.items():
            if name not in self._bodies:
                self._at = at
                self._fail(f"the rule {show(name)} is not defined")
        names = {name: f"r{index}" for index, name in enumerate(self._bodies)}
        runs = runs_of(self._bodies)
        return f"start: {names['root']}\n" + "".join(
            f"{names[name]}: {lark_of(body, names, runs)}\n" for name, body in self._bodies.items()
        )

    def _rule(self) -> None:
        name = self._match(_NAME, "a rule's name")
        if name in self._bodies:
            self._fail(f"the rule {show(name)} is defined twice")
        self._skip(_BLANKS)
        if not self._text.startswith("::=", self._at):
            self._fail("'::=' must follow a rule's name")
        self._at += 3
        self._skip(_BLANK_LINES)
        self._bodies[name] = self._alternatives(_BLANKS)
        if self._here() not in ("", "\r", "\n"):
            self._fail(f"{show(self._here())} cannot stand here")

    def _alternatives(self, blanks: re.Pattern[str]) -> Part:
        """Up to a character that belongs to none of them. blanks: between their parts; line breaks end a rule, and not a group."""
        parts = [self._sequence(blanks)]
        while self._here() == "|":
            self._at += 1
            self._skip(_BLANK_LINES)
            parts.append(self._sequence(blanks))
        return Choice(parts) if len(parts) > 1 else parts[0]

    def _sequence(self, blanks: re.Pattern[str]) -> Part:
        parts: list[Part] = []
        while (element := self._element()) is not None:
            self._skip(blanks)
            while (times := self._times()) is not None:
                element = repeated(element, *times, self._budget)
                self._skip(blanks)
            parts.append(element)
        return parts[0] if len(parts) == 1 else Sequence(parts)

    def _element(self) -> Part | None:
        """A text, a class, any character, a group or a rule's name."""
        here = self._here()
        if here == '"':
            return self._literal()
        if here == "[":
            return self._class()
        if here == ".":
            self._at += 1
            return Chars(all_but(_SURROGATES))
        if here == "(":
            self._at += 1
            self._skip(_BLANK_LINES)
            inner = self._alternatives(_BLANK_LINES)
            if self._here() != ")":
                self._fail("')' is missing")
            self._at += 1
            return inner
        if _NAME.match(self._text, self._at):
            at = self._at
            name = self._match(_NAME, "a name")
            self._uses.setdefault(name, at)
            return Named(name)
        return None

    def _times(self) -> tuple[int, int | None] | None:
        """How often the element before is repeated."""
        here = self._here()
        if here and here in "*+?":
            self._at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[here]
        if here != "{":
            return None
        counts = _COUNTS.match(self._text, self._at)
        if counts is None:
            self._fail("a repetition is {m}, {m,} or {m,n}")
        least, comma, most = counts.groups()
        if most is not None and int(most) < int(least):
            self._fail(f"{counts.group()} ends below its beginning")
        self._at = counts.end()
        return int(least), int(most) if most is not None else None if comma else int(least)

    def _literal(self) -> Part:
        self._at += 1
        letters: list[Part] = []
        while self._here() != '"':
            code = self._char()
            letters.append(Chars(((code, code),)))
        self._at += 1
        return letters[0] if len(letters) == 1 else Sequence(letters)

    def _class(self) -> Part:
        """A class of characters; a minus sign before the end stands for itself."""
        self._at += 1
        is_negated = self._here() == "^"
        self._at += is_negated
        ranges: list[tuple[int, int]] = []
        while self._here() != "]":
            first = last = self._char()
            if self._here() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._char()
            if last < first:
                self._fail(f"the range from {show(chr(first))} to {show(chr(last))} is empty")
            ranges.append((first, last))
        if not ranges:
            self._fail("the class is empty")
        self._at += 1
        return Chars(all_but(joined([*ranges, *_SURROGATES])) if is_negated else joined(ranges))

    def _char(self) -> int:
        """The code of a character of a text or class."""
        here = self._here()
        if not here:
            self._fail("the text or class has no end")
        if here != "\\":
            self._at += 1
            return ord(here)
        escape = _ESCAPE.match(self._text, self._at)
        if escape is None:
            self._fail(
                f'{show(self._text[self._at : self._at + 2])} is no escape: known are \\n, \\r, \\t, \\", \\\\, \\[, \\], \\xHH, \\uHHHH,'
                " \\UHHHHHHHH"
            )
        *codes, plain = escape.groups()
        code = ord(_PLAIN_ESCAPES.get(plain, plain)) if plain else int(next(filter(None, codes)), 16)
        if code > LAST or 0xD800 <= code < 0xE000:
            self._fail(f"{escape.group()} is no character")
        self._at = escape.end()
        return code

    def _here(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, blanks: re.Pattern[str]) -> None:
        found = blanks.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            self._fail(f"{what} is expected, not {show(self._here())}")
        self._at = found.end()
        return found.group()

    def _fail(self, what: str) -> NoReturn:
        raise GbnfError(f"line {self._text.count(chr(10), 0, self._at) + 1}: {what}")
