"""Objects whose schema lists properties and says nothing of others, closed: they get none that is not listed.

The standard lets them have any others. Models that are small make names up then, until the limit; docs/decisions/0012.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator

from llmi.structured.budget import Budget
from llmi.structured.complements import ANNOTATIONS, CLOSED, Schema
from llmi.structured.schema_walk import Walk, children, copied, schema_at

#: Keywords that say something of names that are not listed.
_SPEAKS = frozenset(("additionalProperties", "unevaluatedProperties", "propertyNames", "$dynamicRef", "$recursiveRef"))
_ALTERNATIVES = ("anyOf", "oneOf")
_NAMES_A_STEP = 8  # of a budget
#: Keywords whose schemas are for other places than the object itself; how the standard combines them does not matter where one schema has
#: them alone.
_INNER = (
    "patternProperties", "additionalProperties", "unevaluatedProperties", "items", "prefixItems", "additionalItems", "unevaluatedItems",
)  # fmt: skip


@dataclasses.dataclass
class _Said:
    """The names of an object that schemas which hold together list, in order, each with whether it is a property of one of them or only
    required; whether any has `properties`, speaks of other names, or has patterns of names.
    """

    names: dict[str, bool] = dataclasses.field(default_factory=dict)
    lists: bool = False
    speaks: bool = False
    patterns: bool = False

    def add(self, other: _Said, budget: Budget) -> None:
        """Takes in the names of other schemas, which hold at the same time, or instead."""
        budget.spend(1 + len(other.names) // _NAMES_A_STEP)
        for name, is_property in other.names.items():
            self.names[name] = is_property or self.names.get(name, False)
        self.lists |= other.lists
        self.speaks |= other.speaks
        self.patterns |= other.patterns


def close_marked(walk: Walk) -> None:
    """Closes what is marked, when the walk is done: its proofs and complements are of the schemas as they were.

    A `oneOf` that the walk has left is the library's to prove or to refuse; closed alternatives might be apart where the schema's own are
    not, so nothing is closed.
    """
    nodes = [node for node in walk.seen.values() if isinstance(node, dict)]
    is_open = any(isinstance(options := node.get("oneOf"), list) and len(options) > 1 for node in nodes)
    for node in nodes:
        names = node.pop(CLOSED, None)
        if is_open or not isinstance(names, list):
            continue
        listed = node.setdefault("properties", {})
        if isinstance(listed, dict):
            node["properties"] = {**{name: listed.get(name, True) for name in names}, **listed}
            node["additionalProperties"] = False


def _unmark(schemas: list[object]) -> None:
    waiting = [*schemas]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            node.pop(CLOSED, None)
            waiting += (child for _, child in children(node, ""))


class Marking:
    """A schema of the same instances, in which the objects to close are marked with the names that they may have.

    A schema that holds together with others, by allOf or next to a reference, is closed with them as a whole, or not at all. What they
    refer to is taken from a copy that stays as it is, since others may refer to it alone, where it is closed.

    Attributes
    ----------
    root : dict
        The marked schema.
    copies : dict
        References in the schema, and those to the copies of what they name.
    """

    def __init__(self, schema: dict[str, object], budget: Budget) -> None:
        self.root = copied(schema)
        self.copies: dict[str, str] = {}
        self._original = schema
        self._budget = budget
        self._resolver = Walk(schema, (), budget)
        draft = self.root.get("$schema")
        self._is_old = isinstance(draft, str) and "draft-0" in draft  # next to $ref nothing holds
        self._said: dict[int, _Said] = {}  # by a schema's id
        self._seen: set[int] = set()
        self._waiting: list[str] = []  # references to what stands alone
        self._number = 0  # of the next copy
        _unmark([self.root])  # no other one makes marks
        self._visit(self.root, _Said())
        while self._waiting:
            self._visit(schema_at(self.root, self._waiting.pop()), _Said())

    # --- what schemas say

    def _target(self, node: dict[str, object]) -> Schema | None:
        reference = node.get("$ref")
        return self._resolver.resolve(reference) if isinstance(reference, str) else None

    def _own(self, node: dict[str, object]) -> _Said:
        """The names that a schema lists by itself, without its parts."""
        if self._is_old and "$ref" in node:
            return _Said()
        listed, least = node.get("properties"), node.get("minProperties")
        said = _Said(speaks=not _SPEAKS.isdisjoint(node), patterns="patternProperties" in node)
        needed = [node.get("required"), *_values(node.get("dependentRequired")), *_values(node.get("dependencies"))]
        said.names.update((name, False) for names in needed if isinstance(names, list) for name in names if isinstance(name, str))
        if isinstance(listed, dict):
            said.names = {**dict.fromkeys(listed, True), **{name: name in listed for name in said.names}}
            said.lists, said.speaks = True, said.speaks or (isinstance(least, int) and least > len(listed))
        return said

    def _of_target(self, node: dict[str, object]) -> _Said:
        """The names that a reference's target lists; a target that cannot be known speaks of all names."""
        target = self._target(node)
        return _Said(speaks=True) if target is None else self._all(target)

    def _all(self, schema: object) -> _Said:
        """The names that it lists with all parts and alternatives, and with what it refers to."""
        if not isinstance(schema, dict):
            return _Said()
        if id(schema) in self._said:
            return self._said[id(schema)]
        said = self._said[id(schema)] = _Said()  # a reference to itself adds nothing
        for part in self._parts(schema):
            said.add(self._own(part), self._budget)
            if "$ref" in part:
                said.add(self._of_target(part), self._budget)
            for option in (option for options in _alternatives(part) for option in options):
                said.add(self._all(option), self._budget)
        return said

    def _parts(self, node: dict[str, object]) -> Iterator[dict[str, object]]:
        """A schema and those in it that hold together with it, always or on a condition."""
        yield node
        if self._is_old and "$ref" in node:
            return
        parts = [
            *_list(node.get("allOf")),
            node.get("then"),
            node.get("else"),
            *_values(node.get("dependentSchemas")),
            *_values(node.get("dependencies")),
        ]
        for part in parts:
            if isinstance(part, dict):
                yield from self._parts(part)

    # --- what is marked

    def _visit(self, node: object, around: _Said) -> None:
        """Marks a schema, if it is to be closed, and what is in it. around: what holds together with it."""
        if not isinstance(node, dict) or id(node) in self._seen:
            return
        parts = [*self._parts(node)]
        self._seen.update(map(id, parts))
        sources: list[_Said] = [around]  # in order
        others: list[_Said] = [around]  # all but what references lead to
        references: list[tuple[dict[str, object], _Said]] = []
        groups: list[tuple[list[object], _Said]] = []  # alternatives, and what all of them say together
        for part in parts:
            if "$ref" in part:
                references.append((part, self._of_target(part)))
                sources.append(references[-1][1])
            others.append(self._own(part))
            sources.append(others[-1])
            for options in _alternatives(part):
                groups.append((options, _union(map(self._all, options), self._budget)))
                others.append(groups[-1][1])
                sources.append(others[-1])
        said = _union(sources, self._budget)
        times = Counter(name for source in sources for name, is_property in source.names.items() if is_property)
        lone = len(references) == 1 and not any(
            source.lists or source.speaks or not source.names.keys() <= references[0][1].names.keys() for source in others
        )
        for part, target in references:
            if lone or not target.lists:
                self._waiting.append(str(part["$ref"]))
            else:
                part["$ref"] = self._copy(str(part["$ref"]))
        own = others[1]  # whose patterns go with it
        is_spoken_of = said.speaks or any(source.patterns for source in sources if source is not own)
        if not lone and said.lists and not is_spoken_of and not any(choice.lists for _, choice in groups):
            self._mark(node, said)
        for options, choice in groups:
            with_it = _union((source for source in sources if source is not choice), self._budget) if choice.lists else _Said()
            for option in options:
                self._visit(option, with_it)
        is_alone = len(parts) == 1 and not references and not around.lists
        for part in parts:
            for name, value in _items(part.get("properties")):
                self._visit(value, _Said()) if times[name] == 1 else self._leave(value)
            for value in (value for keyword in _INNER for value in _schemas(part.get(keyword), keyword)):
                self._visit(value, _Said()) if is_alone else self._leave(value)

    def _mark(self, node: dict[str, object], said: _Said) -> None:
        if "$ref" in node:  # next to it keywords of old drafts have no effect
            reference = node.pop("$ref")
            for name in [name for name in node if self._is_old and name not in ANNOTATIONS]:
                del node[name]
            node["allOf"] = [*_list(node.get("allOf")), {"$ref": reference}]
        self._budget.spend(len(said.names) // _NAMES_A_STEP)
        node[CLOSED] = [*said.names]

    def _copy(self, reference: str) -> str:
        """A reference to a copy of what is named, which stays as it is."""
        if reference in self.copies:
            return self.copies[reference]
        target, places = schema_at(self._original, reference), self.root.setdefault("$defs", {})
        if not isinstance(target, dict) or not isinstance(places, dict):
            return reference
        while (name := f"open-{self._number}") in places:
            self._number += 1
        self.copies[reference] = f"#/$defs/{name}"
        places[name] = copied(target, self._budget)
        self._leave(places[name])
        return self.copies[reference]

    def _leave(self, node: object) -> None:
        """Nothing in it is closed: what it refers to neither."""
        waiting = [node]
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in self._seen:
                continue
            self._budget.spend()
            self._seen.add(id(schema))
            if self._target(schema) is not None:
                schema["$ref"] = self._copy(str(schema["$ref"]))
            waiting += (child for _, child in children(schema, ""))


def _union(sources: Iterable[_Said], budget: Budget) -> _Said:
    result = _Said()
    for source in sources:
        result.add(source, budget)
    return result


def _alternatives(node: dict[str, object]) -> list[list[object]]:
    return [options for name in _ALTERNATIVES if isinstance(options := node.get(name), list)]


def _schemas(value: object, keyword: str) -> list[object]:
    """The schemas that a keyword of _INNER has."""
    return value if isinstance(value, list) else _values(value) if keyword == "patternProperties" else [value]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _items(value: object) -> list[tuple[str, object]]:
    return [*value.items()] if isinstance(value, dict) else []


def _values(value: object) -> list[object]:
    return [*value.values()] if isinstance(value, dict) else []
