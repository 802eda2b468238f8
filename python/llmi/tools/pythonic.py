"""Calls in the notation of Python: [f(a=1), g(b="x")]. The answer as a whole is a list of calls, or a text.

Values are written as Python writes them, strings with double quotes and JSON's escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from llmi.tools.form import Call, Reading, Rules, ToolFormat, is_sound
from llmi.tools.functions import Function
from llmi.tools.spelling import SchemaRules, Spelling
from llmi.tools.values import NAME, Reader

_CALLED = re.compile(r"\[(\w++)\(")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")


def _string(schema: dict[str, Any], rules: Rules, where: str) -> str:
    return rules.json({**schema, "type": "string"}, where)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


SPELLING = Spelling(
    true="True",
    false="False",
    null="None",
    comma=", ",
    colon=": ",
    assign="=",
    key=_quoted,
    write=_quoted,
    string=_string,
    arguments=_IDENTIFIER,
    keys=re.compile("(?s:.*)"),
    any_key=lambda rules: rules.json({"type": "string"}, "tools"),
)


def _call(function: Function, rules: Rules) -> tuple[str, str]:
    return f"{function.name}(", f'{SchemaRules(SPELLING, function, rules).arguments()} ")"'


def _read(body: str, names: Collection[str]) -> Reading:
    calls: list[Call] = []
    reader = Reader(body)

    def one() -> None:
        name = reader.match(NAME)
        reader.take("(")
        arguments = reader.named(")", "=", lambda inner: inner.match(_IDENTIFIER))
        calls.append(Call(name, arguments, json.dumps(arguments, ensure_ascii=False)))

    try:
        reader.take("[")
        reader.entries("]", one)
        is_whole = reader.peek() == ""
    except (ValueError, RecursionError):
        return None
    return calls if is_whole and calls and all(call.name in names and is_sound(call.arguments) for call in calls) else None


PYTHONIC = ToolFormat(
    name="pythonic",
    opens="",
    closes="",
    first="[",
    last="]",
    between=", ",
    knows=lambda template: any("func" in found[1] for found in _CALLED.finditer(template)),
    call=_call,
    writes_json=False,
    read=_read,
    beginnings=lambda name: (f"[{name}(",),
)
