"""Nothing that a schema forbids is accepted: where the grammar library is laxer than the standard, schemas are completed or refused."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from llmi import InvalidParamsError
from llmi.structured.budget import Budget
from llmi.structured.patterns import PatternError, library_pattern
from llmi.structured.strict_schema import strict_schema
from schema_suite import accepts, matcher_of, run_suite

DRAFT7, DRAFT3 = "http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-03/schema#"
TABLE = (Path(__file__).parents[2] / "docs" / "structured-output.md").read_text()

#: Where the library alone is laxer: the row in the page's table, a schema, texts that it takes and must not, and the refused keyword or
#: None where the schema is completed, with texts that must still be taken.
LAX: list[tuple[str, dict[str, Any], list[str], str | None, list[str]]] = [
    ("a name written with `\\u`", {"properties": {"foo": {"type": "integer"}}}, ['{"f\\u006fo":"x"}'], None, ['{"foo":1,"bar":"x"}']),
    ("a name written with `\\u`", {"patternProperties": {"^a": {"type": "integer"}}}, ['{"\\u0061":"x"}'], None, ['{"a":1,"b":"x"}']),
    ("a name written with `\\u`", {"const": "a\u0001"}, [], "const", []),
    ("`date`", {"format": "date"}, ['"2023-02-29"', '"1900-02-29"', '"0000-01-01"'], None, ['"2024-02-29"', '"2000-02-29"', "7"]),
    ("`time`", {"format": "time"}, ['"22:59:60Z"', '"23:59:60+01:00"'], None, ['"23:59:59.25-07:30"']),
    (
        "`date-time`",
        {"format": "date-time", "maxLength": 21},
        ['"1998-12-31T23:58:60Z"', '"2023-02-29T00:00:00Z"', '"2024-02-29T00:00:00.25Z"'],
        None,
        ['"2024-02-29T00:00:00Z"'],
    ),
    (
        "`hostname`",
        {"type": "string", "format": "hostname"},
        ['"xn--X"', json.dumps("a" * 63 + (("." + "b" * 63) * 3) + ".c")],
        None,
        ['"a-b.example"', '"a--b"'],
    ),
    ("`email`", {"format": "email"}, [json.dumps("a" * 65 + "@b.c"), json.dumps("a@" + "b" * 64 + ".c")], None, ['"a.b+c@d-e.org"']),
    ("`unknown`", {"format": "unknown"}, ['"a"'], "format", []),
    ("other formats", {"format": "iri"}, [], "format", []),
    ("`.`", {"pattern": "^.$"}, ['"\\r"', '"\u2028"'], None, ['"\u00e9"', '"\\t"']),
    ("`\\s`, `\\S`", {"pattern": "^\\s$"}, ['"\u0085"'], None, ['"\ufeff"', '" "']),
    ("`\\s`, `\\S`", {"pattern": "^\\S$"}, ['"\ufeff"'], None, ['"\u0085"', '"x"']),
    ("`&&`, `--`, `~~`, `[` inside a class", {"pattern": "^[a-z&&b]$"}, [], None, ['"&"', '"q"']),
    ("`&&`, `--`, `~~`, `[` inside a class", {"pattern": "^[[:alpha:]]$"}, ['"q"'], None, ['"a]"', '":]"']),
    ("escapes and flags", {"pattern": "\\Aab\\z"}, ['"ab"'], "pattern", []),
    ("escapes and flags", {"pattern": "(?x) a b"}, ['"ab"'], "pattern", []),
    ("escapes and flags", {"patternProperties": {"(?i)a": False}}, [], "patternProperties", []),
    ("a pattern that is none", {"pattern": "\\"}, ['"a"'], "pattern", []),
    ("a pattern that is none", {"pattern": "^[]a]$"}, ['"]"'], "pattern", []),
    ("integers over 2^53", {"const": 9007199254740993}, ["9007199254740992"], "const", []),
    ("integers over 2^53", {"type": "integer", "minimum": 9007199254740993}, ["9007199254740992"], "minimum", []),
    ("integers over 2^53", {"enum": [{"a": [10**19]}]}, [], "enum", []),
    ("numbers of over 15 digits", {"type": "number", "minimum": 0, "maximum": 0.9999999999999999}, ["1"], "maximum", []),
    ("numbers of over 15 digits", {"enum": [98.99999999999999]}, ["99.0", "99"], "enum", []),
    ("numbers of over 15 digits", {"type": "number", "minimum": 0.30000000000000004, "maximum": 1}, ["0.3", "0.2"], None, ["0.5", "1"]),
    (
        "a bound that excludes a whole number",
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        ["0", "0.0", "-0", "0.51"],
        None,
        ["0.5", "0.001"],
    ),
    (
        "a bound that excludes a whole number",
        {"exclusiveMinimum": 1, "exclusiveMaximum": 1.5},
        ["1", "1.0", "1.5"],
        None,
        ["1.25", "null", "1.000000000000001"],
    ),
    (
        "a bound that excludes a whole number",
        {"minimum": -0.5, "exclusiveMaximum": 0.0},
        ["0", "-0", "0.0", "-0.51"],
        None,
        ["-0.5", "-0.25"],
    ),
    (
        "a bound that excludes a whole number",
        {"allOf": [{"not": {"maximum": 10}}, {"maximum": 10.5}]},
        ["10", "10.00"],
        None,
        ["10.5", "10.25"],
    ),
    (
        "a bound that excludes a whole number",
        {"type": "number", "minimum": 0.25, "exclusiveMinimum": 0, "maximum": 0.5},
        ["0", "0.2"],
        None,
        ["0.25", "0.3"],
    ),
    (
        "a bound that excludes a whole number",
        {"type": "number", "exclusiveMinimum": 10**15, "maximum": 1e15 + 0.5},
        ["1000000000000000"],
        "exclusiveMinimum",
        [],
    ),
    (
        "a number that a bound's digits begin with",
        {"minimum": -0.255, "maximum": 2.555},
        ["2.556", "-0.256", "2.6"],
        None,
        ["2.5", "2.55", "-0.2", "-0.25", "2"],
    ),
    (
        "a number that a bound's digits begin with",
        {"type": ["number", "null"], "exclusiveMaximum": 1, "minimum": 0.95},
        ["0.9", "1"],
        None,
        ["0.99", "0.999", "null"],
    ),
    (
        "a number that a bound's digits begin with",
        {"type": "integer", "allOf": [{"maximum": 2.55}, {"minimum": 2}]},
        ["2.5", "3"],
        None,
        ["2"],
    ),
    ("`minProperties`", {"minProperties": 2}, ['{"a":1,"a":2}'], "minProperties", []),
    ("`minProperties`", {"minProperties": 2, "required": ["b"]}, [], None, ['{"b":1,"a":2}']),
    ("`$id` next to `$ref`", {"properties": {"a": {"$id": "http://x/y", "$ref": "#/$defs/b"}}, "$defs": {"b": {}}}, [], "$id", []),
    (
        "`$id` next to `$ref`",
        {"$schema": DRAFT7, "properties": {"a": {"$id": "http://x/y/", "$ref": "#/definitions/b"}}, "definitions": {"b": {"type": "null"}}},
        ['{"a":1}'],
        None,
        ['{"a":null}'],
    ),
    (
        "`$ref` to a place without a keyword for schemas",
        {"$id": "http://x/", "$ref": "http://x/#/a/b", "a": {"b": {"format": "unknown"}}},
        ['"x"'],
        "$ref",
        [],
    ),
    (
        "`$ref` to a place without a keyword for schemas",
        {"properties": {"b": {"$ref": "#/a/b"}}, "a": {"b": {"pattern": "^.$"}}},
        ['{"b":"\\r"}'],
        None,
        ['{"b":"r"}'],
    ),
    ("`$schema`", {"$schema": DRAFT3, "disallow": "string"}, ['"a"'], "$schema", []),
    ("`$schema`", {"$schema": "https://json-schema.org/draft-07/schema", "type": "null"}, [], None, ["null"]),
    ("keywords of later drafts", {"$schema": DRAFT7, "dependentRequired": {"a": ["b"]}}, ['{"a":1}'], None, ['{"b":1,"a":1}', "3"]),
    ("keywords of later drafts", {"$schema": DRAFT7, "prefixItems": [{"type": "null"}]}, ["[1]"], "prefixItems", []),
    ("`additionalItems`", {"prefixItems": [{"type": "null"}], "items": {}, "additionalItems": {}}, ["[1]"], None, ["[null,1]"]),
]


@pytest.mark.parametrize("row, schema, wrong, keyword, right", LAX, ids=range(len(LAX)))
def test_what_the_library_would_let_pass(row: str, schema: dict[str, Any], wrong: list[str], keyword: str | None, right: list[str]) -> None:
    assert f"| {row} |" in TABLE, "docs/structured-output.md lists what becomes of it"
    if keyword is not None:
        with pytest.raises(InvalidParamsError, match=re.escape(f": {keyword!r} (")):
            matcher_of(schema)
        return
    matcher = matcher_of(schema)
    assert [text for text in wrong if accepts(matcher, text)] == []
    assert [text for text in right if not accepts(matcher, text)] == []


def test_each_row_of_the_table_has_a_case() -> None:
    part = TABLE.split("<!-- laxness -->")[1].split("\n\n")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in part.strip().splitlines()[2:]]
    assert sorted(rows) == sorted({row for row, *_ in LAX})


def test_a_sample_of_the_suite() -> None:
    groups = json.loads((Path(__file__).parents[1] / "data" / "json_schema_suite.json").read_text())["groups"]
    tally = run_suite(groups)
    assert tally.accepted_wrongly == []
    assert tally.schemas - tally.refused > 90 and tally.right > 450
    assert len(tally.refused_wrongly) <= 18, "numbers that are spelt otherwise, orders of names, and Punycode"


KEYWORDS: dict[str, list[Any]] = {
    "type": ["object", "string", "integer", ["null", "string"], ["number", "object"]],
    "const": ["a", 1, None],
    "enum": [["a", "ab", 2], [True, 1.5]],
    "minimum": [0, 1.5],
    "exclusiveMaximum": [2, 1],
    "multipleOf": [2, 0.5],
    "minLength": [1, 2.0],
    "maxLength": [1],
    "pattern": ["^a", "b$", "^[^a]*$"],
    "required": [["a"], ["b"], ["a", "b"]],
    "minProperties": [1, 2],
    "maxProperties": [1],
    "additionalProperties": [False, {"type": "integer"}],
    "minItems": [1],
    "maxItems": [1],
    "uniqueItems": [True, False],
    "contains": [{"const": 1}],
    "minContains": [0],
}
POOL = [
    None,
    True,
    False,
    0,
    1,
    2,
    3,
    -1,
    1.5,
    0.25,
    "",
    "a",
    "b",
    "ab",
    "ba",
    "bb",
    [],
    [1],
    [1, 1],
    ["a"],
    [None, 2],
    *(
        {key: value for key, value in zip("abc", values, strict=True) if value != "-"}
        for values in itertools.product([1, "a", "-"], [None, 2, "-"], [1, "-"])
    ),
]


def random_schema(rng: np.random.Generator, depth: int = 0) -> Any:
    def some(count: int) -> list[Any]:
        return [random_schema(rng, depth + 1) for _ in range(count)]

    if rng.random() < 0.1:
        return bool(rng.random() < 0.6)
    schema: dict[str, Any] = {}
    for name in rng.choice([*KEYWORDS], size=int(rng.integers(0, 3)), replace=False):
        schema[str(name)] = KEYWORDS[name][int(rng.integers(len(KEYWORDS[name])))]
    if depth < 3:
        makers = {
            "properties": lambda: dict(zip("abc", some(2), strict=False)),
            "patternProperties": lambda: {"^[bc]$": some(1)[0]},
            "items": lambda: some(1)[0],
            "prefixItems": lambda: some(2),
            "not": lambda: some(1)[0],
            "if": lambda: some(1)[0],
            "then": lambda: some(1)[0],
            "else": lambda: some(1)[0],
            "oneOf": lambda: some(2),
            "anyOf": lambda: some(2),
            "allOf": lambda: some(2),
            "propertyNames": lambda: some(1)[0],
            "dependentRequired": lambda: {"a": ["b"]},
            "dependentSchemas": lambda: {"b": some(1)[0]},
            "unevaluatedProperties": lambda: False,
            "$ref": lambda: "#/$defs/d",
        }
        if depth == 2:
            del makers["$ref"]
        for name in rng.choice([*makers], size=int(rng.integers(0, 3)), replace=False):
            schema[str(name)] = makers[str(name)]()
    if depth == 0:
        schema["$defs"] = {"d": random_schema(rng, 2)}
    return schema


def orders(value: object) -> list[str]:
    """An instance's text in each order of its names."""
    if isinstance(value, dict):
        return [json.dumps(dict(items)) for items in itertools.permutations(value.items())]
    return [json.dumps(value)]


