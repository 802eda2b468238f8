"""repetition_detection: when a pattern of tokens that repeats at the output's end ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmi.base.kinds import Whole, refuse
from llmi.errors import InvalidParamsError

#: Most tokens that are read behind each token.
MAX_TOKENS = 65_536
_RULE = "a mapping such as {'max_pattern_size': 20, 'min_count': 4}, with min_pattern_size (1) besides"
_KINDS = {
    "max_pattern_size": Whole(0, MAX_TOKENS),
    "min_pattern_size": Whole(0, MAX_TOKENS),
    "min_count": Whole(0, MAX_TOKENS),
}


class RepetitionKind:
    """vLLM's fields: a mapping, or an object that has them as attributes. Its plain form is a dict of all three; None where it is off."""

    def parse(self, name: str, value: object) -> dict[str, int] | None:
        """Raises InvalidParamsError."""
        given = _fields(name, value)
        sizes = {field: kind.parse(f"{name}.{field}", given.get(field, 0)) for field, kind in _KINDS.items()}
        most, least, count = sizes.values()
        if not any(sizes.values()):
            return None
        if most == 0:
            raise InvalidParamsError(f"{name}: min_pattern_size and min_count need max_pattern_size, which is not given", name)
        least = least or 1  # as in vLLM
        if least > most:
            raise InvalidParamsError(f"{name}: min_pattern_size = {least} exceeds max_pattern_size = {most}", name)
        if count < 2:
            raise InvalidParamsError(f"{name}: min_count = {count}: a pattern repeats that comes at least twice", name)
        if most * count > MAX_TOKENS:
            product = f"max_pattern_size x min_count = {most:,} x {count:,} = {most * count:,}"
            raise InvalidParamsError(f"{name}: {product} tokens would be read behind each token, at most {MAX_TOKENS:,} may be", name)
        return {"max_pattern_size": most, "min_pattern_size": least, "min_count": count}


def _fields(name: str, value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        given = dict(value)
    elif not isinstance(value, type) and all(hasattr(value, field) for field in _KINDS):  # vLLM's RepetitionDetectionParams
        given = {field: getattr(value, field) for field in _KINDS}
    else:
        raise refuse(name, _RULE, value)
    if unknown := [key for key in given if key not in _KINDS]:
        raise InvalidParamsError(f"{name} has {unknown[0]!r:.80}: it must be {_RULE}", name)
    return {key: entry for key, entry in given.items() if entry is not None}
