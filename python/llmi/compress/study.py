"""Types for study: whole numbers under one scale a tensor, a channel or a group, in the file as the numbers that they stand for."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from llmi.compress.absmax import absmax_quantize
from llmi.compress.arrays import finite
from llmi.compress.threshold import kl_threshold
from llmi.errors import InvalidParamsError, import_extra

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

#: How such a type is written: bits, and what has one scale.
FORM = "int8-tensor, int8-channel or int8-32 (2 to 8 bits; columns of a group)"
METHODS = ("absmax", "kl")
_NAME = re.compile(r"int([2-8])-(tensor|channel|[1-9][0-9]{0,8})")
_BINS = 2048


@dataclasses.dataclass(frozen=True)
class StudyType:
    """Whole numbers of `bits` bits, with one scale each `granularity` ("tensor", "channel", or so many columns)."""

    bits: int
    granularity: str | int

    @property
    def columns(self) -> int:
        """That a group has, which must divide a matrix's."""
        return self.granularity if isinstance(self.granularity, int) else 1

    def rounded(self, method: str, values: F32) -> F32:
        """What the codes stand for, in the shape of the values."""
        matrix = values.reshape(-1, values.shape[-1])
        if method == "kl":
            limit = threshold_of(matrix, 2 ** (self.bits - 1))
            matrix = np.clip(matrix, -limit, limit)
        return absmax_quantize(matrix, bits=self.bits, granularity=self.granularity).dequantize().reshape(values.shape)


def study_type(name: str) -> StudyType | None:
    """The type of this name; None if it is of another form."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return StudyType(int(found[1]), int(found[2]) if found[2].isdigit() else found[2])


def check_method(name: str, method: str) -> None:
    """Raises InvalidParamsError: the method has no rule for this type."""
    study = study_type(name)
    if study is not None and method not in METHODS:
        raise InvalidParamsError(f'{name} is rounded by method "absmax" or "kl", not by {method!r}', "method")
    if method == "kl" and (study is None or study.granularity != "tensor"):
        raise InvalidParamsError(f'method="kl" cuts the histogram of a whole tensor: type int8-tensor, not {name}', "method")


def threshold_of(values: F32, num_levels: int) -> float:
    """Where kl_threshold cuts a histogram of magnitudes of 2048 bins."""
    counts, edges = _histogram(values)
    return float(edges[kl_threshold(counts, num_levels=num_levels)])


def _histogram(values: NDArray[np.floating]) -> tuple[NDArray[np.signedinteger], NDArray[np.floating]]:
    magnitudes = np.abs(values.reshape(-1).astype(np.float64))
    largest = float(magnitudes.max())
    if largest == 0:
        largest = 1.0
    places = np.minimum((magnitudes * (_BINS / largest)).astype(np.int64), _BINS - 1)
    return np.bincount(places, minlength=_BINS), np.arange(_BINS + 1) * (largest / _BINS)


def threshold_plot(x: ArrayLike, *, num_levels: int = 128) -> Figure:
    """The histogram of magnitudes of weights or activations, and where `kl_threshold` cuts it (needs matplotlib).

    Parameters
    ----------
    x : array
        Finite numbers of any shape.
    num_levels : int

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidParamsError
        No number, or NaN.

    Examples
    --------
    >>> from llmi.compress import threshold_plot
    >>> threshold_plot([[0.1, -0.2, 3.0]]).savefig("threshold.png")
    """
    values = finite("x", np.asarray(x).reshape(-1), 1, "of any shape")
    pyplot = import_extra("matplotlib.pyplot", "plot")
    counts, edges = _histogram(values)
    limit = edges[kl_threshold(counts, num_levels=num_levels)]
    figure: Figure
    figure, axes = pyplot.subplots(figsize=(6, 3))
    axes.stairs(counts, edges, fill=True)
    axes.axvline(limit, color="black", label=f"cut at {limit:.4g}: {float((np.abs(values) > limit).mean()):.3%} are beyond")
    axes.set_yscale("log")
    axes.set_xlabel("|x|")
    axes.set_ylabel("values")
    axes.legend()
    return figure
