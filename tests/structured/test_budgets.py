"""What a client's text costs before the engine sees it: in steps of Python, while the text grows, and by the form of regular
expressions."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

import llmi
from llmi import InvalidParamsError, LlmiError, StructuredOutputsParams
from llmi.chat.rules import checked_messages, special_pattern
from llmi.server.body import decode
from llmi.server.errors import ApiError
from llmi.server.limits import Limits
from llmi.server.plain_messages import plain_messages
from llmi.structured import budget, gbnf_runs
from llmi.structured.budget import Budget
from llmi.structured.gbnf import is_gbnf
from llmi.structured.grammars import grammar_of
from llmi.tools.chat import FORMATS
from llmi.tools.functions import Choice, functions_of
from llmi.tools.generic import in_words
from llmi.tools.grammar import answer_grammar
from regex_checks import ambiguities


def schema(value: Any) -> Callable[[], object]:
    params = StructuredOutputsParams(json=value)
    return lambda: grammar_of(params)


def grammar(text: str) -> Callable[[], object]:
    params = StructuredOutputsParams(grammar=text)
    return lambda: grammar_of(params)


def tools(form: str, *schemas: Any) -> Callable[[], object]:
    functions = functions_of([{"type": "function", "function": {"name": f"f{i}", "parameters": entry}} for i, entry in enumerate(schemas)])
    chosen = next(each for each in FORMATS if each.name == form)
    return lambda: answer_grammar(chosen, functions, Choice("required"), True, {}, Budget("the tools", "tools"))


def levels(count: int, width: int, end: Any, name: str = "a") -> dict[str, Any]:
    """Definitions, each of which refers to the next one several times."""
    made: dict[str, Any] = {f"{name}{i}": {"anyOf": [{"$ref": f"#/$defs/{name}{i + 1}"}] * width} for i in range(count)}
    return made | {f"{name}{count}": end}


def nested(depth: int, schema: Any, width: int = 4) -> Any:
    for _ in range(depth):
        schema = {"oneOf": [{"properties": {"a": schema}}, *({"minimum": number} for number in range(width - 1))]}
    return schema


#: By name: an input of a size (about so many parts), and what reads it.
GROWING: dict[str, Callable[[int], Callable[[], object]]] = {
    "schema: properties": lambda n: schema(
        {"properties": {f"p{i}": {"type": "integer"} for i in range(n)}, "required": [f"p{i}" for i in range(n)]}
    ),
    "schema: an enum in a list": lambda n: schema({"items": {"enum": [[[[i]]] for i in range(n)]}}),
    "schema: bounds and fractions": lambda n: schema({"items": [{"exclusiveMinimum": i, "maximum": i + 0.5} for i in range(n)]}),
    "schema: constants": lambda n: schema({"oneOf": [{"const": i} for i in range(n)]}),
    "schema: objects that one property tells apart": lambda n: schema(
        {"oneOf": [{"type": "object", "properties": {"kind": {"const": i}}, "required": ["kind"]} for i in range(n)]}
    ),
    "schema: ranges that are apart": lambda n: schema(
        {"oneOf": [{"type": "number", "minimum": 2 * i, "maximum": 2 * i + 1} for i in range(n)]}
    ),
    "schema: not of references": lambda n: schema({"not": {"$ref": "#/$defs/a0"}, "$defs": levels(3, n // 2, {"type": "string"})}),
    "schema: one condition at many places": lambda n: schema(
        {
            "allOf": [{"if": {"$ref": "#/$defs/a"}, "then": {"minimum": i}} for i in range(n)],
            "$defs": {"a": {"enum": [f"x{i}" for i in range(n)]}},
        }
    ),
    "schema: oneOf of trees of references": lambda n: schema(
        {
            "oneOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}],
            "$defs": levels(6, n // 8, {"type": "string"}) | levels(6, n // 8, {"type": "integer"}, "b"),
        }
    ),
    "schema: oneOf in oneOf": lambda n: schema(nested(n // 16, {"type": "integer"})),
    "schema: texts that are not": lambda n: schema({"not": {"enum": ["a" * (n // 2) + chr(256 + i) for i in range(16)]}}),
    "schema: a long name, and much under it": lambda n: schema(
        {"properties": {"k" * 64 * n: {"properties": {f"a{i}": {"uniqueItems": True} for i in range(n)}}}}
    ),
    "schema: a deep list": lambda n: schema({"default": json.loads("[" * 100 + "1," * n + "1" + "]" * 100)}),
    "gbnf: a chain of rules": lambda n: grammar("root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(n)) + f"r{n} ::= [a-z]+"),
    "gbnf: classes of many ranges": lambda n: grammar(
        "root ::= " + " ".join("[" + "".join(chr(0x4E00 + 2 * j) for j in range(n)) + "]+" for _ in range(8))
    ),
    "gbnf: all follow all": lambda n: grammar(f"root ::= ({'|'.join(['[a-z]*'] * (n // 2))})*"),
    "gbnf: repetitions that are written out": lambda n: grammar("root ::= " + "[a]{16} " * n),
    "tools: types in types": lambda n: tools("pythonic", {"type": "object", "properties": {"a": _typed(n // 16)}}),
    "tools: names that are required": lambda n: tools(
        "pythonic", {"type": "object", "properties": {f"p{i}": {} for i in range(n)}, "required": [f"p{i}" for i in range(n)]}
    ),
    "tools: many, each with references": lambda n: tools(
        "hermes", *[{"type": "object", "not": {"$ref": "#/$defs/a0"}, "$defs": levels(2, 16, {"minimum": i})} for i in range(n)]
    ),
    "tag: triggers and structures": lambda n: _tag(n),
    "body: a key twice": lambda n: functools.partial(
        decode, json.dumps({f"a{i}": i for i in range(n)})[:-1].encode() + f', "a{n - 1}": 1}}'.encode()
    ),
    "chat: results of tools": lambda n: lambda: in_words([{"role": "tool", "content": "x" * 100} for _ in range(n)], ""),
    "chat: calls in the history": lambda n: lambda: plain_messages([_call(n), _call(n)], [], Limits()),
    "chat: a long name, and much under it": lambda n: lambda: checked_messages(
        [{"role": "user", "content": "", "k" * 64 * n: [*range(n)]}]
    ),
    "tokens: names with one beginning": lambda n: lambda: special_pattern(f"<unused{i}>" for i in range(n)),
}
MOST = 15_000  # 256 objects that are told apart and closed take 12,000
#: Those that end in a refusal, at some size, because their parts multiply.
REFUSED = {
    "schema: not of references",
    "schema: one condition at many places",
    "schema: ranges that are apart",
    "schema: a long name, and much under it",
    "tools: types in types",
    "tools: many, each with references",
}


def _typed(depth: int) -> Any:
    value: Any = {"type": "integer"}
    for _ in range(depth):
        value = {"type": ["array", "object"], "items": value, "additionalProperties": value}
    return value


def _tag(n: int) -> Callable[[], object]:
    structures = [{"begin": f"<{i}>", "schema": {"type": "integer"}, "end": ""} for i in range(n)]
    params = StructuredOutputsParams(
        structural_tag={"type": "structural_tag", "structures": structures, "triggers": [f"<{i}>" for i in range(n)]}
    )
    return lambda: grammar_of(params)


def _call(n: int) -> dict[str, Any]:
    function = {"name": "f", "arguments": json.dumps({f"a{i}": i for i in range(n)})}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}] * 3}


@contextlib.contextmanager
def counted(steps: list[int]) -> Iterator[None]:
    """Counts the instructions of Python that run."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
        steps.append(count)


