"""A walk over the schemas inside a JSON schema, which rewrites each of them in place."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar, cast

from llmi.structured.complements import Schema
from llmi.structured.disjoint import Disjoint

#: Keywords of schemas: one schema, a list of them, schemas by name.
_ONE = ("additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
        "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
#: Keywords that the library does not know; those that no rule has taken away are refused.
UNKNOWN = frozenset((
    "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary", "contains", "dependencies", "dependentRequired",
    "dependentSchemas", "else", "if", "maxContains", "minContains", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    "uniqueItems",
))  # fmt: skip
DRAFTS = {
    "draft-04/schema": "http://json-schema.org/draft-04/schema#", "draft-06/schema": "http://json-schema.org/draft-06/schema#",
    "draft-07/schema": "http://json-schema.org/draft-07/schema#", "draft/2019-09/schema": "https://json-schema.org/draft/2019-09/schema",
    "draft/2020-12/schema": "https://json-schema.org/draft/2020-12/schema",
}  # fmt: skip


T = TypeVar("T")


Rule: TypeAlias = "Callable[[Walk, dict[str, object], str], None]"


class Problem(NamedTuple):
    """A keyword that cannot be enforced: where (JSON pointer), the keyword, and why."""

    pointer: str
    keyword: str
    why: str

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.keyword!r}" + f" ({self.why})" * bool(self.why)


def atoms(value: object) -> Iterator[object]:
    """All that is not a list or an object in a value; names too."""
    if isinstance(value, dict):
        yield from value
        value = [*value.values()]
    for entry in value if isinstance(value, list) else []:
        yield from atoms(entry)
    if not isinstance(value, list):
        yield value


def copied(value: T) -> T:
    """Another JSON value that is equal."""
    result: object = value
    if isinstance(value, dict):
        result = {name: copied(entry) for name, entry in value.items()}
    elif isinstance(value, list):
        result = [copied(entry) for entry in value]
    return cast("T", result)


class Walk:
    """One walk over a schema, in place. Invariant: a node in `seen` has been rewritten, and is not again."""

    def __init__(self, schema: dict[str, object], rules: Sequence[tuple[Rule, frozenset[str]]]) -> None:
        self.root = copied(schema)
        self.rules = rules
        self.original = schema  # copies come from here: a node must not be rewritten twice
        self.fractions = [value for value in atoms(schema) if isinstance(value, float) and not value.is_integer()]
        self.one_resource = not any(_resources(schema, schema))
        self.draft: str | None = None  # as in DRAFTS; None: not said
        self.problems: list[Problem] = []
        self.seen: dict[int, object] = {}  # nodes by their ids, kept alive so that no other one gets an id again
        self.references: list[str] = []
        self.disjoint = Disjoint(self.resolve)

    def run(self) -> None:
        self._dialect()
        self.visit(self.root, "")
        while self.references:  # they may name places that are no schemas otherwise
            reference = self.references.pop()
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
        return schema_at(self.original, reference) if self.one_resource else None

    def refuse(self, pointer: str, node: dict[str, object], keyword: str, why: str = "") -> None:
        """Notes a problem, and takes the keyword away."""
        self.problems.append(Problem(pointer, keyword, why))
        node.pop(keyword, None)

    def visit(self, node: object, pointer: str) -> None:
        """Rewrites a schema and all in it."""
        if not isinstance(node, dict) or id(node) in self.seen:
            return
        self.seen[id(node)] = node
        for rule, keywords in self.rules:
            if not keywords.isdisjoint(node):
                rule(self, node, pointer)
        for place, child in _children(node, pointer):
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


def _resources(value: object, root: object) -> Iterator[object]:
    """Objects below the root with an identifier of their own, which changes what references mean."""
    if isinstance(value, dict):
        if value is not root and (isinstance(value.get("$id"), str) or isinstance(value.get("id"), str)):
            yield value
        for entry in value.values():
            yield from _resources(entry, root)
    for entry in value if isinstance(value, list) else []:
        yield from _resources(entry, root)


def is_schema_place(pointer: str) -> bool:
    """Whether a JSON pointer leads from schema to schema by keywords, so that the walk comes there."""
    parts = pointer.split("/")[1:]
    while parts:
        name = parts.pop(0)
        if name in _NAMED or (name in _LISTS and parts and parts[0].isdecimal()):
            if not parts:
                return False
            parts.pop(0)
        elif name not in _ONE:
            return False
    return True


def _children(node: dict[str, object], pointer: str) -> Iterator[tuple[str, object]]:
    """The schemas right inside a schema."""
    for name, value in [*node.items()]:
        place = f"{pointer}/{_escaped(name)}"
        if name in _ONE and isinstance(value, dict):
            yield place, value
        elif name in _LISTS and isinstance(value, list):
            yield from ((f"{place}/{index}", entry) for index, entry in enumerate([*value]))
        elif name in _NAMED and isinstance(value, dict):
            yield from ((f"{place}/{_escaped(key)}", entry) for key, entry in [*value.items()])


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
