"""Regular expressions of JSON schemas (ECMA 262) in the syntax of the grammar library (Rust's), with the same language.

The two differ where it is easy to overlook: `.` leaves out four characters in ECMA 262 and one in Rust, `\\s` has other members, `&&` and
`[:alpha:]` mean something inside Rust's classes, and Rust knows escapes and flags that ECMA 262 does not.
"""

from __future__ import annotations

import re

#: Members of `\\s` (ECMA 262, WhiteSpace and LineTerminator).
_SPACES = r"\t\n\x0B\x0C\r\x20\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}"
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACES}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_ANY_BUT_LINE_ENDS = r"[^\n\r\x{2028}\x{2029}]"
_NO_COUNT = re.compile(r"\{,\d+\}")
_NAMED_GROUP = re.compile(r"\?P?<[A-Za-z_$][A-Za-z0-9_$]*>")
_LOOK_AROUND = re.compile(r"\?<?[=!]")
_LOW_HALF = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"\{[A-Za-z_]+(?:=[A-Za-z_0-9]+)?\}")


class PatternError(ValueError):
    """A pattern that has no equal in the library's syntax, or none at all; says why."""


def library_pattern(pattern: str) -> str:
    """The pattern in the library's syntax. Raises PatternError.

    Source: ECMA 262, section 22.2.1 (with the `u` flag, and Annex B where that says what a single `{`, `}` or `]` is).

    Examples
    --------
    >>> library_pattern(r"^a.\\d$")
    '^a[^\\\\n\\\\r\\\\x{2028}\\\\x{2029}][0-9]$'
    """
    return _Reader(pattern).read()


