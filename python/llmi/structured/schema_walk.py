"""A walk over the schemas inside a JSON schema, which rewrites each of them in place."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

from llmi.structured.budget import Budget
from llmi.structured.complements import Schema
from llmi.structured.disjoint import Disjoint

#: Keywords of schemas: one schema, a list of them, schemas by name.
_ONE = ("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
        "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
#: Keywords that the library does not know; those that no rule has taken away are refused.
UNKNOWN = frozenset(
    (
        "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary", "contains", "dependencies",
        "dependentRequired", "dependentSchemas", "else", "if", "maxContains", "minContains", "not", "propertyNames", "then",
        "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    )
)  # fmt: skip
DRAFTS = {
    "draft-04/schema": "http://json-schema.org/draft-04/schema#",
    "draft-06/schema": "http://json-schema.org/draft-06/schema#",
    "draft-07/schema": "http://json-schema.org/draft-07/schema#",
    "draft/2019-09/schema": "https://json-schema.org/draft/2019-09/schema",
    "draft/2020-12/schema": "https://json-schema.org/draft/2020-12/schema",
}
_STEPS_OF_A_COPY = 10  # of an object: the walk visits the copy, too


T = TypeVar("T")


#: A JSON pointer: its text, or (the pointer of what is around, one more part), so that a long one is written out for errors alone.
Pointer: TypeAlias = "str | tuple[Pointer, str]"
Rule: TypeAlias = "Callable[[Walk, dict[str, object], Pointer], None]"


class Problem(NamedTuple):
    """A keyword that cannot be enforced: where (JSON pointer), the keyword, and why."""

    pointer: str
    keyword: str
    why: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.keyword!r}" + f" ({self.why})" * bool(self.why)


def atoms(value: object) -> Iterator[object]:
    """All that is not a list or an object in a value; names too."""
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, dict):
            yield from entry
            waiting += entry.values()
        elif isinstance(entry, list):
            waiting += entry
        else:
            yield entry


def copied(value: T, budget: Budget | None = None) -> T:
    """Another JSON value that is equal. budget: pays for it; None: it is copied once, so that its size is a bound."""
    if budget is not None:
        budget.spend(_STEPS_OF_A_COPY if isinstance(value, dict) else 1)
    result: object = value
    if isinstance(value, dict):
        result = {name: copied(entry, budget) for name, entry in value.items()}
    elif isinstance(value, list):
        result = [copied(entry, budget) for entry in value]
    return cast("T", result)


class Walk:
    """One walk over a schema, in place. Invariant: a node in `seen` has been rewritten, and is not again."""

    def __init__(self, schema: dict[str, object], rules: Sequence[tuple[Rule, frozenset[str]]], budget: Budget) -> None:
        self.root = copied(schema)
        self.rules = rules
        self.budget = budget  # pays for all that is not linear in the schema's size
        self.original = schema  # copies come from here: a node must not be rewritten twice
        self.fractions = sorted(value for value in atoms(schema) if isinstance(value, float) and not value.is_integer())
        self.one_resource = not _has_resources(schema)
        self.draft: str | None = None  # as in DRAFTS; None: not said
        self.problems: list[Problem] = []
        self.seen: dict[int, object] = {}  # nodes by their ids, kept alive so that no other one gets an id again
        self.references: list[str] = []
        self._targets: dict[str, Schema | None] = {}  # of references
        self.disjoint = Disjoint(self.resolve, budget)

    def run(self) -> None:
        self._dialect()
        self.visit(self.root, "")
        done: set[str] = set()
        while self.references:  # they may name places that are no schemas otherwise
            reference = self.references.pop()
            if reference in done:
                continue
            done.add(reference)
            target = schema_at(self.root, reference)
            if isinstance(target, dict):
                self.visit(target, urllib.parse.unquote(reference[1:]))

    def _dialect(self) -> None:
        uri = self.root.get("$schema")
        if uri is None:
            return
        name = re.sub(r"^https?://json-schema\.org/", "", uri).rstrip("#") if isinstance(uri, str) else ""
        if name in DRAFTS:
            self.draft = name
            self.root["$schema"] = DRAFTS[name]
        else:
            self.refuse("", self.root, "$schema", "known are drafts 4, 6, 7, 2019-09 and 2020-12")

    def resolve(self, reference: str) -> Schema | None:
        """The schema that a reference into this document names, as it was before the walk; None for others."""
        if reference not in self._targets:
            self._targets[reference] = schema_at(self.original, reference) if self.one_resource else None
        return self._targets[reference]

    def refuse(self, pointer: Pointer, node: dict[str, object], keyword: str, why: str = "") -> None:
        """Notes a problem, and takes the keyword away."""
        place = written(pointer)
        self.budget.spend(1 + len(place) // 64)
        self.problems.append(Problem(place, keyword, why))
        node.pop(keyword, None)

    def visit(self, node: object, pointer: Pointer) -> None:
        """Rewrites a schema and all in it."""
        if not isinstance(node, dict) or id(node) in self.seen:
            return
        self.seen[id(node)] = node
        for rule, keywords in self.rules:
            if not keywords.isdisjoint(node):
                rule(self, node, pointer)
        for place, child in children(node, pointer):
            self.visit(child, place)
        for keyword in [keyword for keyword in node if keyword in UNKNOWN]:
            self.refuse(pointer, node, keyword)

    def add(self, node: dict[str, object], schema: Schema, *, final: bool = False) -> None:
        """One more schema that the node's values must fit. final: it is in the library's syntax already."""
        if schema is True:
            return
        parts = node.setdefault("allOf", [])
        if not isinstance(parts, list):
            return  # the library says what is wrong with it
        if final:
            self.seen[id(schema)] = schema
        parts.append(schema)


def schema_at(root: object, reference: str) -> Schema | None:
    """The schema at a JSON pointer of a document."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    target: object = root
    for part in urllib.parse.unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target if isinstance(target, (dict, bool)) else None


def _has_resources(root: object) -> bool:
    """Whether there are objects below the root with an identifier of their own, which changes what references mean."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if value is not root and (isinstance(value.get("$id"), str) or isinstance(value.get("id"), str)):
                return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False


def is_schema_place(pointer: str) -> bool:
    """Whether a JSON pointer leads from schema to schema by keywords, so that the walk comes there."""
    parts = pointer.split("/")[1:]
    at = 0
    while at < len(parts):
        name = parts[at]
        if name in _NAMED or (name in _LISTS and at + 1 < len(parts) and parts[at + 1].isdecimal()):
            at += 2
        elif name in _ONE:
            at += 1
        else:
            return False
    return at == len(parts)


def children(node: dict[str, object], pointer: Pointer) -> Iterator[tuple[Pointer, object]]:
    """The schemas right inside a schema."""
    for name, value in [*node.items()]:
        place = (pointer, name)
        if name in _ONE and isinstance(value, dict):
            yield place, value
        elif name in _LISTS and isinstance(value, list):
            yield from (((place, str(index)), entry) for index, entry in enumerate([*value]))
        elif name in _NAMED and isinstance(value, dict):
            yield from (((place, key), entry) for key, entry in [*value.items()])


def written(pointer: Pointer) -> str:
    """A JSON pointer's text."""
    parts: list[str] = []
    while not isinstance(pointer, str):
        pointer, part = pointer
        parts.append(_escaped(part))
    return "/".join([pointer, *reversed(parts)])


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
