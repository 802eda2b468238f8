"""The parser of answers: what is a call, what is text, and that it does not matter how the text is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from llmi import LLM
from llmi.structured.thinking import Thinking
from llmi.tools import ToolStream
from llmi.tools.chat import FORMATS
from llmi.tools.form import json_number
from llmi.tools.stream import AnswerFormat
from tool_answers import NAMES, THINKS, TOOLS, changed, parts_of, sampled, variants

FORM = {form.name: form for form in FORMATS}
HERMES = AnswerFormat(FORM["hermes"], frozenset({"f", "g"}), THINKS)
GEMMA4 = AnswerFormat(FORM["gemma4"], frozenset({"f", "g"}), Thinking("<|channel>", "<channel|>", "thought"))
GEMMA, LLAMA, PYTHON = (AnswerFormat(FORM[name], frozenset({"f", "g"})) for name in ("functiongemma", "llama3_json", "pythonic"))
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize("name", FORM)
def test_sampled_answers_are_read_and_fit(tiny: LLM, name: str) -> None:
    """Under its own grammar every answer that comes to its end is calls, whose arguments fit; no split changes a parse."""
    rng = random.Random(3)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {"maxProperties": 0}) for tool in TOOLS}
    texts = sampled(tiny, name, 16, TOOLS[:2])
    num_read = 0
    for text in texts:
        _, _, calls = parts_of(ToolStream(AnswerFormat(FORM[name], NAMES), 1, 0), (text,))
        for _, called, arguments in calls:
            jsonschema.validate(json.loads(arguments), schemas[called])
        num_read += bool(calls)
    assert num_read >= 12
    for text in texts[:2]:
        for variant in list(variants(text[:70], rng))[:3]:
            assert changed(AnswerFormat(FORM[name], NAMES, THINKS), variant) == []


# (format, text, content, reasoning, [(name, arguments)])
CASES: list[tuple[AnswerFormat, str, str, str, list[tuple[str, Any]]]] = [
    (HERMES, "hello \n", "hello \n", "", []),
    (HERMES, "", "", "", []),
    (HERMES, CALL, "", "", [("f", {"a": 1})]),
    (HERMES, f"I look. \n{CALL}\n{CALL}\n", "I look.", "", [("f", {"a": 1})] * 2),
    (HERMES, f"{CALL} done", "done", "", [("f", {"a": 1})]),
    (HERMES, '<tool_call>{"arguments":{},"name":"g"}</tool_call>', "", "", [("g", {})]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>', "", "", [("f", {"a": "</tool_call>"})]),
    (HERMES, '<tool_call>{"name": "h", "arguments": {}}</tool_call>', '<tool_call>{"name": "h", "arguments": {}}</tool_call>', "", []),
    (HERMES, f"<tool_call>oops</tool_call>\n{CALL}", "<tool_call>oops</tool_call>", "", [("f", {"a": 1})]),
    (HERMES, f"x {CALL[:-3]}", f"x {CALL[:-3]}", "", []),
    (HERMES, f"{CALL}\n {CALL[:20]}", CALL[:20], "", [("f", {"a": 1})]),
    (HERMES, "a <tool_cal", "a <tool_cal", "", []),
    (HERMES, "<think>\nhm <tool_call>\n</think>\n\nhi", "hi", "hm <tool_call>", []),
    (HERMES, f"<think>\nhm\n</think>\n\n{CALL}", "", "hm", [("f", {"a": 1})]),
    (HERMES, "<think>and so on ", "", "and so on ", []),
    (HERMES, " <thin", " <thin", "", []),
    (HERMES, "a <think>b</think>", "a <think>b</think>", "", []),
    (AnswerFormat(None, frozenset(), Thinking("[THINK]", "[/THINK]"), True), "so\n[/THINK]yes", "yes", "so", []),
    (GEMMA4, "<|channel>thought\nso\n<channel|>yes", "yes", "so", []),
    (GEMMA4, "<|channel>thou<channel|>yes", "yes", "thou", []),
    (
        GEMMA4,
        '<|channel>x<channel|><|tool_call>call:f{a:<|"|>b}<tool_call|><|"|>,c:[1]}<tool_call|>',
        "",
        "x",
        [("f", {"a": "b}<tool_call|>", "c": [1]})],
    ),
    (LLAMA, '{"name": "f", "parameters": {"a": [1, 2]}}', "", "", [("f", {"a": [1, 2]})]),
    (LLAMA, '{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}', "", []),
    (LLAMA, '{"name": "f", "parameters": {}} x', '{"name": "f", "parameters": {}} x', "", []),
    (LLAMA, '{"name": "f", "par', '{"name": "f", "par', "", []),
    (PYTHON, '[f(a=1, b="x\\n", c=[True, None]), g()]', "", "", [("f", {"a": 1, "b": "x\n", "c": [True, None]}), ("g", {})]),
    (PYTHON, "[f(a='it\\'s', b={\"k\": -1.5e3})]", "", "", [("f", {"a": "it's", "b": {"k": -1500.0}})]),
    (PYTHON, "[f(a=1, a=2)]", "[f(a=1, a=2)]", "", []),
    (PYTHON, "[f(a=b)]", "[f(a=b)]", "", []),
    (PYTHON, "[h(a=1)]", "[h(a=1)]", "", []),
    (PYTHON, "[f(a=1), h()]", "[f(a=1), h()]", "", []),
    (
        GEMMA,
        "<start_function_call>call:f{a:<escape>}<end_function_call><escape>,b:[1,true]}<end_function_call>",
        "",
        "",
        [("f", {"a": "}<end_function_call>", "b": [1, True]})],
    ),
    (GEMMA, "<start_function_call>call:f{a:{x:1,y:<escape><escape>}}<end_function_call>", "", "", [("f", {"a": {"x": 1, "y": ""}})]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"a": -2e521}}</tool_call>', "", "", [("f", {"a": -2 * 10**521})]),
    (LLAMA, '{"name": "f", "parameters": {"a": [1.25E+310, 9.0]}}', "", "", [("f", {"a": [125 * 10**308, 9.0]})]),
    (PYTHON, "[f(a=2e521)]", "", "", [("f", {"a": 2 * 10**521})]),
    (GEMMA, "<start_function_call>call:f{a:2E521}<end_function_call>", "", "", [("f", {"a": 2 * 10**521})]),
    (GEMMA, "<start_function_call>call:f{a:1<end_function_call>", "<start_function_call>call:f{a:1<end_function_call>", "", []),
]


@pytest.mark.parametrize("format, text, content, reasoning, calls", CASES, ids=range(len(CASES)))
def test_parts(format: AnswerFormat, text: str, content: str, reasoning: str, calls: list[tuple[str, Any]]) -> None:
    found = parts_of(ToolStream(format, 7, 2), (text,))
    assert found[:2] == (content, reasoning)
    stream = ToolStream(format, 7, 2)
    stream.feed(text)
    stream.finish()
    assert [(call.name, call.arguments) for call in stream.calls] == calls
    assert [(name, json.loads(arguments, parse_float=json_number)) for _, name, arguments in found[2]] == calls
    if len(text) < 80:
        assert changed(format, text) == []


HOSTILE = [
    '{"a": 1, "a": 2}',
    '{"a": {"b": 1, "b": 1}}',
    '{"a": NaN}',
    '{"a": 1e99999}',
    '{"a": -1e999999999999}',
    '{"a": -Infinity}',
    '{"a": "\\ud800"}',
    '{"a": 01}',
    "[1]",
    "null",
    '{"a": ' + "9" * 5000 + "}",
    '{"a": ' + "[" * 100_000,
    '{"a": ' + "[" * 3000 + "]" * 3000 + "}",
    '{"a": "x',
    '{"a": "\n"}',
    "{\"a\": 'x'}",
    "{a: 1}",
    "",
]


@pytest.mark.parametrize("arguments", HOSTILE, ids=range(len(HOSTILE)))
def test_malformed_arguments_are_text(arguments: str) -> None:
    """No text of a model raises, and none is lost."""
    for format, text in (
        (HERMES, f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'),
        (LLAMA, f'{{"name": "f", "parameters": {arguments}}}'),
        (PYTHON, f"[f(a={arguments}, a=1)]"),
        (GEMMA, f"<start_function_call>call:f{{a:{arguments},a:1}}<end_function_call>"),
    ):
        assert parts_of(ToolStream(format, 0, 0), (text,)) == (text, "", [])


def test_ids_depend_on_prompt_seed_sample_and_place() -> None:
    def ids(prompt: str, seed: int, index: int) -> list[str]:
        stream = ToolStream(HERMES, seed, index, prompt)
        stream.feed(CALL * 2)
        return [call.id for call in stream.calls]

    found = [identity for prompt in ("a", "b") for seed in (0, 1) for index in (0, 1) for identity in ids(prompt, seed, index)]
    assert len(set(found)) == 16 and ids("a", 0, 1) == found[2:4]
    assert all(len(identity) == 29 and identity.startswith("call_") for identity in found)