class _Reader:
    """One pass over a pattern. Invariant: the text before `at` is translated in `out`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.out: list[str] = []
        self.repeatable = False  # whether a quantifier may follow

    def read(self) -> str:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in "*+?{" and self._quantifier(char):
                continue
            self.at += 1
            self.repeatable = char not in "(|^"
            if char == "\\":
                self.out.append(self._escape())
            elif char == ".":
                self.out.append(_ANY_BUT_LINE_ENDS)
            elif char == "[":
                self.out.append(self._class())
            elif char == "(":
                self.out.append(self._group())
            elif char in "]{}":
                self.out.append("\\" + char)
            else:
                self.out.append(char if char in "^$|)" else _literal(ord(char)))
        return "".join(self.out)

    def _quantifier(self, char: str) -> bool:
        """Reads a quantifier, and a `?` that makes it lazy, which changes no language. False for a `{` that stands for itself."""
        found = _COUNT.match(self.text, self.at) if char == "{" else None
        if char == "{" and found is None:
            if _NO_COUNT.match(self.text, self.at):
                raise PatternError("{,n} is no quantifier of ECMA 262: write {0,n}")
            return False
        if not self.repeatable:
            raise PatternError(f"nothing stands before {char!r} at {self.at} that could repeat")
        quantifier = char if found is None else found[0]
        if found is not None and found[2] and int(found[2]) < int(found[1]):
            raise PatternError(f"{quantifier} is out of order")
        self.at += len(quantifier)
        if self.text[self.at : self.at + 1] == "?":
            self.at += 1
        self.out.append(quantifier)
        self.repeatable = False
        return True

    def _group(self) -> str:
        if not self.text.startswith("?", self.at):
            return "(?:"
        named = _NAMED_GROUP.match(self.text, self.at)
        if self.text.startswith("?:", self.at) or named:
            self.at += 2 if named is None else len(named[0])
            return "(?:"
        if _LOOK_AROUND.match(self.text, self.at):
            raise PatternError("look-ahead and look-behind are not supported")
        raise PatternError(f"({self.text[self.at : self.at + 2]} is no group of ECMA 262; flags inside a pattern are not supported")

    def _take(self, expression: str, what: str) -> str:
        found = re.compile(expression).match(self.text, self.at)
        if found is None:
            raise PatternError(f"{what} at {self.at} is not complete")
        self.at += len(found[0])
        return found[0]

    def _next(self) -> str:
        if self.at == len(self.text):
            raise PatternError("it ends in a backslash")
        self.at += 1
        return self.text[self.at - 1]

    def _escape(self) -> str:
        """What an escape outside a class stands for."""
        char = self._next()
        if char.lower() in _CLASSES:
            return f"[{'^' if char.isupper() else ''}{_CLASSES[char.lower()]}]"
        if char in "pP":
            return f"\\{char}{self._property()}"
        if char in "bB":
            raise PatternError(f"word boundaries (\\{char}) are not supported")
        if char in "123456789k":
            raise PatternError("backreferences are not supported")
        return _literal(self._character(char))

    def _property(self) -> str:
        return self._take(_PROPERTY.pattern, "a Unicode property")

    def _character(self, char: str) -> int:
        """The code point of an escape of one character."""
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "0" and not self.text[self.at : self.at + 1].isdecimal():
            return 0
        if char == "x":
            return int(self._take(r"[0-9A-Fa-f]{2}", "\\x"), 16)
        if char == "c":
            return ord(self._take(r"[A-Za-z]", "\\c")) % 32
        if char == "u":
            return self._unicode()
        if char.isascii() and char.isalnum():
            raise PatternError(f"\\{char} is no escape of ECMA 262")
        return ord(char)

    def _unicode(self) -> int:
        if self.text[self.at : self.at + 1] == "{":
            code = int(self._take(r"\{[0-9A-Fa-f]{1,6}\}", "\\u")[1:-1], 16)
        else:
            code = int(self._take(r"[0-9A-Fa-f]{4}", "\\u"), 16)
            low = _LOW_HALF.match(self.text, self.at)
            if 0xD800 <= code < 0xDC00 and low is not None:
                self.at += len(low[0])
                code = 0x10000 + ((code - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise PatternError(f"U+{code:04X} is not a character")
        return code

    def _class(self) -> str:
        """A class, from behind its `[`: each member apart, so that no two of them are an operator of Rust's."""
        start = self.at
        negated = self.text[self.at : self.at + 1] == "^"
        self.at += negated
        if self.text[self.at : self.at + 1] == "]":
            raise PatternError(f"the class at {start - 1} is empty: write \\] for a bracket inside a class")
        parts: list[str] = []
        while True:
            if self.at == len(self.text):
                raise PatternError(f"the class at {start - 1} has no end")
            if self.text[self.at] == "]":
                self.at += 1
                return f"[{'^' if negated else ''}{''.join(parts)}]"
            low = self._member()
            dash = self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", "")
            if not dash:
                parts.append(low if isinstance(low, str) else _literal(low))
                continue
            self.at += 1
            high = self._member()
            if isinstance(low, str) or isinstance(high, str):
                raise PatternError(f"a range in the class at {start - 1} begins or ends with a class")
            if high < low:
                raise PatternError(f"a range in the class at {start - 1} is out of order")
            parts.append(f"{_literal(low)}-{_literal(high)}")

    def _member(self) -> int | str:
        """A code point, or what a class inside the class stands for."""
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return ord(char)
        char = self._next()
        if char.lower() in _CLASSES:
            return f"[^{_CLASSES[char.lower()]}]" if char.isupper() else _CLASSES[char]
        if char in "pP":
            return f"\\{char}{self._property()}"
        return 8 if char == "b" else self._character(char)


def _literal(code: int) -> str:
    """A character that stands for itself, inside classes and outside."""
    if code < 128 and (chr(code).isalnum() or chr(code) == "_"):
        return chr(code)
    if code in (9, 10, 13):
        return {9: "\\t", 10: "\\n", 13: "\\r"}[code]
    if 0xD800 <= code < 0xE000:
        raise PatternError(f"U+{code:04X} is not a character")
    if code >= 160 and chr(code).isprintable():
        return chr(code)
    return f"\\{chr(code)}" if chr(code) in r"\.+*?()|[]{}^$#&-~/" else f"\\x{{{code:X}}}"
