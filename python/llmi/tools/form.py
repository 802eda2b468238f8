"""What a format of tool calls is: one description, from which the grammar and the parser come."""

from __future__ import annotations

import dataclasses
import decimal
import json
import math
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from llmi.structured.budget import Budget
from llmi.tools.functions import Function


@dataclasses.dataclass(frozen=True)
class Call:
    """A call as it was read. arguments_text: JSON."""

    name: str
    arguments: dict[str, Any]
    arguments_text: str


#: What a body turns out to be: calls, None for no call at all, or "more" where what ends a call stands inside one of its texts.
Reading = list[Call] | None | str


class Rules(Protocol):
    """Where the rules of a grammar go. budget: pays for what is more than linear in the schemas."""

    budget: Budget

    def text(self, text: str) -> str:
        """The expression of a text, which may be a special token."""
        ...

    def json(self, schema: dict[str, Any], where: str) -> str:
        """The expression of JSON that fits a schema. Raises InvalidParamsError."""
        ...

    def quoted(self, mark: str, regex: str) -> str:
        """The expression of a text that matches, with a mark on both sides, which is not in it."""
        ...

    def rule(self, body: str) -> str:
        """The name of a new rule with this body."""
        ...

    def reserve(self) -> str:
        """The name of a rule that `define` will give its body."""
        ...

    def define(self, name: str, body: str) -> None:
        """Gives a reserved rule its body."""
        ...


@dataclasses.dataclass(frozen=True)
class ToolFormat:
    """How a model writes its calls.

    Attributes
    ----------
    name : str
        As `tool_format` names it.
    opens, closes : str
        What stands around each call. Both "": the answer as a whole is calls, or a text.
    between : str
        Between two calls.
    first, last : str
        Before the first and behind the last call.
    several : bool
        Whether one answer may hold several.
    knows : function of a template's text
        Whether it writes calls in this format.
    call : function of (Function, Rules)
        How a call's body begins, a text, and the expression of its rest.
    read : function of (body, names of the tools)
        The calls that a body is.
    beginnings : function of a name
        How an answer begins that calls it, behind white space (`SPACE`); for formats whose answer is calls as a whole. `first` and what
        a call's body begins with start with one of them.
    instructions : function of the functions, optional
        The text for the system message, where templates know no tools.
    inner_marks : tuple of str
        Texts inside a call that may be special tokens.
    writes_json : bool
        Whether arguments are JSON.
    """

    name: str
    opens: str
    closes: str
    knows: Callable[[str], bool]
    call: Callable[[Function, Rules], tuple[str, str]]
    read: Callable[[str, Collection[str]], Reading]
    between: str = ""
    first: str = ""
    last: str = ""
    several: bool = True
    beginnings: Callable[[str], tuple[str, ...]] = lambda name: ()
    instructions: Callable[[list[Function]], str] | None = None
    inner_marks: tuple[str, ...] = ()
    writes_json: bool = True

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be special tokens."""
        return tuple(text for text in (self.opens, self.closes, *self.inner_marks) if text)


# --- what formats of JSON have in common


def json_call(name_key: str, arguments_key: str, before: str = "", behind: str = "") -> Callable[[Function, Rules], tuple[str, str]]:
    """The body {"name": ..., "arguments": ...}, written as templates write JSON: a space after each comma and colon."""

    def call(function: Function, rules: Rules) -> tuple[str, str]:
        head = f"{before}{{{json.dumps(name_key)}: {json.dumps(function.name)}, {json.dumps(arguments_key)}: "
        schema = {"type": "object"} if function.parameters is None else function.parameters
        return head, f"{rules.json(schema, function.where)} {rules.text('}' + behind)}"

    return call


#: Python reads and writes integers of up to this number of digits as text.
_MAX_DIGITS = sys.int_info.default_max_str_digits


class Malformed(ValueError):
    """A value that is no JSON, or JSON that Python cannot hold."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise Malformed("a key comes twice")
    return result


def json_number(digits: str) -> float | int:
    """A number with a fraction or an exponent; one over the largest float64 is an exact integer."""
    value = float(digits)
    if math.isfinite(value):
        return value
    power = int(digits.lower().partition("e")[2] or 0)
    exact = decimal.Decimal(digits) if abs(power) < _MAX_DIGITS else decimal.Decimal("Infinity")
    if not exact.is_finite() or exact.adjusted() >= _MAX_DIGITS or exact != int(exact):
        raise Malformed("a number is too large")
    return int(exact)


def _refused(word: str) -> None:
    raise Malformed(f"{word} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=json_number, parse_constant=_refused)
#: What JSON takes for white space.
SPACE = " \t\n\r"


def skip(text: str, at: int) -> int:
    """The place of the next character that is no white space."""
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def json_value(text: str, at: int) -> tuple[Any, int]:
    """(the JSON value that begins at a place, the place behind it). Raises ValueError, or RecursionError."""
    return _DECODER.raw_decode(text, at)


def read_json(body: str, names: Collection[str], keys: Mapping[str, str]) -> Reading:
    """One call {name: ..., arguments: ...}. keys: which of the two a key of the object is."""
    try:
        return _read_object(body, names, keys)
    except json.JSONDecodeError as error:
        return "more" if error.msg.startswith("Unterminated string") else None
    except (ValueError, RecursionError):
        return None


def _read_object(body: str, names: Collection[str], keys: Mapping[str, str]) -> Reading:
    at = skip(body, 0)
    found: dict[str, tuple[Any, str]] = {}
    if body[at : at + 1] != "{":
        return None
    while True:
        key, at = json_value(body, skip(body, at + 1))
        at = skip(body, at)
        if body[at : at + 1] != ":" or not isinstance(key, str) or keys.get(key) is None or keys[key] in found:
            return None
        begin = skip(body, at + 1)
        value, at = json_value(body, begin)
        found[keys[key]] = (value, body[begin:at])
        at = skip(body, at)
        if body[at : at + 1] == "}":
            break
        if body[at : at + 1] != ",":
            return None
    if skip(body, at + 1) < len(body) or set(found) != {"name", "arguments"}:
        return None
    name, (arguments, text) = found["name"][0], found["arguments"]
    if name not in names or not isinstance(arguments, dict) or not is_sound(arguments):
        return None
    return [Call(name, arguments, text)]


def is_sound(value: object) -> bool:
    """Whether JSON in UTF-8 can hold it: no half characters."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True
