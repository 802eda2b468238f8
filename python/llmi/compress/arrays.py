"""Arrays that callers give: checked, and as float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmi.base.kinds import array_of, show
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F64 = NDArray[np.float64]
else:
    from llmi.base.lazy_numpy import np


def finite(name: str, value: object, num_dimensions: int, what: str) -> F64:
    """An array of finite numbers, not empty, as float64. Raises InvalidParamsError."""
    array = array_of(name, value)
    if array.dtype.kind not in "iuf" or array.ndim != num_dimensions or not array.size:
        raise InvalidParamsError(f"{name} must be numbers {what}, at least one, not {show(value)} of shape {array.shape}", name)
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        place = np.unravel_index(int((~np.isfinite(numbers)).argmax()), numbers.shape)
        raise InvalidParamsError(f"{name}[{', '.join(map(str, map(int, place)))}] is {numbers[place]}: it must be a finite number", name)
    return numbers


def matrix(name: str, value: object) -> F64:
    """A matrix [rows, columns]. Raises InvalidParamsError."""
    return finite(name, value, 2, "[rows, columns]")