@pytest.mark.slow
@pytest.mark.parametrize("name", GROWING)
def test_the_cost_grows_with_the_text_or_it_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under small budgets, so that few instructions are counted."""
    monkeypatch.setattr(budget, "MOST_STEPS", MOST)
    monkeypatch.setattr(gbnf_runs, "_MOST_STEPS", MOST)
    monkeypatch.setattr(gbnf_runs, "_MOST_PAIRS", MOST)
    with contextlib.suppress(LlmiError, ApiError):
        GROWING[name](8)()  # what is made at first use
    steps: list[int] = []
    refusal = ""
    for factor in (1, 2, 4, 8):
        run = GROWING[name](32 * factor)
        with counted(steps):
            try:
                run()
            except (LlmiError, ApiError) as error:
                refusal = str(error)
    growth = [later / earlier for earlier, later in itertools.pairwise(steps)]
    assert growth[-1] < 2.6 or max(steps) < 25 * MOST, (steps, growth)
    assert (f"more than {MOST:,} steps to prepare" in refusal) == (name in REFUSED), refusal


def test_a_budget_that_is_spent_refuses_by_name() -> None:
    small = Budget("the JSON schema", limit=10)
    small.spend(10)
    with pytest.raises(InvalidParamsError, match="the JSON schema takes more than 10 steps to prepare") as caught:
        small.spend()
    assert caught.value.args and "structured_outputs" in str(caught.value)


def test_one_budget_for_all_schemas_of_a_request() -> None:
    """A schema that fits ten times over is refused when a hundred of them come together."""
    one = {"type": "object", "not": {"$ref": "#/$defs/a0"}, "$defs": levels(2, 32, {"minimum": 1})}
    tools("hermes", one)()
    with pytest.raises(InvalidParamsError, match="steps to prepare"):
        tools("hermes", *({**one, "title": str(i)} for i in range(100)))()


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    for part in ("base", "chat", "params", "requests", "server", "structured", "text", "tools"):
        package = importlib.import_module(f"llmi.{part}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                    yield f"{module.name}.{name}", value


def test_regular_expressions_read_a_text_in_one_way() -> None:
    found = dict(patterns())
    assert len(found) > 30 and llmi.__name__ in next(iter(found))
    assert {name: ambiguities(pattern) for name, pattern in found.items() if ambiguities(pattern)} == {}


@pytest.mark.parametrize(
    "pattern", [r"(?:[ \t\r\n]|#[^\r\n]*)*[A-Z]+ ::=", r"(?:a+)+b", r"(?:[^\[\]&~-]|\\.)*", r"(?:\w*\s?)*x", r"(?:ab|a.)*c"]
)
def test_ambiguous_expressions_are_found(pattern: str) -> None:
    assert ambiguities(re.compile(pattern))


@pytest.mark.parametrize("pattern", [r"(?:[ \t]|#[^\r\n]*+)*+[A-Z]+ ::=", r'"(?:\\.|[^"\\])*"', r"(?:ab|cd)*c", r"\w+\s*\w+"])
def test_plain_expressions_are_not(pattern: str) -> None:
    assert not ambiguities(re.compile(pattern))


def test_a_banner_of_comments_is_read_once() -> None:
    assert not is_gbnf("#" * 65_536 + '\nstart: "a"')
    assert is_gbnf("#" * 65_536 + '\nroot ::= "a"')
