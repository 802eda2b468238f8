"""Calls of functiongemma, <start_function_call>call:f{a:1,b:<escape>x<escape>}<end_function_call>, and of Gemma 4, which has other marks;
arguments in the order of the alphabet."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, Final

from llmi.errors import InvalidParamsError
from llmi.tools.form import Call, Malformed, Reading, Rules, ToolFormat, is_sound
from llmi.tools.functions import Function
from llmi.tools.spelling import SchemaRules, Spelling
from llmi.tools.values import NAME, Reader

_KEY: Final = re.compile(r"[^:{}\[\],<>\"'\s][^:{}\[\],<>\"']*")


def _spelling(mark: str) -> Spelling:
    """mark: what stands around a string."""

    def string(schema: dict[str, Any], rules: Rules, where: str) -> str:
        if wrong := next((keyword for keyword in ("pattern", "format") if keyword in schema), None):
            raise InvalidParamsError(
                f"{where}/{wrong} cannot be enforced in this format, whose strings are no JSON (strict: false takes any arguments)", "tools"
            )
        low, high = schema.get("minLength", 0), schema.get("maxLength", "")
        counted = "minLength" in schema or "maxLength" in schema
        return rules.quoted(mark, f"(?s:.{{{low},{high}}})" if counted else "(?s:.*)")

    return Spelling(
        true="true",
        false="false",
        null="None",
        comma=",",
        colon=":",
        assign=":",
        key=str,
        write=lambda text: f"{mark}{text}{mark}",
        string=string,
        arguments=_KEY,
        keys=_KEY,
        any_key=lambda rules: "/[A-Za-z_][A-Za-z0-9_]*/",
        is_sorted=True,
    )


def _format(name: str, opens: str, closes: str, mark: str, spelling: Spelling) -> ToolFormat:
    def call(function: Function, rules: Rules) -> tuple[str, str]:
        return f"call:{function.name}{{", f'{SchemaRules(spelling, function, rules).arguments()} "}}"'

    def string_of(reader: Reader) -> str:
        reader.take(mark)
        end = reader.text.find(mark, reader.at)
        if end < 0:
            raise Malformed("a text without an end")
        text, reader.at = reader.text[reader.at : end], end + len(mark)
        return text

    def read(body: str, names: Collection[str]) -> Reading:
        if body.count(mark) % 2:
            return "more"
        reader = Reader(body, string_of, lambda inner: inner.match(_KEY))
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

    return ToolFormat(
        name=name,
        opens=opens,
        closes=closes,
        knows=lambda template: opens in template,
        call=call,
        writes_json=False,
        read=read,
        inner_marks=(mark,),
    )


ESCAPE: Final = "<escape>"
SPELLING: Final = _spelling(ESCAPE)
FUNCTIONGEMMA: Final = _format("functiongemma", "<start_function_call>", "<end_function_call>", ESCAPE, SPELLING)
_QUOTE: Final = '<|"|>'
GEMMA4_SPELLING: Final = _spelling(_QUOTE)
GEMMA4: Final = _format("gemma4", "<|tool_call>", "<tool_call|>", _QUOTE, GEMMA4_SPELLING)