@pytest.mark.parametrize("first", range(0, 600, 150))
def test_random_schemas_accept_what_they_say(first: int) -> None:
    """Against the `jsonschema` package: nothing invalid is accepted, and nothing valid refused but numbers that are spelt otherwise."""
    checked = 0
    for seed in range(first, first + 150):
        schema = random_schema(np.random.default_rng(seed))
        checker = jsonschema.Draft202012Validator(schema)
        valid = [value for value in POOL if checker.is_valid(value)]
        try:
            matcher = matcher_of(schema)
        except InvalidParamsError as error:
            assert not ("Unsatisfiable" in str(error) and valid), (seed, schema, valid, error)
            continue
        checked += 1
        for value in POOL:
            found = any(accepts(matcher, text) for text in orders(value))
            assert found == (value in valid and any(type(value) is type(v) for v in valid if v == value)), (seed, schema, value, found)
    assert checked > 40


def test_patterns_mean_the_same() -> None:
    """Random patterns, against Python's `re` in ASCII, on all texts of up to three characters out of five."""
    rng = np.random.default_rng(1)
    parts = [
        "a",
        "b",
        ".",
        "\\d",
        "\\W",
        "[ab]",
        "[^a]",
        "(a|b-)",
        "(?:b)",
        "-",
        "[a-]",
        "[\\d-]",
        "\\-",
        "a*",
        "b+?",
        "[-b]{2}",
        "\\.",
        "|",
        "^",
        "$",
        "&&",
        "[&&b]",
    ]
    texts = ["".join(text) for size in range(4) for text in itertools.product("ab-1&", repeat=size)]
    run = 0
    for _ in range(80):
        pattern = "".join(parts[int(i)] for i in rng.integers(len(parts), size=int(rng.integers(1, 6))))
        try:
            matcher = matcher_of({"type": "string", "pattern": pattern})
        except InvalidParamsError:
            continue
        run += 1
        expression = re.compile(pattern, re.ASCII)
        wrong = [text for text in texts if accepts(matcher, json.dumps(text)) != bool(expression.search(text))]
        assert wrong == [], (pattern, library_pattern(pattern))
    assert run > 40


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?<!a)",
        "\\1",
        "\\bx",
        "a++",
        "*a",
        "{2}",
        "a{2,1}",
        "a{,2}",
        "[b-a]",
        "[\\d-z]",
        "[^]",
        "[",
        "\\x4",
        "\\u{110000}",
        "\\uD800",
        "\\p",
        "\\k<a>",
        "\\q",
        "(?P=a)",
    ],
)
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        library_pattern(pattern)


