"""Whether no value fits two JSON schemas: what turns `oneOf` into `anyOf`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from llmi.structured.complements import TYPES, Schema

_DEPTH = 12


class Disjoint:
    """A sound prover: True is a proof, False says nothing.

    resolve: the schema that a `$ref` names, or None.
    """

    def __init__(self, resolve: Callable[[str], Schema | None]) -> None:
        self._resolve = resolve

    def all_pairs(self, schemas: list[Schema]) -> bool:
        """Whether each two of them are disjoint."""
        return all(self(a, b) for index, a in enumerate(schemas) for b in schemas[:index])

    def __call__(self, first: Schema, second: Schema, depth: int = 0) -> bool:
        """Whether the two are disjoint."""
        if depth > _DEPTH:
            return False
        a, b = [*self._conjuncts(first, 0)], [*self._conjuncts(second, 0)]
        if False in a or False in b:
            return True
        for own, other in ((a, second), (b, first)):
            for part in own:
                for name in ("anyOf", "oneOf"):
                    options = part.get(name) if isinstance(part, dict) else None
                    if isinstance(options, list) and options and all(self(option, other, depth + 1) for option in options):
                        return True
        return self._conflict([part for part in a if isinstance(part, dict)], [part for part in b if isinstance(part, dict)], depth)

    def _conjuncts(self, schema: object, depth: int) -> Iterator[Schema]:
        """A schema and all that it takes with it by allOf and `$ref`."""
        if isinstance(schema, bool):
            yield schema
        if not isinstance(schema, dict) or depth > _DEPTH:
            return
        reference = schema.get("$ref")
        if isinstance(reference, str):  # drafts differ on the keywords next to it: they are not used
            yield from self._conjuncts(self._resolve(reference), depth + 1)
            return
        yield schema
        parts = schema.get("allOf")
        for part in parts if isinstance(parts, list) else []:
            yield from self._conjuncts(part, depth + 1)

    def _conflict(self, a: list[dict[str, object]], b: list[dict[str, object]], depth: int) -> bool:
        """Whether each type that both allow is without a value that fits both."""
        values = [_values(a), _values(b)]
        if values[0] is not None and values[1] is not None and not values[0] & values[1]:
            return True
        kinds = _types(a) & _types(b)
        return all(
            {"object": self._objects(a, b, depth), "array": _apart(a, b, "minItems", "maxItems"), "string": _apart(a, b, "minLength", "maxLength"),
             "number": _apart(a, b, "minimum", "maximum")}.get(kind, False) for kind in kinds
        )  # fmt: skip

    def _objects(self, a: list[dict[str, object]], b: list[dict[str, object]], depth: int) -> bool:
        """Whether some name must be there on one side, and has no value that fits both."""
        names = {name for part in a + b for name in _listed(part.get("required"))}
        for name in names:
            needed = any(name in _listed(part.get("required")) for part in a)
            own, other = [*_of_property(a, name)], [*_of_property(b, name)]
            if False in (own + other) or any(self(x, y, depth + 1) for x in own for y in other):
                return True
            if not needed and False in own:
                return True
        return False


def _types(parts: list[dict[str, object]]) -> set[str]:
    """The types that all of them allow; integers are numbers."""
    kinds = set(TYPES)
    for part in parts:
        given = part.get("type")
        listed = [given] if isinstance(given, str) else _listed(given)
        if listed:
            kinds &= {"number" if kind == "integer" else kind for kind in listed}
        for values in (part.get("enum"), [part["const"]] if "const" in part else None):
            if isinstance(values, list):
                kinds &= {_type_of(value) for value in values}
    return kinds


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    for kinds, name in ((bool, "boolean"), ((int, float), "number"), (str, "string"), (list, "array")):
        if isinstance(value, kinds):
            return name
    return "object"


def _values(parts: list[dict[str, object]]) -> set[str] | None:
    """The texts of all values that may fit, or None for endless many. A number that is whole is an integer."""
    found: set[str] | None = None
    for part in parts:
        for values in (part.get("enum"), [part["const"]] if "const" in part else None):
            if isinstance(values, list):
                texts = {_text(value) for value in values}
                found = texts if found is None else found & texts
    return found


def _text(value: object) -> str:
    """The same for equal values."""
    return json.dumps(json.loads(json.dumps(value), parse_float=lambda number: int(float(number)) if float(number).is_integer() else float(number)),
                      sort_keys=True)  # fmt: skip


def _apart(a: list[dict[str, object]], b: list[dict[str, object]], low: str, high: str) -> bool:
    """Whether the least of one side is over the most of the other."""

    def bounds(parts: list[dict[str, object]], name: str) -> list[float]:
        values = (part.get(name) for part in parts)
        return [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]

    pairs = [(x, y) for x in bounds(a, low) for y in bounds(b, high)] + [(x, y) for x in bounds(b, low) for y in bounds(a, high)]
    return any(x > y for x, y in pairs)


def _of_property(parts: list[dict[str, object]], name: str) -> Iterator[Schema]:
    """The schemas that a property must fit, as far as names tell."""
    for part in parts:
        properties = part.get("properties")
        if isinstance(properties, dict) and name in properties:
            yield properties[name]
        elif part.get("additionalProperties") is False and not part.get("patternProperties"):
            yield False


def _listed(value: object) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []
