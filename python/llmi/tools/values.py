"""Reads values in the notations of Python and of functiongemma."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from llmi.tools.form import Malformed, json_value, skip

_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_WORD = re.compile(r"[A-Za-z]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_STRING = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
NAME = re.compile(r"[A-Za-z0-9_.:/-]+")
MAX_DEPTH = 200


class Reader:
    """A place in a text, which moves behind what is read. All methods raise ValueError for what they do not find."""

    def __init__(self, text: str, string: Callable[[Reader], str] | None = None, key: Callable[[Reader], str] | None = None) -> None:
        self.text = text
        self.at = 0
        self._string = string or python_string
        self._key = key or self._string
        self._depth = 0

    def peek(self) -> str:
        """The next character behind white space; "" at the end."""
        self.at = skip(self.text, self.at)
        return self.text[self.at : self.at + 1]

    def take(self, text: str) -> None:
        """Reads this text, behind white space."""
        self.peek()
        if not self.text.startswith(text, self.at):
            raise Malformed(f"no {text!r}")
        self.at += len(text)

    def match(self, pattern: re.Pattern[str]) -> str:
        """Reads what a pattern matches, behind white space."""
        self.peek()
        found = pattern.match(self.text, self.at)
        if found is None:
            raise Malformed("another character")
        self.at = found.end()
        return found.group()

    def entries(self, end: str, entry: Callable[[], None]) -> None:
        """Reads entries with commas between them, and the end."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Malformed("nested too deep")
        if self.peek() != end:
            entry()
            while self.peek() == ",":
                self.take(",")
                entry()
        self.take(end)
        self._depth -= 1

    def named(self, end: str, colon: str, key: Callable[[Reader], str]) -> dict[str, Any]:
        """Reads entries with keys, each once."""
        result: dict[str, Any] = {}

        def entry() -> None:
            name = key(self)
            self.take(colon)
            if name in result:
                raise Malformed("a key comes twice")
            result[name] = self.value()

        self.entries(end, entry)
        return result

    def value(self) -> Any:
        """Reads a value."""
        first = self.peek()
        if first == "[":
            self.take("[")
            result: list[Any] = []
            self.entries("]", lambda: result.append(self.value()))
            return result
        if first == "{":
            self.take("{")
            return self.named("}", ":", self._key)
        if first in "-0123456789" and first:
            return json_value(self.match(_NUMBER), 0)[0]
        if first.isalpha():
            word = self.match(_WORD)
            if word not in _WORDS:
                raise Malformed("an unknown word")
            return _WORDS[word]
        return self._string(self)


def python_string(reader: Reader) -> str:
    """Reads a string of JSON, or else of Python."""
    literal = reader.match(_STRING)
    if literal[0] == '"':
        try:
            return str(json.loads(literal))
        except ValueError:
            pass
    try:
        return str(ast.literal_eval(literal))
    except (SyntaxError, ValueError) as error:
        raise Malformed(str(error)) from None