def test_places_are_json_pointers() -> None:
    schema = {
        "properties": {"a/b": {"items": {"not": {"pattern": "a"}}}, "~": {"oneOf": [{"minimum": 1}, {"multipleOf": 2}]}},
        "contains": {},
        "enum": [{"not": 1}],
    }
    _, problems = strict_schema(schema, Budget("the JSON schema"))
    assert [(problem.pointer, problem.keyword) for problem in problems] == [("/properties/a~1b/items", "not"), ("", "contains")]
    with pytest.raises(
        InvalidParamsError, match=r"keywords of the JSON schema cannot be enforced: /properties/a~1b/items: 'not', /: 'contains' \(lenient"
    ):
        matcher_of(schema)


def test_what_is_left_out_leaves_no_mark_on_the_rest() -> None:
    """Nodes made after others were left out are rewritten, whatever their places in memory."""
    for size in (1, 2, 3, 5, 10, 40):
        lost = {
            "not": {
                "multipleOf": 2,
                "properties": {f"k{i}": {"type": "string", "properties": {"z": {"type": "null"}}} for i in range(size)},
            }
        }
        kept = {
            f"p{i}": {
                "if": {"properties": {"a": {"const": i}}, "required": ["a"]},
                "then": {"properties": {"b": {"type": "string", "pattern": "^.$"}}},
            }
            for i in range(5)
        }
        strict, problems = strict_schema({"type": "object", "properties": {"lost": lost, **kept}}, Budget("the JSON schema"))
        assert [problem.keyword for problem in problems] == ["not"]
        assert '"^.$"' not in json.dumps(strict), "each pattern is translated"


def test_references_in_circles_and_depth() -> None:
    tree = {
        "$ref": "#/$defs/t",
        "$defs": {"t": {"oneOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 1}]}},
    }
    assert accepts(matcher_of(tree), "[[null]]") and not accepts(matcher_of(tree), "[[1]]")
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"items": deep}
    with pytest.raises(InvalidParamsError, match=r"nested too deep|cannot be enforced"):
        matcher_of(deep)
