"""Calls of functiongemma: <start_function_call>call:f{a:1,b:<escape>x<escape>}<end_function_call>, arguments in the order of the
alphabet."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from llmi.errors import InvalidParamsError
from llmi.tools.form import Call, Malformed, Reading, Rules, ToolFormat, is_sound
from llmi.tools.functions import Function
from llmi.tools.spelling import SchemaRules, Spelling
from llmi.tools.values import NAME, Reader

ESCAPE = "<escape>"
_KEY = re.compile(r"[^:{}\[\],<>\"'\s][^:{}\[\],<>\"']*")


def _string(schema: dict[str, Any], rules: Rules, where: str) -> str:
    if wrong := next((keyword for keyword in ("pattern", "format") if keyword in schema), None):
        raise InvalidParamsError(
            f"{where}/{wrong} cannot be enforced in this format, whose strings are no JSON (strict: false takes any arguments)", "tools"
        )
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    counted = "minLength" in schema or "maxLength" in schema
    return rules.quoted(ESCAPE, f"(?s:.{{{low},{high}}})" if counted else "(?s:.*)")


def _written(text: str) -> str:
    return f"{ESCAPE}{text}{ESCAPE}"


SPELLING = Spelling(
    true="true",
    false="false",
    null="None",
    comma=",",
    colon=":",
    assign=":",
    key=str,
    write=_written,
    string=_string,
    arguments=_KEY,
    keys=_KEY,
    any_key=lambda rules: "/[A-Za-z_][A-Za-z0-9_]*/",
    is_sorted=True,
)


def _call(function: Function, rules: Rules) -> tuple[str, str]:
    return f"call:{function.name}{{", f'{SchemaRules(SPELLING, function, rules).arguments()} "}}"'


def _string_of(reader: Reader) -> str:
    reader.take(ESCAPE)
    end = reader.text.find(ESCAPE, reader.at)
    if end < 0:
        raise Malformed("a text without an end")
    text, reader.at = reader.text[reader.at : end], end + len(ESCAPE)
    return text


def _read(body: str, names: Collection[str]) -> Reading:
    if body.count(ESCAPE) % 2:
        return "more"
    reader = Reader(body, _string_of, lambda inner: inner.match(_KEY))
    try:
        reader.take("call:")
        name = reader.match(NAME)
        reader.take("{")
        arguments = reader.named("}", ":", lambda inner: inner.match(_KEY))
        if reader.peek() or name not in names or not is_sound(arguments):
            return None
    except (ValueError, RecursionError):
        return None
    return [Call(name, arguments, json.dumps(arguments, ensure_ascii=False))]


FUNCTIONGEMMA = ToolFormat(
    name="functiongemma",
    opens="<start_function_call>",
    closes="<end_function_call>",
    knows=lambda template: "<start_function_call>" in template,
    call=_call,
    writes_json=False,
    read=_read,
    inner_marks=(ESCAPE,),
)
