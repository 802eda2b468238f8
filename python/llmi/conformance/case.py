"""Cases: their register, and the words in which they say what they expect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeVar

from llmi.conformance.target import Broken, Json, Target

Check = Callable[[Target], None]
Value = TypeVar("Value")
PROFILES = ("core", "stream", "errors", "limits", "structured", "tools", "determinism", "anthropic", "responses")


@dataclasses.dataclass(frozen=True)
class Case:
    """One case: profile, name, what it does."""

    profile: str
    name: str
    check: Check


CASES: list[Case] = []


def add(profile: str, name: str, check: Check) -> None:
    """Registers a case. Names are told apart within a profile."""
    assert profile in PROFILES and all((case.profile, case.name) != (profile, name) for case in CASES), name
    CASES.append(Case(profile, name, check))


def case(profile: str, name: str) -> Callable[[Check], Check]:
    """Registers the function below it."""

    def register(check: Check) -> Check:
        add(profile, name, check)
        return check

    return register


def each(profile: str, table: Mapping[str, Value], name: str = "{}") -> Callable[[Callable[[Target, Value], None]], None]:
    """Registers the function below once for each entry of the table, whose value it gets. name: of the case, by the entry's."""

    def bound(check: Callable[[Target, Value], None], value: Value) -> Check:
        return lambda target: check(target, value)

    def register(check: Callable[[Target, Value], None]) -> None:
        for entry, value in table.items():
            add(profile, name.format(entry), bound(check, value))

    return register


def expect(condition: object, text: str) -> None:
    """Raises Broken with the text unless the condition holds."""
    if not condition:
        raise Broken(text)


def same(seen: object, expected: object, what: str) -> None:
    """Raises Broken with both values unless they are equal."""
    if seen != expected:
        raise Broken(f"{what} is {str(seen)[:160]!r}, not {str(expected)[:160]!r}")


def field(value: Json, path: str) -> Json:
    """The value at a path like choices.0.message. Raises Broken where a part is absent."""
    seen = value
    for part in path.split("."):
        try:
            seen = seen[int(part)] if part.isdigit() else seen[part]
        except (KeyError, IndexError, TypeError):
            raise Broken(f"{path} is absent (at {part!r})") from None
    return seen


def typed(value: Json, path: str, *kinds: type) -> Json:
    """The value at a path, of one of these types; True is no int. Raises Broken."""
    seen = field(value, path)
    if type(seen) not in kinds and not (seen is None and type(None) in kinds):
        raise Broken(f"{path} is {str(seen)[:80]!r}, not of type {' or '.join(kind.__name__ for kind in kinds)}")
    return seen


def add_fields(profile: str, what: str, get: Callable[[Target], Json], fields: dict[str, Json]) -> None:
    """A case for each required field: a tuple is types, anything else the one value."""

    @each(profile, {path: (path, wanted) for path, wanted in fields.items()}, f"{what}: {{}}")
    def has_field(target: Target, entry: tuple[str, Json]) -> None:
        path, wanted = entry
        answer = get(target)
        if isinstance(wanted, tuple):
            typed(answer, path, *wanted)
        else:
            same(field(answer, path), wanted, path)
