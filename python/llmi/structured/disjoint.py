"""Whether no value fits two JSON schemas: what turns `oneOf` into `anyOf`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from llmi.structured.budget import Budget
from llmi.structured.complements import TYPES, Schema

_DEPTH = 12
#: Types whose values can be told apart: the keywords of the least and the most; objects are told apart by their properties.
_COUNTED = {"array": ("minItems", "maxItems"), "string": ("minLength", "maxLength"), "number": ("minimum", "maximum")}
_COMPARED = {"object", *_COUNTED}


class _Facts:
    """What a schema says by itself: all that it takes with it by allOf and `$ref`, and what that allows."""

    def __init__(self, schema: Schema, conjuncts: list[Schema], budget: Budget) -> None:
        self.schema = schema  # kept alive, since facts are found by its id
        self.is_false = False in conjuncts
        self.parts = [part for part in conjuncts if isinstance(part, dict)]
        self.values = _values(self.parts, budget)
        self.types = _types(self.parts)


class Disjoint:
    """A sound prover: True is a proof, False says nothing.

    resolve: the schema that a `$ref` names, or None. What it asks itself again it remembers; the budget pays for the rest.
    """

    def __init__(self, resolve: Callable[[str], Schema | None], budget: Budget) -> None:
        self._resolve = resolve
        self._budget = budget
        self._known: dict[int, _Facts] = {}
        self._proven: dict[tuple[int, int], int] = {}  # of two schemas: -1, or the least depth at which there was no proof

    def all_pairs(self, schemas: list[Schema]) -> bool:
        """Whether each two of them are disjoint."""
        facts = [self._facts(schema) for schema in schemas]
        if _are_apart([own.values for own in facts]) or self._are_named_apart(facts):
            return True
        return all(self(a, b) for index, a in enumerate(schemas) for b in schemas[:index])

    def _are_named_apart(self, facts: list[_Facts]) -> bool:
        """Whether all are objects alone, and have one property that must be there and tells them apart by its values."""
        if not all(own.types == {"object"} for own in facts):
            return False
        names = [{name for part in own.parts for name in _listed(part.get("required"))} for own in facts]
        self._budget.spend(sum(map(len, names)))
        for name in set.intersection(*names):
            self._budget.spend(len(facts))
            if _are_apart([self._values_of(own, name) for own in facts]):
                return True
        return False

    def _values_of(self, facts: _Facts, name: str) -> set[str] | None:
        """The values of a property, as far as one schema tells."""
        found = (self._facts(self._target(schema)).values for schema in _of_property(facts.parts, name))
        return next((values for values in found if values is not None), None)

    def __call__(self, first: Schema, second: Schema, depth: int = 0) -> bool:
        """Whether the two are disjoint."""
        self._budget.spend()
        if depth > _DEPTH:
            return False
        first, second = self._target(first), self._target(second)
        key = (id(first), id(second))
        known = self._proven.get(key)
        if known is None or known > depth:
            known = self._proven[key] = -1 if self._prove(self._facts(first), self._facts(second), depth) else depth
        return known < 0

    def _prove(self, a: _Facts, b: _Facts, depth: int) -> bool:
        if a.is_false or b.is_false:
            return True
        if self._conflict(a, b, depth):
            return True
        for own, other in ((a, b), (b, a)):
            for part in own.parts:
                for name in ("anyOf", "oneOf"):
                    options = part.get(name)
                    if isinstance(options, list) and options and all(self(option, other.schema, depth + 1) for option in options):
                        return True
        return False

    def _target(self, schema: Schema) -> Schema:
        """What a schema that is a reference leads to; itself, if that is unknown."""
        for _ in range(_DEPTH):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            target = self._resolve(reference) if isinstance(reference, str) else None
            if target is None:
                break
            schema = target
        return schema

    def _facts(self, schema: Schema) -> _Facts:
        facts = self._known.get(id(schema))
        if facts is None:
            facts = self._known[id(schema)] = _Facts(schema, [*self._conjuncts(schema, 0)], self._budget)
        return facts

    def _conjuncts(self, schema: object, depth: int) -> Iterator[Schema]:
        """A schema and all that it takes with it by allOf and `$ref`."""
        self._budget.spend()
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

    def _conflict(self, a: _Facts, b: _Facts, depth: int) -> bool:
        """Whether each type that both allow is without a value that fits both."""
        if a.values is not None and b.values is not None and a.values.isdisjoint(b.values):
            return True
        kinds = a.types & b.types
        if not kinds <= _COMPARED:
            return False
        self._budget.spend(len(a.parts) + len(b.parts))
        return all(
            self._objects(a.parts, b.parts, depth) if kind == "object" else _apart(a.parts, b.parts, *_COUNTED[kind]) for kind in kinds
        )

    def _objects(self, a: list[dict[str, object]], b: list[dict[str, object]], depth: int) -> bool:
        """Whether some name must be there on one side, and has no value that fits both."""
        listed = [name for part in a + b for name in _listed(part.get("required"))]
        self._budget.spend(len(listed))
        for name in dict.fromkeys(listed):
            self._budget.spend(len(a) + len(b))
            own, other = [*_of_property(a, name)], [*_of_property(b, name)]
            if False in (own + other) or any(self(x, y, depth + 1) for x in own for y in other):
                return True
        return False


def _are_apart(all_values: list[set[str] | None]) -> bool:
    """Whether all are finitely many values, and no value comes twice."""
    every = [text for values in all_values for text in values or ()]
    return None not in all_values and len(every) == len({*every})


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


def _values(parts: list[dict[str, object]], budget: Budget) -> set[str] | None:
    """The texts of all values that may fit, or None for endless many. A number that is whole is an integer."""
    found: set[str] | None = None
    for part in parts:
        for values in (part.get("enum"), [part["const"]] if "const" in part else None):
            if isinstance(values, list):
                budget.spend(len(values))
                texts = {_text(value) for value in values}
                found = texts if found is None else found & texts
    return found


def _text(value: object) -> str:
    """The same for equal values."""
    return json.dumps(
        json.loads(json.dumps(value), parse_float=lambda number: int(float(number)) if float(number).is_integer() else float(number)),
        sort_keys=True,
    )


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
