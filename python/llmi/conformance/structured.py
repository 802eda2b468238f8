"""Structured output: what a schema says is kept, streamed or not; what cannot be kept is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from llmi.conformance.case import case, each, expect, field, same
from llmi.conformance.errors import refused
from llmi.conformance.stream import texts
from llmi.conformance.target import Json, Target

_COLOURS = ["red", "green", "blue"]
_OBJECT = {
    "type": "object",
    "properties": {"colour": {"enum": _COLOURS}, "ok": {"type": "boolean"}},
    "required": ["colour", "ok"],
    "additionalProperties": False,
}
#: Schema, and whether a value fits.
_SCHEMAS: dict[str, tuple[Json, Callable[[Json], bool]]] = {
    "an object": (_OBJECT, lambda value: set(value) == {"colour", "ok"} and value["colour"] in _COLOURS and isinstance(value["ok"], bool)),
    "an enum": ({"enum": _COLOURS}, lambda value: value in _COLOURS),
    "a constant": ({"const": {"a": [1, None]}}, lambda value: value == {"a": [1, None]}),
    "a boolean": ({"type": "boolean"}, lambda value: isinstance(value, bool)),
    "a bounded integer": ({"type": "integer", "minimum": 3, "maximum": 12}, lambda value: type(value) is int and 3 <= value <= 12),
    "an array of fixed length": (
        {"type": "array", "items": {"enum": [0, 1]}, "minItems": 4, "maxItems": 4},
        lambda value: len(value) == 4 and set(value) <= {0, 1},
    ),
    "a pattern": ({"type": "string", "pattern": "^[a-c]{3}$"}, lambda value: re.fullmatch("[a-c]{3}", value) is not None),
    "a reference": (
        {"$defs": {"c": {"enum": _COLOURS}}, "type": "array", "items": {"$ref": "#/$defs/c"}, "minItems": 2, "maxItems": 2},
        lambda value: len(value) == 2,
    ),
    "a short text": ({"type": "string", "maxLength": 5}, lambda value: isinstance(value, str) and len(value) <= 5),
}


def _format(schema: Json) -> dict[str, Json]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}, "max_tokens": 120}


@each("structured", _SCHEMAS)
def kept(target: Target, entry: tuple[Json, Callable[[Json], bool]]) -> None:
    schema, fits = entry
    for seed in range(3):
        text = field(target.chat(**_format(schema), temperature=1.0, seed=seed), "choices.0.message.content")
        try:
            value = json.loads(text)
        except ValueError:
            expect(False, f"the answer is no JSON: {text[:120]!r}")
        expect(fits(value), f"the answer does not fit: {text[:120]!r}")


@case("structured", "streamed: the same text")
def streamed(target: Target) -> None:
    more: dict[str, Json] = {**_format(_OBJECT), "temperature": 1.0, "seed": 4}
    same(texts(target.chat_stream(**more))[0], field(target.chat(**more), "choices.0.message.content"), "the joined text")


@case("structured", "n choices fit, each of them")
def several(target: Target) -> None:
    for choice in field(target.chat(**_format({"enum": _COLOURS}), n=4, temperature=1.5, seed=2), "choices"):
        expect(json.loads(choice["message"]["content"]) in _COLOURS, f"choice {choice['index']} does not fit")


@case("structured", "a request without a schema, after one with it, is free")
def no_leak(target: Target) -> None:
    before = target.chat()["choices"][0]["message"]["content"]
    target.chat(**_format({"const": 1}))
    same(target.chat()["choices"][0]["message"]["content"], before, "the free answer")


refused(
    "structured",
    {
        "a schema that is a number": _format(5),
        "an unknown type": _format({"type": "smell"}),
        "a reference to nothing": _format({"$ref": "#/$defs/no"}),
        "a pattern that is no regular expression": _format({"type": "string", "pattern": "["}),
        "an unknown kind of format": {"response_format": {"type": "poem"}},
        "json_schema without a schema": {"response_format": {"type": "json_schema"}},
    },
)
