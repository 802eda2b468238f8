"""An object whose schema lists properties and says nothing of others has no others, unless open_objects asks for the standard's reading."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from llmi import InvalidParamsError, StructuredOutputsParams
from llmi.structured.budget import Budget
from llmi.structured.grammars import compiled
from llmi.structured.strict_schema import strict_schema
from schema_suite import accepts, byte_vocabulary, matcher_of
from test_strict_schema import POOL, orders, random_schema

A: dict[str, Any] = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
TREE: dict[str, Any] = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/tree"}}}
OLD = "http://json-schema.org/draft-07/schema#"


def kind(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": name}, **properties}, "required": ["kind"]}


#: Schemas, with texts that they take and texts that the standard takes and they do not.
CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "plain": (A, ['{"a":1}', "7", '"x"'], ['{"a":1,"x":2}']),
    "nested": (
        {"properties": {"o": A, "l": {"items": A}}},
        ['{"o":{"a":1},"l":[{"a":2}]}', "{}"],
        ['{"o":{"a":1,"x":2}}', '{"l":[{"a":1,"x":2}]}', '{"x":1}'],
    ),
    "no properties": ({"type": "object"}, ['{"x":1}', "{}"], []),
    "empty properties": ({"type": "object", "properties": {}}, ["{}"], ['{"x":1}']),
    "said: true": ({**A, "additionalProperties": True}, ['{"a":1,"x":2}'], []),
    "said: a schema": ({**A, "additionalProperties": {"type": "null"}}, ['{"a":1,"x":null}'], []),
    "patterns": ({**A, "patternProperties": {"^p": {"type": "null"}}}, ['{"a":1,"p1":null}'], ['{"a":1,"x":2}']),
    "maps of objects": ({"type": "object", "additionalProperties": A}, ['{"x":{"a":1}}'], ['{"x":{"a":1,"y":2}}']),
    "required, not listed": ({"properties": {"a": {}}, "required": ["b"]}, ['{"b":1}', '{"a":1,"b":2}'], ['{"b":1,"x":2}']),
    "more than it lists": ({"properties": {"a": {}}, "required": ["a"], "minProperties": 2}, ['{"a":1,"x":2}'], []),
    "a reference": ({"properties": {"o": {"$ref": "#/$defs/A"}}, "$defs": {"A": A}}, ['{"o":{"a":1}}'], ['{"o":{"a":1,"x":2}}', '{"x":1}']),
    "pydantic's first version": (
        {"properties": {"o": {"title": "O", "allOf": [{"$ref": "#/definitions/A"}]}}, "definitions": {"A": A}},
        ['{"o":{"a":1}}'],
        ['{"o":{"a":1,"x":2}}'],
    ),
    "a tree": (
        {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
        ['{"v":1,"next":{"v":2,"next":{}}}'],
        ['{"next":{"next":{"x":1}}}', '{"x":1}'],
    ),
    "parts": (
        {"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {"$ref": "#/$defs/A"}}}], "$defs": {"A": A}},
        ['{"a":1,"b":{"a":2}}', '{"a":1}'],
        ['{"a":1,"x":2}', '{"a":1,"b":{"a":2,"b":3}}'],
    ),
    "parts, one of them open": ({"allOf": [{**A, "additionalProperties": True}, {"properties": {"b": {}}}]}, ['{"a":1,"b":2,"x":3}'], []),
    "parts with patterns": ({"allOf": [A, {"patternProperties": {"^p": {}}}]}, ['{"a":1,"p":2}', '{"a":1,"x":2}'], []),
    "parts that share a name": (
        {"properties": {"o": {"properties": {"a": {}}}}, "allOf": [{"properties": {"o": {"properties": {"b": {}}}}}]},
        ['{"o":{"a":1,"b":2}}'],
        ['{"x":1}'],
    ),
    "next to a reference": ({"$ref": "#/$defs/A", "properties": {"b": {}}, "$defs": {"A": A}}, ['{"a":1,"b":2}'], ['{"a":1,"x":2}']),
    "next to a reference, required": (
        {"properties": {"o": {"$ref": "#/$defs/A", "required": ["b"]}}, "$defs": {"A": A}},
        ['{"o":{"a":1,"b":2}}'],
        ['{"o":{"a":1,"b":2,"x":3}}'],
    ),
    "next to a reference in draft 7": (
        {"$schema": OLD, "properties": {"o": {"$ref": "#/definitions/A", "properties": {"b": {}}}}, "definitions": {"A": A}},
        ['{"o":{"a":1}}'],
        ['{"o":{"a":1,"b":2}}'],
    ),
    "alternatives": (
        {"anyOf": [A, {"properties": {"b": {}}, "required": ["b"]}, {"type": "null"}]},
        ['{"a":1}', '{"b":1}', "null"],
        ['{"a":1,"b":2}', '{"b":1,"x":2}'],
    ),
    "alternatives with what they share": (
        {"properties": {"id": {}}, "anyOf": [A, {"properties": {"b": {}}, "required": ["b"]}]},
        ['{"id":1,"a":2}', '{"id":1,"b":2}', '{"a":2}'],
        ['{"id":1,"a":2,"b":3}', '{"a":1,"x":2}'],
    ),
    "alternatives that list nothing": (
        {"properties": {"a": A, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":{"a":1}}', '{"b":1}', '{"a":{"a":1},"b":2}'],
        ['{"b":1,"x":2}', '{"a":{"a":1,"x":2}}'],
    ),
    "by a reference, in draft 7": (
        {"$schema": OLD, "properties": {"id": {}}, "anyOf": [{"$ref": "#/definitions/A"}], "definitions": {"A": A}},
        ['{"id":1,"a":2}'],
        ['{"id":1,"a":2,"x":3}'],
    ),
    "kinds": (
        {"oneOf": [{"$ref": "#/$defs/p"}, {"$ref": "#/$defs/q"}], "$defs": {"p": kind("p", a={}), "q": kind("q", b={})}},
        ['{"kind":"p","a":1}', '{"kind":"q","b":1}'],
        ['{"kind":"p","b":1}', '{"kind":"q","x":1}'],
    ),
    "conditions": (
        {"properties": {"a": {}}, "if": {"required": ["a"]}, "then": {"properties": {"b": {}}, "required": ["b"]}},
        ['{"a":1,"b":2}', "{}"],
        ['{"a":1,"b":2,"x":3}'],
    ),
    "dependents": (
        {"properties": {"a": {}}, "dependentSchemas": {"a": {"properties": {"b": {}}, "required": ["b"]}}},
        ['{"a":1,"b":2}', "{}"],
        ['{"a":1,"b":2,"x":3}'],
    ),
    "not": ({"properties": {"a": {}, "b": {}}, "not": {"properties": {"c": {}}, "required": ["a"]}}, ['{"b":1}', "{}"], ['{"b":1,"x":2}']),
    "unevaluated": ({**A, "unevaluatedProperties": {"type": "null"}}, ['{"a":1,"x":null}'], []),
    "a mark of a user's": ({**A, "x-llmi-closed": ["x"]}, ['{"a":1}'], ['{"a":1,"x":2}']),
    "a name of a copy": (
        {"allOf": [{"$ref": "#/$defs/open-0"}, {"properties": {"b": {}}}], "$defs": {"open-0": A}},
        ['{"a":1,"b":2}'],
        ['{"a":1,"x":2}'],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_closed(name: str) -> None:
    schema, right, wrong = CASES[name]
    checker = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    given = json.dumps(schema)
    closed, as_standard = matcher_of(schema, open_objects=False), matcher_of(schema)
    for text in right + wrong:
        assert checker.is_valid(json.loads(text)), text
        assert accepts(as_standard, text) and accepts(closed, text) == (text in right), text
    assert json.dumps(schema) == given


def test_nothing_is_added_to_what_a_schema_takes() -> None:
    """Random schemas: what is closed takes a part of what the standard does."""
    narrower = 0
    for seed in range(600):
        schema = random_schema(np.random.default_rng(seed))
        try:
            closed = matcher_of(schema, open_objects=False)
        except InvalidParamsError:
            continue
        checker = jsonschema.Draft202012Validator(schema)
        for value in POOL:
            taken = any(accepts(closed, text) for text in orders(value))
            assert not taken or checker.is_valid(value), (seed, schema, value)
            narrower += not taken and checker.is_valid(value) and isinstance(value, dict)
    assert narrower > 10


def test_a_problem_is_named_where_the_schema_has_it() -> None:
    schema = {"allOf": [{"$ref": "#/x/y"}, {"properties": {"b": {}}}], "x": {"y": {"properties": {"a": {"contains": {}}}}}}
    _, problems = strict_schema(schema, Budget("the JSON schema"), open_objects=False)
    assert [(problem.pointer, problem.keyword) for problem in problems] == [("/x/y/properties/a", "contains")]


def test_structural_tags() -> None:
    tag = {"type": "structural_tag", "structures": [{"begin": "<f>", "schema": A, "end": "</f>"}], "triggers": ["<f>"]}
    for open_objects in (False, True):
        matcher = compiled(StructuredOutputsParams(structural_tag=tag, open_objects=open_objects), byte_vocabulary())
        assert accepts(matcher, '<f>{"a":1}</f>') and accepts(matcher, '<f>{"a":1,"x":2}</f>') == open_objects


def test_the_parameter() -> None:
    assert StructuredOutputsParams(json=A).as_dict() == {"json": A}
    assert StructuredOutputsParams(json=A, open_objects=True).as_dict() == {"json": A, "open_objects": True}
    with pytest.raises(InvalidParamsError, match="open_objects is for json and structural_tag, not for regex"):
        StructuredOutputsParams(regex="a", open_objects=True)
    with pytest.raises(InvalidParamsError, match=r"open_objects"):
        StructuredOutputsParams(json=A, open_objects="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [200, 400, 800])
def test_the_work_is_bounded(size: int) -> None:
    """A chain of parts, each with a name and a reference to the next: names would multiply."""
    names = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"properties": {f"p{i}": {"$ref": f"#/$defs/d{i + 1}"}}}]} for i in range(size)
    }
    budget = Budget("the JSON schema")
    try:
        strict_schema({"$ref": "#/$defs/d0", "$defs": {**names, f"d{size}": A}}, budget, open_objects=False)
    except (InvalidParamsError, RecursionError):
        return
    assert budget.left >= 0
