"""The grammar of an answer and its parser agree, byte by byte: a call can be written in each format, and none that no schema allows."""

from __future__ import annotations

import functools
import json
from typing import Any

import jsonschema
import pytest

from llmi import StructuredOutputsParams
from llmi.structured.budget import Budget
from llmi.structured.grammars import compiled
from llmi.structured.thinking import Thinking
from llmi.tools import ToolStream
from llmi.tools.chat import FORMATS
from llmi.tools.functiongemma import GEMMA4_SPELLING
from llmi.tools.functiongemma import SPELLING as FUNCTIONGEMMA
from llmi.tools.functions import Choice, functions_of
from llmi.tools.grammar import answer_grammar
from llmi.tools.pythonic import SPELLING as PYTHONIC
from llmi.tools.stream import AnswerFormat
from schema_suite import accepts, byte_vocabulary

FORM = {form.name: form for form in FORMATS}
ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": ADD}} for name in ("add", "add.all", "x")]
NAMES = frozenset({"add", "add.all", "x"})
CALLS = {
    "hermes": '<tool_call>\n{{"name": "{}", "arguments": {{"{}": {}}}}}\n</tool_call>',
    "generic": '<tool_call>\n{{"name": "{}", "arguments": {{"{}": {}}}}}\n</tool_call>',
    "llama3_json": '{{"name": "{}", "parameters": {{"{}": {}}}}}',
    "pythonic": "[{}({}={})]",
    "functiongemma": "<start_function_call>call:{}{{{}:{}}}<end_function_call>",
    "gemma4": "<|tool_call>call:{}{{{}:{}}}<tool_call|>",
}


@functools.cache
def matcher_of(name: str, choice: str, think: str = "") -> Any:
    grammar = answer_grammar(FORM[name], functions_of(TOOLS), Choice(choice), True, {}, Budget("the tools"), think)
    return compiled(StructuredOutputsParams(grammar=grammar), byte_vocabulary())


def calls_in(name: str, text: str, thinking: Thinking | None = None) -> list[tuple[str, dict[str, Any]]]:
    stream = ToolStream(AnswerFormat(FORM[name], NAMES, thinking), 1, 0)
    stream.feed(text)
    stream.finish()
    return [(call.name, call.arguments) for call in stream.calls]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_call_can_be_written(name: str, choice: str) -> None:
    for function in NAMES:
        text = CALLS[name].format(function, "a", 7)
        assert accepts(matcher_of(name, choice), text), text
        assert calls_in(name, text) == [(function, {"a": 7})]


@pytest.mark.parametrize("name", CALLS)
def test_text_can_be_written(name: str) -> None:
    for text in (
        "",
        "hi",
        " \n",
        "[",
        "[ad",
        "[add",
        "[1, 2]",
        "[other(a=1)]",
        "{",
        '{"name": "Bob"}',
        "<tool",
        "a [add(a=1)] b",
        "\u3000x",
    ):
        assert accepts(matcher_of(name, "auto"), text), text
        assert not accepts(matcher_of(name, "required"), text), text


@pytest.mark.parametrize("name", CALLS)
def test_what_is_read_as_a_call_keeps_to_the_schema(name: str) -> None:
    """White space before a call, arguments that do not fit, and several calls."""
    num_taken = 0
    for space in ("", " ", "\n", " \r\n\t ", "\u3000", "\x0b"):
        for key, value in (("a", 7), ("a", 100), ("b", 1), ("a", '"oops"'), ("a", 1.5)):
            one = CALLS[name].format("add", key, value)
            for text in (one, one + "\n" + one, one[:-1] + ", x(b=1)]", one + " "):
                if not accepts(matcher_of(name, "auto"), space + text):
                    continue
                found = calls_in(name, space + text)
                num_taken += bool(found)
                for _, arguments in found:
                    jsonschema.validate(arguments, ADD)
    assert num_taken >= 4


@pytest.mark.parametrize("name", CALLS)
def test_reasoning_is_told_apart_by_both(name: str) -> None:
    """A free text does not begin as reasoning does, which would hide what comes behind it from the grammar."""
    thinking = Thinking("<think>", "</think>")
    wrong = CALLS[name].format("add", "b", json.dumps("oops"))
    for space in ("", " ", "\n\n", "\u3000"):
        text = f"{space}<think>so</think>{wrong}"
        assert not accepts(matcher_of(name, "auto", "<think>"), text) or calls_in(name, text, thinking) == []


#: Schemas of arguments, with arguments that fit and others that do not.
SCHEMAS: list[tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]] = [
    ({"required": ["z"], "additionalProperties": {"type": "boolean"}}, [{"z": True}], [{}, {"z": 1}]),
    (
        {"properties": {"a": {"enum": [1]}}, "required": ["z"], "additionalProperties": {"type": "boolean"}},
        [{"z": True}, {"a": 1, "z": False}],
        [{"a": 1}, {"z": 1}],
    ),
    (
        {"properties": {"o": {"required": ["z"], "additionalProperties": {"type": "null"}}}},
        [{}, {"o": {"z": None}}],
        [{"o": {}}, {"o": {"z": 1}}],
    ),
    ({"properties": {"a": {"type": "string", "enum": ["x", 1]}}, "required": ["a"]}, [{"a": "x"}], [{"a": 1}]),
    (
        {"properties": {"a": {"type": "integer", "enum": [1, 2.5, "x", True]}}, "required": ["a"]},
        [{"a": 1}],
        [{"a": 2.5}, {"a": "x"}, {"a": True}],
    ),
    (
        {"properties": {"a": {"type": ["null", "number"], "enum": [None, 2.5, "x", False]}}},
        [{"a": None}, {"a": 2.5}],
        [{"a": "x"}, {"a": False}],
    ),
]


@pytest.mark.parametrize("name", ["pythonic", "functiongemma", "gemma4"])
@pytest.mark.parametrize("schema, right, wrong", SCHEMAS, ids=range(len(SCHEMAS)))
def test_notations_enforce_what_a_schema_says(
    name: str, schema: dict[str, Any], right: list[dict[str, Any]], wrong: list[dict[str, Any]]
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **schema}}}
    matcher = compiled(
        StructuredOutputsParams(
            grammar=answer_grammar(FORM[name], functions_of([tool]), Choice("required"), True, {}, Budget("the tools"))
        ),
        byte_vocabulary(),
    )
    spelling = {"pythonic": PYTHONIC, "functiongemma": FUNCTIONGEMMA, "gemma4": GEMMA4_SPELLING}[name]
    for arguments, is_right in [(entry, True) for entry in right] + [(entry, False) for entry in wrong]:
        written = spelling.comma.join(f"{key}{spelling.assign}{spelling.written(value)}" for key, value in arguments.items())
        text = f"[f({written})]" if name == "pythonic" else f"{FORM[name].opens}call:f{{{written}}}{FORM[name].closes}"
        assert accepts(matcher, text) == is_right, text
        assert jsonschema.Draft202012Validator(schema).is_valid(arguments) == is_right
