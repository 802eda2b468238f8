"""The complement of a JSON schema as a schema, for those keywords that have one; what `not` and `if` are rewritten with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from llmi.structured.budget import Budget

Schema: TypeAlias = "dict[str, object] | bool"
#: A keyword of llmi's own, while a schema is worked on: the object is closed, but for these names (closed_objects.py).
CLOSED = "x-llmi-closed"
#: Keywords without an effect on what is valid.
ANNOTATIONS = frozenset((
    "$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions",
    "deprecated", "description", "examples", "id", "readOnly", "title", "writeOnly", CLOSED,
))  # fmt: skip
TYPES = ("null", "boolean", "number", "string", "array", "object")
#: keyword: the type that it is for, and the keyword and value with which a value of that type breaks it.
_BOUNDS: dict[str, tuple[str, str, int]] = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
}
_MOST_KEYWORDS = 4
_MOST_TEXTS = 200
_STEPS = 8  # of one schema


def complement(schema: Schema, resolve: Callable[[str], Schema | None], budget: Budget, depth: int = 0) -> Schema | None:
    """A schema that fits exactly the values that this one does not, or None where there is none of that kind here.

    A schema with several keywords is a conjunction: its complement is the union of theirs. Raises InvalidParamsError where references
    multiply until the budget has no steps left.
    """
    budget.spend(_STEPS)
    if isinstance(schema, bool):
        return not schema
    if depth > 8:
        return None
    keywords = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
    if len(keywords) > _MOST_KEYWORDS or len(keywords.keys() & {"properties", "additionalProperties", "patternProperties"}) > 1:
        return None
    if "$ref" in keywords and len(keywords) > 1:
        return None  # drafts differ on the keywords next to it
    parts: list[Schema] = []
    for name, value in keywords.items():
        part = _of_keyword(name, value, resolve, budget, depth)
        if part is None:
            return None
        parts.append(part)
    return any_of(parts)


def any_of(schemas: Iterable[Schema]) -> Schema:
    """The union, in its shortest form."""
    parts = [schema for schema in schemas if schema is not False]
    if True in parts:
        return True
    return {"anyOf": parts} if len(parts) > 1 else parts[0] if parts else False


def all_of(schemas: Iterable[Schema]) -> Schema:
    """The intersection, in its shortest form."""
    parts = [schema for schema in schemas if schema is not True]
    if False in parts:
        return False
    return {"allOf": parts} if len(parts) > 1 else parts[0] if parts else True


def _of_keyword(name: str, value: object, resolve: Callable[[str], Schema | None], budget: Budget, depth: int) -> Schema | None:
    def inner(schema: object) -> Schema | None:
        return complement(schema, resolve, budget, depth + 1) if isinstance(schema, (dict, bool)) else None

    def inners(schemas: object) -> list[Schema] | None:
        parts = [inner(schema) for schema in schemas] if isinstance(schemas, list) else [None]
        return None if None in parts else [part for part in parts if part is not None]

    if name == "not" and isinstance(value, (dict, bool)):
        return value
    if name in ("anyOf", "allOf"):
        parts = inners(value)
        return None if parts is None else all_of(parts) if name == "anyOf" else any_of(parts)
    if name == "$ref":
        target = resolve(value) if isinstance(value, str) else None
        return None if target is None else inner(target)
    if name == "type":
        return _of_types(value)
    if name in ("const", "enum"):
        return _of_values([value] if name == "const" else value, budget)
    if name == "required" and isinstance(value, list):
        budget.spend(len(value))
        return any_of({"type": "object", "properties": {key: False}} for key in value)
    if name == "properties" and isinstance(value, dict):
        parts = inners([*value.values()])
        if parts is None:
            return None
        broken = [(key, part) for key, part in zip(value, parts, strict=True) if part is not False]
        return any_of({"type": "object", "properties": {key: part}, "required": [key]} for key, part in broken)
    if name in _BOUNDS and isinstance(value, (int, float)) and not isinstance(value, bool):
        kind, opposite, more = _BOUNDS[name]
        return {"type": kind, opposite: value + more} if opposite[:3] != "max" or value + more >= 0 or kind == "number" else False
    return None


def _of_types(value: object) -> Schema | None:
    types = [value] if isinstance(value, str) else value
    if not isinstance(types, list) or not all(isinstance(kind, str) for kind in types) or ("integer" in types and "number" not in types):
        return None
    rest = [kind for kind in TYPES if kind not in types]
    return {"type": rest if len(rest) > 1 else rest[0]} if rest else False


def _of_values(values: object, budget: Budget) -> Schema | None:
    """All but some null, booleans, texts and numbers."""
    if not isinstance(values, list) or any(isinstance(value, (list, dict)) for value in values):
        return None
    budget.spend(len(values))
    texts = [value for value in values if isinstance(value, str)]
    numbers = sorted(value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool))
    if len(texts) > _MOST_TEXTS or len(numbers) > 8:
        return None
    rest: list[Schema] = [{"type": ["array", "object", *([] if None in values else ["null"])]}]
    rest += [{"const": truth} for truth in (True, False) if not any(value is truth for value in values)]
    rest.append({"type": "string", "pattern": all_but(texts, budget)} if texts else {"type": "string"})
    apart: list[Schema] = [any_of([{"exclusiveMaximum": number}, {"exclusiveMinimum": number}]) for number in numbers]
    rest.append({"type": "number", "allOf": apart} if apart else {"type": "number"})
    return any_of(rest)


def all_but(texts: list[str], budget: Budget) -> str:
    """A pattern (of ECMA 262) that every text matches but these; made from the tree of their characters."""
    return f"^(?:{_all_but(sorted(set(texts)), 0, budget)})$"


def _all_but(texts: list[str], at: int, budget: Budget) -> str:
    """The same behind `at` characters that all of them share."""
    branches: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > at:
            branches.setdefault(text[at], []).append(text)
    parts = [] if any(len(text) == at for text in texts) else [""]
    members = "".join(_code(char) for char in branches)
    parts.append(rf"[^{members}][\s\S]*" if members else r"[\s\S]+")
    parts += [f"{_code(char)}(?:{_all_but(rest, at + 1, budget)})" for char, rest in branches.items()]
    pattern = "|".join(parts)
    budget.spend(len(texts) + len(pattern) // 256)
    return pattern


def _code(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\u{{{ord(char):x}}}"
