"""Rules for the keywords of a schema: each one completes one by an equivalent, takes it away where it has no effect, or refuses it.

docs/structured-output.md lists where the library is laxer than the standard, and what is rewritten.
"""

from __future__ import annotations

import re
import urllib.parse

from llmi.base.kinds import show
from llmi.structured.complements import ANNOTATIONS, CLOSED, Schema, all_of, any_of, complement
from llmi.structured.formats import format_schemas
from llmi.structured.number_rules import BOUNDS, beginnings_of_bounds, exact_numbers, open_bounds
from llmi.structured.patterns import PatternError, library_pattern
from llmi.structured.schema_walk import UNKNOWN, Pointer, Rule, Walk, atoms, copied, is_schema_place

_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties", "maxContains", "minContains")
_MOST_CASES = 4  # conditions at one place: each doubles the alternatives
#: What JSON texts can say only by `\u`, which a schema's own names might be written with, too, so that the library may write none.
_UNWRITABLE = re.compile(r"[\x00-\x07\x0B\x0E-\x1F\x7F]")


def _counts(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """2.0 is 2."""
    for name in _COUNTS:
        value = node.get(name)
        if isinstance(value, float) and value.is_integer():
            node[name] = int(value)


def _inert(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """Keywords that say nothing where they stand."""
    if node.get("uniqueItems") is False or (node.get("uniqueItems") is True and _count(node.get("maxItems")) in (0, 1)):
        del node["uniqueItems"]
    if "contains" not in node:
        node.pop("minContains", None)
        node.pop("maxContains", None)
    elif node.get("minContains") == 0 and "maxContains" not in node:
        del node["contains"], node["minContains"]
    if "if" not in node:
        node.pop("then", None)
        node.pop("else", None)
    for name in ("dependencies", "dependentRequired", "dependentSchemas"):
        if node.get(name) == {}:
            del node[name]
    for name in ("propertyNames", "not", "unevaluatedItems", "unevaluatedProperties"):
        if node.get(name) is (name != "not") or (name != "not" and node.get(name) == {}):
            del node[name]


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _reference(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """Next to `$ref`, drafts up to 7 ignore all, `$id` too, which then does not change what the reference means."""
    reference = node.get("$ref")
    if not isinstance(reference, str):
        return
    target = walk.resolve(reference)
    if isinstance(target, bool):
        del node["$ref"]
        return walk.add(node, target)
    walk.references.append(reference)
    base, _, pointer_in_it = reference.partition("#")
    if (base or not walk.one_resource) and pointer_in_it.startswith("/") and not is_schema_place(urllib.parse.unquote(pointer_in_it)):
        return walk.refuse(pointer, node, "$ref", "it leads to a place without a keyword for schemas")
    name = "$id" if "$id" in node else "id" if "id" in node else None
    if name is None or (node is walk.root and reference.startswith("#")) or walk.draft in ("draft/2019-09/schema", "draft/2020-12/schema"):
        return None
    if walk.draft is not None:
        del node[name]
        return None
    return walk.refuse(pointer, node, name, "next to $ref its meaning depends on the draft: give $schema")


def _old_reference(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    if isinstance(node.get("$ref"), str) and walk.draft is not None and walk.draft.startswith("draft-0"):
        for name in [name for name in node if name not in ANNOTATIONS and name != "$ref"]:
            del node[name]


def _controls(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    for name in ("const", "enum"):
        if any(isinstance(atom, str) and _UNWRITABLE.search(atom) for atom in atoms(node.get(name))):
            walk.refuse(pointer, node, name, "a text holds a control character that JSON writes by \\u only")


def _patterns(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    pattern, named = node.get("pattern"), node.get("patternProperties")
    try:
        if isinstance(pattern, str):
            node["pattern"] = library_pattern(pattern)
    except PatternError as error:
        walk.refuse(pointer, node, "pattern", str(error))
    if isinstance(named, dict):
        try:
            translated = {library_pattern(key): value for key, value in named.items()}
        except PatternError as error:
            return walk.refuse(pointer, node, "patternProperties", str(error))
        if len(translated) < len(named):
            return walk.refuse(pointer, node, "patternProperties", "two patterns are the same")
        node["patternProperties"] = translated
    return None


def _items(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """additionalItems is for lists of items alone; the library would read another draft where it stands next to prefixItems."""
    if "additionalItems" in node and not isinstance(node.get("items"), list):
        del node["additionalItems"]
    old = walk.draft not in (None, "draft/2020-12/schema")
    if "prefixItems" in node and (old or isinstance(node.get("items"), list)):
        walk.refuse(pointer, node, "prefixItems", "in drafts before 2020-12 it is items")


def _format(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    name = node.get("format")
    kind = node.get("type")
    kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else ["string"]
    if not isinstance(name, str):
        return
    if "string" not in kinds:
        del node["format"]  # all formats of the standard are for texts
        return
    schemas = format_schemas(name)
    if schemas is None:
        return walk.refuse(pointer, node, "format", f"unknown format {show(name)}")
    del node["format"]
    if "pattern" not in node:
        first = schemas.pop(0)
        longest = [value for value in (first.pop("maxLength", None), node.get("maxLength")) if isinstance(value, int)]
        node |= first | ({"maxLength": min(longest)} if longest else {})
    for schema in schemas:
        walk.add(node, schema if kind is None else {"type": kind, **schema}, final=True)
    return None


def _not(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    inner = node.get("not")
    if not isinstance(inner, (dict, bool)):
        return
    other = complement(inner, walk.resolve, walk.budget)
    if other is not None and other is not False:
        del node["not"]
        walk.add(node, copied(other, walk.budget))


def _conditions(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """if, then, else: both hold, or `else` does and `if` does not."""
    condition = node.get("if")
    if not isinstance(condition, (dict, bool)):
        return
    yes, no = node.get("then", True), node.get("else", True)
    if not isinstance(yes, (dict, bool)) or not isinstance(no, (dict, bool)):
        return
    otherwise = complement(condition, walk.resolve, walk.budget)
    if otherwise is None and not (yes is True and no is True):
        return
    for name in ("if", "then", "else"):
        node.pop(name, None)
    if otherwise is not None:
        walk.add(node, copied(any_of([all_of([condition, yes]), all_of([otherwise, no])]), walk.budget))


def _dependencies(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """A name is not there, or its requirement holds."""
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        entries = node.get(keyword)
        if not isinstance(entries, dict) or len(entries) > _MOST_CASES:
            continue
        kinds = {"dependencies": (list, dict, bool), "dependentRequired": (list,), "dependentSchemas": (dict, bool)}[keyword]
        if not all(isinstance(entry, kinds) for entry in entries.values()):
            continue
        del node[keyword]
        for name, entry in entries.items():
            needed: Schema = {"required": entry} if isinstance(entry, list) else entry
            if needed not in (True, {}, {"required": []}):
                walk.add(node, {"anyOf": [{"properties": {name: False}}, needed]})


def _property_names(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """Names without a schema of their own, by pattern: those that match have the schema of the others, which are not there."""
    names = node.get("propertyNames")
    if not isinstance(names, dict) or node.keys() & {"properties", "patternProperties", "required"}:
        return
    keywords = {name: value for name, value in names.items() if name not in ANNOTATIONS and (name, value) != ("type", "string")}
    rest = node.get("additionalProperties", True)
    if not keywords:
        del node["propertyNames"]
    elif isinstance(keywords.get("pattern"), str) and len(keywords) == 1:
        del node["propertyNames"]
        node |= {"patternProperties": {keywords["pattern"]: rest}, "additionalProperties": False}


def _unevaluated(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """Without other keywords that evaluate, all but the properties (or items) named here are unevaluated."""
    if node.keys() & {
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "dependentSchemas",
        "dependencies",
        "not",
        "contains",
    }:
        return
    for keyword, plain in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if keyword in node and (plain not in node or isinstance(node[plain], (dict, bool))) and "additionalItems" not in node:
            value = node.pop(keyword)
            node.setdefault(plain, value)


def _one_of(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """`oneOf` is `anyOf` where no two are true at once; else, each one with the complements of the others."""
    options = node.get("oneOf")
    if not isinstance(options, list) or len(options) < 2 or not all(isinstance(option, (dict, bool)) for option in options):
        return
    if not walk.disjoint.all_pairs(options):
        if len(options) > _MOST_CASES:
            return
        others = [complement(option, walk.resolve, walk.budget) for option in options]
        if None in others:
            return
        options = [all_of([option, *(o for j, o in enumerate(others) if j != i and o is not None)]) for i, option in enumerate(options)]
    del node["oneOf"]
    if "anyOf" in node:
        walk.add(node, {"anyOf": copied(options, walk.budget)})
    else:
        node["anyOf"] = copied(options, walk.budget)


def _enough_names(walk: Walk, node: dict[str, object], pointer: Pointer) -> None:
    """Names that no property lists may come twice, and count twice."""
    least = _count(node.get("minProperties")) or 0
    required = node.get("required")
    named = len({*required}) if isinstance(required, list) and all(isinstance(name, str) for name in required) else 0
    closed = (node.get("additionalProperties") is False or CLOSED in node) and not node.get("patternProperties")
    if least > named + 1 and not closed:
        walk.refuse(pointer, node, "minProperties", "names without a schema of their own may come twice, and would count twice")


#: In this order: what is done, and where one of these keywords stands.
RULES: tuple[tuple[Rule, frozenset[str]], ...] = (
    (_reference, frozenset({"$ref"})),
    (_old_reference, frozenset({"$ref"})),
    (_counts, frozenset(_COUNTS)),
    (_unevaluated, frozenset({"unevaluatedItems", "unevaluatedProperties"})),
    (_inert, frozenset(UNKNOWN)),
    (exact_numbers, frozenset({*BOUNDS, "multipleOf", "const", "enum"})),
    (open_bounds, frozenset({"exclusiveMinimum", "exclusiveMaximum"})),
    (beginnings_of_bounds, frozenset(BOUNDS)),
    (_controls, frozenset({"const", "enum"})),
    (_property_names, frozenset({"propertyNames"})),
    (_patterns, frozenset({"pattern", "patternProperties"})),
    (_items, frozenset({"additionalItems", "prefixItems"})),
    (_conditions, frozenset({"if"})),
    (_not, frozenset({"not"})),
    (_dependencies, frozenset({"dependencies", "dependentRequired", "dependentSchemas"})),
    (_one_of, frozenset({"oneOf"})),
    (_format, frozenset({"format"})),
    (_enough_names, frozenset({"minProperties"})),
)
