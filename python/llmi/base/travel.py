"""Objects that go to other processes and come back equal, and objects that stay where they were made."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from llmi.errors import CannotTravelError

if TYPE_CHECKING:
    import numpy as np
    from _typeshed import DataclassInstance
    from numpy.typing import NDArray


class Record:
    """Plain data: a dataclass whose objects are equal if all fields that are compared are, arrays and NaN among them."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(same(getattr(self, name), getattr(other, name)) for name in _compared(type(self)))  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]


@functools.cache
def _compared(kind: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.compare)


class Alike:
    """Equal to what is of the same class and has the same attributes, arrays and NaN among them."""

    def __eq__(self, other: object) -> bool:
        return same(self.__getstate__(), other.__getstate__()) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(type(self))


def _is_array(value: object) -> TypeGuard[NDArray[np.generic]]:
    return hasattr(value, "dtype")


def same(a: object, b: object) -> bool:
    """Equality of values, arrays and NaN among them, also inside lists, tuples and dicts."""
    if a is b:
        return True
    if _is_array(a) and _is_array(b):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        equal = (a == b) | ((a != a) & (b != b))
        return bool(equal.all())
    if type(a) is not type(b) and not (isinstance(a, int | float) and isinstance(b, int | float)):
        return False
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    with contextlib.suppress(ValueError):  # an array inside
        if a == b:
            return True
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return False


def strict_json(value: object) -> Any:
    """A parameter's value as strict JSON has it: lists, dicts with string keys, and "inf", "-inf" or "nan" for numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        return {str(key): strict_json(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # numpy's numbers and arrays
        return strict_json(value.tolist())
    if not isinstance(value, Iterable):
        raise TypeError(f"JSON has no {type(value).__name__}")
    return [strict_json(entry) for entry in value]


class StaysHere:
    """Holds an engine or a thread: it can neither be copied nor go to another process."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise CannotTravelError(type(self).__name__)
