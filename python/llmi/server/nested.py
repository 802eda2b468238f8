"""Values inside a field of a body: each is of its kind, or an error names its place; keys that no list has are named as ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from llmi.server.errors import ApiError


def wrong(where: str, what: str, code: str = "invalid_type") -> ApiError:
    """The error for the value at `where`."""
    return ApiError(400, f"{where} {what}", param=where, code=code)


def object_at(where: str, value: object) -> dict[str, Any]:
    """An object. Raises ApiError."""
    if not isinstance(value, dict):
        raise wrong(where, "must be an object")
    return value


def list_at(where: str, value: object) -> list[Any]:
    """A list; null is an empty one. Raises ApiError."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong(where, "must be a list")
    return value


def text_at(where: str, value: object) -> str:
    """A string. Raises ApiError."""
    if not isinstance(value, str):
        raise wrong(where, "must be a string")
    return value


def text_or_null(where: str, value: object) -> str | None:
    """A string, or None. Raises ApiError."""
    return None if value is None else text_at(where, value)


def flag_at(where: str, value: object) -> bool:
    """True or False; null is False. Raises ApiError."""
    if value is not None and not isinstance(value, bool):
        raise wrong(where, "must be true or false")
    return value is True


def ignore_others(ignored: list[str], where: str, value: Mapping[str, Any], *known: str) -> None:
    """Names each key besides those that are known, unless it is null, in `ignored`: by its place, as in
    messages[0].content[1].cache_control."""
    ignored += [f"{where}.{name[:80]}" for name, entry in value.items() if name not in known and entry is not None]


def refuse_others(where: str, value: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises ApiError for a key besides those that are known."""
    for name in value:
        if name not in known:
            raise ApiError(400, f"{where} has no field {name[:80]!r}", param=f"{where}.{name[:80]}", code="unknown_field")
