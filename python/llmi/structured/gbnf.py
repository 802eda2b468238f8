"""GBNF, llama.cpp's notation of grammars, as Lark of the same language.

Every terminal is one character. The library's lexer takes the longest match of a terminal, so the language would depend on where longer
ones end: with `word ::= [a-z]+` as a terminal, `root ::= word "s"` has no text.
"""

from __future__ import annotations

import re
from typing import NoReturn

from llmi.base.kinds import show
from llmi.structured.lark_text import literal

_BLANKS = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_FIRST_RULE = re.compile(rf"{_BLANK_LINES.pattern}{_NAME.pattern}[ \t]*::=")
_COUNTS = re.compile(r"\{[ \t]*([0-9]{1,9})[ \t]*(?:(,)[ \t]*([0-9]{1,9})?[ \t]*)?\}")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt\"\\\[\]]))")
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_LAST_CODE = 0x10FFFF


class GbnfError(ValueError):
    """A text that is no grammar of GBNF, with the line."""


def is_gbnf(grammar: str) -> bool:
    """Whether a grammar begins, behind comments, with a rule of GBNF."""
    return _FIRST_RULE.match(grammar) is not None


def lark_of_gbnf(grammar: str) -> str:
    """The same language in Lark. Raises GbnfError."""
    try:
        return _Converter(grammar).lark()
    except RecursionError:
        raise GbnfError("parentheses are nested too deep") from None


class _Converter:
    """Reads the rules from left to right. Each method that reads an expression returns it in Lark."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._uses: dict[str, int] = {}  # where each rule is named first
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}  # of the rules in Lark

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
        return f"start: {self._named('root')}\n" + "".join(f"{self._named(name)}: {body}\n" for name, body in self._bodies.items())

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

    def _alternatives(self, blanks: re.Pattern[str]) -> str:
        """Up to a character that belongs to none of them. blanks: between their parts; line breaks end a rule, and not a group."""
        parts = [self._sequence(blanks)]
        while self._here() == "|":
            self._at += 1
            self._skip(_BLANK_LINES)
            parts.append(self._sequence(blanks))
        return " | ".join(parts)

    def _sequence(self, blanks: re.Pattern[str]) -> str:
        parts: list[str] = []
        while (element := self._element()) is not None:
            self._skip(blanks)
            while (times := self._times()) is not None:
                element = f"({element}){times}"
                self._skip(blanks)
            parts.append(element)
        return " ".join(parts) or '""'

    def _element(self) -> str | None:
        """A text, a class, any character, a group or a rule's name."""
        here = self._here()
        if here == '"':
            return self._literal()
        if here == "[":
            return self._class()
        if here == ".":
            self._at += 1
            return "/(?s:.)/"
        if here == "(":
            self._at += 1
            self._skip(_BLANK_LINES)
            inner = self._alternatives(_BLANK_LINES)
            if self._here() != ")":
                self._fail("')' is missing")
            self._at += 1
            return f"({inner})"
        if _NAME.match(self._text, self._at):
            at = self._at
            name = self._match(_NAME, "a name")
            self._uses.setdefault(name, at)
            return self._named(name)
        return None

    def _times(self) -> str | None:
        """How often the element before is repeated."""
        here = self._here()
        if here and here in "*+?":
            self._at += 1
            return here
        if here != "{":
            return None
        counts = _COUNTS.match(self._text, self._at)
        if counts is None:
            self._fail("a repetition is {m}, {m,} or {m,n}")
        least, comma, most = counts.groups()
        if most is not None and int(most) < int(least):
            self._fail(f"{counts.group()} ends below its beginning")
        self._at = counts.end()
        return f"{{{int(least)}{comma or ''}{'' if most is None else int(most)}}}"

    def _literal(self) -> str:
        """A text, each character a terminal."""
        self._at += 1
        letters: list[str] = []
        while self._here() != '"':
            letters.append(literal(chr(self._char())))
        self._at += 1
        return f"({' '.join(letters)})" if letters else '""'

    def _class(self) -> str:
        """A class of characters; a minus sign before the end stands for itself."""
        self._at += 1
        is_negated = self._here() == "^"
        self._at += is_negated
        ranges: list[str] = []
        while self._here() != "]":
            first = last = self._char()
            if self._here() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._char()
            if last < first:
                self._fail(f"the range from {show(chr(first))} to {show(chr(last))} is empty")
            ranges.append(f"\\x{{{first:x}}}-\\x{{{last:x}}}")
        if not ranges:
            self._fail("the class is empty")
        self._at += 1
        return f"/[{'^' * is_negated}{''.join(ranges)}]/"

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
                f'{show(self._text[self._at : self._at + 2])} is no escape: known are \\n, \\r, \\t, \\", \\\\, \\[, \\], \\xHH, \\uHHHH, \\UHHHHHHHH'
            )
        *codes, plain = escape.groups()
        code = ord(_PLAIN_ESCAPES.get(plain, plain)) if plain else int(next(filter(None, codes)), 16)
        if code > _LAST_CODE or 0xD800 <= code < 0xE000:
            self._fail(f"{escape.group()} is no character")
        self._at = escape.end()
        return code

    def _named(self, name: str) -> str:
        return self._names.setdefault(name, f"r{len(self._names)}")

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
