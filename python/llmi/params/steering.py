"""Steering vectors: what a user may give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmi.base.kinds import Whole, array_of, refuse, show
from llmi.base.travel import same
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_LAYER = Whole(-1, 2**31 - 1, "a layer, an integer of -1 or more")
_RULE = "None or a mapping of layers to vectors [hidden_size], such as {12: direction}"
_MOST_LAYERS = 1 << 16


class Vectors(dict[int, Any]):
    """{layer: vector}: equal if the layers and all values are."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return self.keys() == other.keys() and all(same(vector, other[layer]) for layer, vector in self.items())

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


def comparable(value: Mapping[int, ArrayLike] | None) -> Mapping[int, ArrayLike] | None:
    """A mapping as Vectors, so that parameters compare; all else as it is."""
    return Vectors(value) if isinstance(value, Mapping) and not isinstance(value, Vectors) else value


class SteeringKind:
    """None, or {layer: vector of finite float32 numbers}; an empty mapping is None."""

    def parse(self, name: str, value: object) -> Vectors | None:
        import numpy as np  # noqa: PLC0415 (a heavy package)

        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise refuse(name, _RULE, value)
        if not value:
            raise InvalidParamsError(f"{name} is empty: give a layer and its vector, or None", name)
        if len(value) > _MOST_LAYERS:
            raise InvalidParamsError(f"{name} has {len(value):,} layers, more than any model", name)
        result = Vectors()
        for key, given in value.items():
            try:
                layer = _LAYER.parse(f"a key of {name}", key)
            except InvalidParamsError as error:
                error.parameter = name
                raise
            vector = array_of(f"{name}[{layer}]", given)
            if vector.dtype.kind not in "iuf" or vector.ndim != 1:
                raise InvalidParamsError(f"{name}[{layer}] must be a vector of numbers [hidden_size], not {show(given)}", name)
            with np.errstate(over="ignore"):
                plain = np.array(vector, np.float32)
            if not np.isfinite(plain).all():
                place = int(np.isfinite(plain).argmin())
                raise InvalidParamsError(f"{name}[{layer}][{place}] is {vector[place]}: a finite float32 number is expected", name)
            plain.setflags(write=False)
            result[layer] = plain
        return result


def of_json(value: object) -> object:
    """Steering as JSON has it, with layers as texts, for SteeringKind; what is no object as it is. Raises InvalidParamsError."""
    if not isinstance(value, Mapping):
        return value
    result = {}
    for key, vector in value.items():
        digits = key.removeprefix("-") if isinstance(key, str) else ""
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 10):
            raise InvalidParamsError(f"steering: a key must be a layer, such as '12', not {show(key)[:48]}", "steering")
        if int(key) in result:
            raise InvalidParamsError(f"steering names layer {int(key)} twice", "steering")
        result[int(key)] = vector
    return result
