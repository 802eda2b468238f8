"""Rounding to codes of equal steps: absmax quantisation by tensor, by channel or by groups of columns."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from llmi.base.kinds import Choice, Either, Whole, parse
from llmi.compress.arrays import matrix
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
else:
    from llmi.base.lazy_numpy import np

_BITS = Whole(2, 8)
_MOST_COLUMNS = 1 << 31
_GRANULARITY = Either((Choice(("tensor", "channel")), Whole(1, _MOST_COLUMNS)), '"tensor", "channel" or a number of columns')


@dataclasses.dataclass(frozen=True, eq=False)
class Quantized:
    """A matrix as codes and the scales of its groups.

    Attributes
    ----------
    codes : int8 array [rows, columns]
    scales : float32 array [num_groups]
        In the order of the groups, row by row.

    Examples
    --------
    >>> from llmi.compress import absmax_quantize
    >>> absmax_quantize([[1.0, -0.5, 0.0]], bits=4).codes.tolist()
    [[7, -4, 0]]
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]

    def dequantize(self) -> NDArray[np.float32]:
        """Code times scale, as float32 [rows, columns]."""
        grouped = self.codes.reshape(len(self.scales), -1).astype(np.float32)
        return (grouped * self.scales[:, None]).reshape(self.codes.shape)


def absmax_quantize(x: ArrayLike, *, bits: int = 8, granularity: str | int = "tensor") -> Quantized:
    """Codes of `bits` bits with one scale a group, so that the group's largest magnitude is the largest code (Dettmers et al. 2022,
    arXiv 2208.07339, section 2).

    Parameters
    ----------
    x : array [rows, columns]
        Finite numbers.
    bits : int
        From 2 to 8: codes lie in [-(2^(bits-1) - 1), 2^(bits-1) - 1].
    granularity : "tensor", "channel" or int
        What has one scale: all of it, a row, or so many columns of a row.

    Returns
    -------
    Quantized
        codes = rint((2^(bits-1) - 1) x / max|x|) in float64, ties to even; scales max|x| / (2^(bits-1) - 1) as float32. A group of zeros
        has the codes and the scale 0.

    Raises
    ------
    InvalidParamsError
        Another shape, a value that is no finite number, bits outside of 2 to 8, columns that the group does not divide.

    Examples
    --------
    >>> from llmi.compress import absmax_quantize
    >>> absmax_quantize([[1.0, -0.5, 0.25], [4.0, 2.0, 0.0]], bits=4, granularity="channel").codes.tolist()
    [[7, -4, 2], [7, 4, 0]]
    """
    bits = parse(_BITS, "bits", bits)
    group = parse(_GRANULARITY, "granularity", granularity)
    values = matrix("x", x)
    columns = values.shape[1]
    size = values.size if group == "tensor" else columns if group == "channel" else int(group)
    if group not in ("tensor", "channel") and columns % size:
        raise InvalidParamsError(f"granularity: groups of {size} columns do not divide the {columns} columns of x", "granularity")
    most = 2 ** (bits - 1) - 1
    grouped = values.reshape(-1, size)
    largest = np.abs(grouped).max(axis=1)
    with np.errstate(over="ignore"):
        scales = (largest / most).astype(np.float32)
        scaled = most * grouped
    if not (np.isfinite(scales).all() and np.isfinite(scaled).all()):
        raise InvalidParamsError(f"x: {largest.max():g} is beyond what float32 scales of {bits} bits can hold", "x")
    codes = np.rint(scaled / np.where(largest > 0, largest, 1.0)[:, None]).astype(np.int8)
    return Quantized(codes.reshape(values.shape), scales)
