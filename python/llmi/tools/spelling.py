"""From a JSON schema to rules of a grammar, for formats that write values in a notation of their own."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from llmi.errors import InvalidParamsError
from llmi.tools.form import Rules
from llmi.tools.functions import Function

_MAX_DEPTH = 64
_STEPS = 20  # of one schema
_NOTHING = '""'
_ANY_NAME = "/[A-Za-z_][A-Za-z0-9_]*/"
_SAYS_NOTHING = {
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id", "$defs",
    "definitions", "nullable",
}  # fmt: skip
_OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "boolean": set(),
    "null": set(),
    "array": {"items", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}


@dataclasses.dataclass(frozen=True)
class Spelling:
    """How a notation writes values.

    Attributes
    ----------
    true, false, null : str
    comma, colon : str
        Between two entries; behind a key.
    key : function of a key
        How a key is written.
    string : function of (schema of a string, Rules, where)
        The expression of the strings that fit.
    any_key : function of Rules
        The expression of any key.
    write : function of a string
        How one is written.
    is_sorted : bool
        Whether properties come in the order of the alphabet, else in the schema's.
    assign : str
        Behind the name of an argument.
    arguments, keys : pattern
        Which names arguments, and keys of objects, can have.
    """

    true: str
    false: str
    null: str
    comma: str
    colon: str
    assign: str
    key: Callable[[str], str]
    string: Callable[[dict[str, Any], Rules, str], str]
    any_key: Callable[[Rules], str]
    write: Callable[[str], str]
    arguments: re.Pattern[str]
    keys: re.Pattern[str]
    is_sorted: bool = False

    def written(self, value: object) -> str:
        """One value."""
        if isinstance(value, bool) or value is None:
            return {True: self.true, False: self.false, None: self.null}[value]
        if isinstance(value, str):
            return self.write(value)
        if isinstance(value, list):
            return "[" + self.comma.join(map(self.written, value)) + "]"
        if isinstance(value, dict):
            return "{" + self.comma.join(f"{self.key(key)}{self.colon}{self.written(entry)}" for key, entry in value.items()) + "}"
        return json.dumps(value)


class SchemaRules:
    """The rules of one function's arguments. A schema's properties are all that is written: none is added."""

    def __init__(self, spelling: Spelling, function: Function, rules: Rules) -> None:
        self._spelling = spelling
        self._root: dict[str, Any] = function.parameters if function.parameters is not None else {"type": "object"}
        self._where = function.where
        self._rules = rules
        self._named: dict[str, str] = {}  # rules of what $ref names, and of any value
        self._depth = 0

    def arguments(self) -> str:
        """The expression of the arguments, without what stands around them."""
        refs = 0
        schema = self._root
        while "$ref" in schema and refs < _MAX_DEPTH:
            schema, refs = self._target(schema["$ref"], ""), refs + 1
        self._check(schema, "object", "")
        return self._entries(schema, "", self._spelling.assign)

    def _value(self, schema: object, pointer: str) -> str:
        self._depth += 1
        self._rules.budget.spend(_STEPS + len(pointer) // 64)
        try:
            if self._depth > _MAX_DEPTH:
                self._refuse(pointer, f"is nested more than {_MAX_DEPTH} deep")
            return self._of_schema(schema, pointer)
        finally:
            self._depth -= 1

    def _of_schema(self, schema: object, pointer: str) -> str:
        if schema is True or schema == {}:
            return self._anything()
        if not isinstance(schema, dict):
            self._refuse(pointer, "allows nothing" if schema is False else "is no schema")
        for keyword in ("enum", "const"):
            if keyword in schema:
                return self._one_of(schema, keyword, pointer)
        for keyword in ("$ref", "anyOf", "allOf"):
            if keyword in schema:
                return self._combined(schema, keyword, pointer)
        kinds = schema.get("type", _guessed(schema))
        if isinstance(kinds, list):
            shared = {key: value for key, value in schema.items() if key != "type"}
            return self._either([self._of_kind(kind, _only(shared, kind), pointer) for kind in kinds])
        if kinds is not None:
            return self._of_kind(kinds, schema, pointer)
        if extra := set(schema) - _SAYS_NOTHING:
            self._refuse(f"{pointer}/{_escaped(min(extra))}", "cannot be enforced in this format")
        return self._anything()

    def _of_kind(self, given: object, schema: dict[str, Any], pointer: str) -> str:
        kind = self._check_kind(given, pointer)
        self._check(schema, kind, pointer)
        spelling, rules = self._spelling, self._rules
        if kind == "boolean":
            return self._either([rules.text(spelling.true), rules.text(spelling.false)])
        if kind == "null":
            return rules.text(spelling.null)
        if kind == "string":
            return spelling.string(schema, rules, self._where + pointer)
        if kind in ("integer", "number"):
            return rules.json({"type": kind, **{key: schema[key] for key in schema if key in _OF_NUMBERS}}, self._where + pointer)
        return self._array(schema, pointer) if kind == "array" else self._object(schema, pointer)

    def _array(self, schema: dict[str, Any], pointer: str) -> str:
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        if not isinstance(low, int) or not isinstance(high, int | None) or low < 0 or (high is not None and high < low):
            self._refuse(f"{pointer}/minItems", f"= {low!r:.40} and maxItems = {high!r:.40} fit no list")
        if high == 0:
            return self._rules.text("[]")
        item = self._rules.rule(self._value(schema.get("items", True), f"{pointer}/items"))
        more = f"({self._rules.text(self._spelling.comma)} {item}){{{max(low - 1, 0)},{'' if high is None else high - 1}}}"
        inner = f"{item} {more}" if low > 0 else f"({item} {more})?"
        return f'"[" {inner} "]"'

    def _object(self, schema: dict[str, Any], pointer: str) -> str:
        return f'"{{" {self._entries(schema, pointer, self._spelling.colon)} "}}"'

    def _entries(self, schema: dict[str, Any], pointer: str, colon: str) -> str:
        """The text between the braces of an object, or the parentheses of a call."""
        more = schema.get("additionalProperties", True)
        if not schema.get("properties") and not schema.get("required") and more is not False:
            return self._map(more, pointer, colon)
        return self._properties(schema, pointer, colon)

    def _map(self, values: object, pointer: str, colon: str) -> str:
        value = self._rules.rule(self._value(values, f"{pointer}/additionalProperties"))
        key = _ANY_NAME if self._are_names(pointer, colon) else self._spelling.any_key(self._rules)
        entry = self._rules.rule(f"{key} {self._rules.text(colon)} {value}")
        return f"({entry} ({self._rules.text(self._spelling.comma)} {entry})*)?"

    def _properties(self, schema: dict[str, Any], pointer: str, colon: str) -> str:
        """The entries in order; those that are not required may be missing."""
        spelling, rules = self._spelling, self._rules
        properties, required = schema.get("properties", {}), schema.get("required", [])
        more = schema.get("additionalProperties", True)
        if not isinstance(properties, dict) or not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            self._refuse(pointer, "needs a dict as properties and a list of texts as required")
        others = [name for name in required if name not in properties]
        if others and more is False:
            self._refuse(f"{pointer}/required", f"names {others[0]!r:.80}, which additionalProperties forbids")
        schemas = {name: (value, f"{pointer}/properties/{_escaped(name)}") for name, value in properties.items()}
        schemas |= dict.fromkeys(others, (more, f"{pointer}/additionalProperties"))
        needed = {*required}
        names = sorted(schemas, key=lambda name: (name.lower(), name)) if spelling.is_sorted else list(schemas)
        first = later = _NOTHING  # what may follow before the first entry, and behind one
        are_names = self._are_names(pointer, colon)
        for name in reversed(names):
            if not (spelling.arguments if are_names else spelling.keys).fullmatch(name):
                self._refuse(f"{pointer}/properties/{_escaped(name)!r:.80}", "is a name that this format cannot write")
            key = rules.text((name if are_names else spelling.key(name)) + colon)
            entry = rules.rule(f"{key} {self._value(*schemas[name])}")
            behind, comma = f"{entry} {later}", rules.text(spelling.comma)
            is_needed = name in needed
            first = rules.rule(behind if is_needed else f"{behind} | {first}")
            later = rules.rule(f"{comma} {behind}" if is_needed else f"{comma} {behind} | {later}")
        return first

    def _one_of(self, schema: dict[str, Any], keyword: str, pointer: str) -> str:
        if extra := set(schema) - {keyword, "type"} - _SAYS_NOTHING:
            self._refuse(f"{pointer}/{min(extra)}", f"together with {keyword} cannot be enforced in this format")
        values = schema[keyword] if keyword == "enum" else [schema[keyword]]
        if not isinstance(values, list) or not values:
            self._refuse(f"{pointer}/enum", "must be a list of at least one value")
        kinds = schema.get("type", [*_KEYWORDS])
        kinds = {self._check_kind(kind, pointer): None for kind in (kinds if isinstance(kinds, list) else [kinds])}
        fitting = [value for value in values if any(_is_of(value, kind) for kind in kinds)]
        if not fitting:
            self._refuse(f"{pointer}/{keyword}", "has no value of the type")
        return self._either([self._rules.text(self._spelling.written(value)) for value in fitting])

    def _combined(self, schema: dict[str, Any], keyword: str, pointer: str) -> str:
        if extra := set(schema) - {keyword} - _SAYS_NOTHING:
            self._refuse(f"{pointer}/{min(extra)}", f"together with {keyword} cannot be enforced in this format")
        entries = schema[keyword]
        if keyword == "$ref":
            return self._reference(entries, pointer)
        if not isinstance(entries, list) or not entries or (keyword == "allOf" and len(entries) > 1):
            self._refuse(f"{pointer}/{keyword}", "cannot be enforced in this format")
        return self._either([self._value(entry, f"{pointer}/{keyword}/{index}") for index, entry in enumerate(entries)])

    def _reference(self, target: object, pointer: str) -> str:
        name = str(target)
        if name not in self._named:
            self._named[name] = self._rules.reserve()
            self._rules.define(self._named[name], self._value(self._target(target, pointer), name.removeprefix("#")))
        return self._named[name]

    def _target(self, target: object, pointer: str) -> dict[str, Any]:
        value: object = self._root
        if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
            self._refuse(f"{pointer}/$ref", f"must name a place of this schema, such as '#/$defs/x', not {target!r:.80}")
        for part in target.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, dict):
            self._refuse(f"{pointer}/$ref", f"names {target!r:.80}, which is not there")
        return value

    def _anything(self) -> str:
        if "" not in self._named:
            name = self._named[""] = self._rules.reserve()
            kinds: list[dict[str, Any]] = [{"type": kind} for kind in ("string", "number", "boolean", "null")]
            entries = [self._of_kind(schema["type"], schema, "") for schema in kinds]
            self._rules.define(name, self._either([*entries, self._array({"items": True}, ""), self._object({}, "")]))
        return self._named[""]

    def _are_names(self, pointer: str, colon: str) -> bool:
        """Whether keys are the names of arguments."""
        return pointer == "" and colon == self._spelling.assign

    def _either(self, entries: list[str]) -> str:
        return entries[0] if len(entries) == 1 else f"({' | '.join(dict.fromkeys(entries))})"

    def _check_kind(self, kind: object, pointer: str) -> str:
        if not isinstance(kind, str) or kind not in _KEYWORDS:
            self._refuse(f"{pointer}/type", f"is {kind!r:.40}, which JSON Schema does not know")
        return kind

    def _check(self, schema: dict[str, Any], kind: str, pointer: str) -> None:
        if extra := set(schema) - {"type"} - _KEYWORDS[kind] - _SAYS_NOTHING:
            self._refuse(f"{pointer}/{_escaped(min(extra))}", "cannot be enforced in this format")

    def _refuse(self, pointer: str, what: str) -> NoReturn:
        raise InvalidParamsError(f"{self._where}: {pointer or '/'} {what} (strict: false takes any arguments)", "tools")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _guessed(schema: dict[str, Any]) -> str | None:
    """The type that keywords speak of, where none is named."""
    return next((kind for kind in ("object", "array", "string", "number") if _KEYWORDS[kind] & set(schema)), None)


def _is_of(value: object, kind: str) -> bool:
    """Whether a value is of a type; a number that is whole is an integer."""
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    if isinstance(value, (int, float)):
        return kind == "number" or (kind == "integer" and (isinstance(value, int) or value.is_integer()))
    return kind == ("string" if isinstance(value, str) else "array" if isinstance(value, list) else "object")


def _only(schema: dict[str, Any], kind: object) -> dict[str, Any]:
    """The keywords of one type among several; those of others hold for the others."""
    others: set[str] = set().union(*(words for name, words in _KEYWORDS.items() if name != kind)) - _KEYWORDS.get(str(kind), set())
    return {key: value for key, value in schema.items() if key not in others}
