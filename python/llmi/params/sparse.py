"""sparse_attention: which positions a row sees; what a user may give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmi.base.kinds import Whole, refuse
from llmi.errors import InvalidParamsError

_RULE = "None or a mapping such as {'method': 'streaming', 'sinks': 4, 'window': 508}"
#: The numbers of each method.
_KINDS = {
    "streaming": {"sinks": Whole(0, 256), "window": Whole(1, 1 << 30)},
    "blocks": {"tokens": Whole(16, 1 << 30), "sinks": Whole(0, 1 << 30), "recent": Whole(16, 1 << 30)},
}


class SparseKind:
    """None, or a method with all of its numbers."""

    def parse(self, name: str, value: object) -> dict[str, Any] | None:
        """Raises InvalidParamsError."""
        if value is None:
            return None
        if not isinstance(value, Mapping) or not isinstance(value.get("method"), str):
            raise refuse(name, _RULE, value)
        method = value["method"]
        if method not in _KINDS:
            raise InvalidParamsError(f"{name} has the method {method!r:.80}: give {' or '.join(map(repr, _KINDS))}", name)
        kinds = _KINDS[method]
        if unknown := [key for key in value if key != "method" and key not in kinds]:
            raise InvalidParamsError(f"{name} has {unknown[0]!r:.80}: method {method!r} takes {' and '.join(kinds)}", name)
        if missing := [key for key in kinds if key not in value]:
            raise InvalidParamsError(f"{name} lacks {missing[0]!r}: method {method!r} takes {' and '.join(kinds)}", name)
        numbers: dict[str, int] = {key: kind.parse(f"{name}.{key}", value[key]) for key, kind in kinds.items()}
        if method == "blocks":
            for key, number in numbers.items():
                if number % 16:
                    raise InvalidParamsError(f"{name}.{key} = {number} is no multiple of 16, the tokens of a block", name)
            if numbers["tokens"] <= numbers["sinks"] + numbers["recent"]:
                taken = f"sinks + recent = {numbers['sinks']} + {numbers['recent']}"
                raise InvalidParamsError(f"{name}: {taken} leave nothing of tokens = {numbers['tokens']} to pick: raise tokens", name)
        return {"method": method} | numbers
