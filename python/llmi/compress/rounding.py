"""How a matrix becomes blocks: the method, and what a calibration says about the matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmi.compress.blocks import BLOCK_TYPES, encode_absmax
from llmi.compress.calibration import Calibration
from llmi.compress.feedback import Factors, encode_by_feedback
from llmi.compress.grids import Grid, encode_searched
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

METHODS = ("absmax", "search", "gptq", "kl")
_LEAST_WEIGHT = 1e-6  # of the mean of all columns


class Rounding:
    """A method with its calibration."""

    def __init__(self, method: str, calibration: Calibration | None) -> None:
        """Raises InvalidParamsError: the method needs a calibration, or reads none."""
        if method in ("absmax", "kl") and calibration is not None:
            raise InvalidParamsError(f'calibration: method="{method}" reads none; "search" weighs errors by it', "calibration")
        if method == "gptq" and (calibration is None or not calibration.has_gram):
            raise InvalidParamsError(
                'method="gptq" needs a calibration with products: llmi.compress.calibrate(model, gram=True), or llmi calibrate --gram',
                "calibration",
            )
        self.method, self.calibration = method, calibration
        self._factors = Factors(calibration) if method == "gptq" and calibration is not None else None

    def remark(self, name: str, shape: Sequence[int], kind: str) -> str | None:
        """What is special about this tensor, whose shape is as a file of GGUF has it. Raises InvalidParamsError: the calibration is of
        another shape, or the method has no rule for the type."""
        if self.method == "absmax" and kind not in BLOCK_TYPES:
            raise InvalidParamsError(f'method="absmax" has no rule for {kind} ({name}): take "search"', "method")
        if self.calibration is None:
            return None
        if name not in self.calibration:
            return "by search without weights: the calibration has nothing about it"
        if self.calibration.norms(name).shape[-1] != shape[0]:
            raise InvalidParamsError(
                f"calibration: {name} reads {shape[0]} columns, and the calibration is of {self.calibration.norms(name).shape[-1]}:"
                " it is of another model",
                "calibration",
            )
        if self._factors is not None and self.calibration.shares_gram(name) is None:
            return "by search: the calibration has no products of its columns"
        if self._factors is not None and (rows := self.calibration.num_rows(name)) < shape[0]:
            return f"the calibration has {rows:,} rows, fewer than its {shape[0]:,} columns: damping fills up what is missing"
        return None

    def bytes_of(self, grid: Grid, name: str, values: F32) -> bytes:
        """The bytes of a tensor, block by block."""
        known = self.calibration is not None and name in self.calibration
        if not known or self.calibration is None:
            return encode_absmax(BLOCK_TYPES[grid.name], values) if self.method == "absmax" else encode_searched(grid, values)
        if self._factors is not None and values.ndim == 2 and self.calibration.shares_gram(name) is not None:
            return encode_by_feedback(grid, values, self._factors.of(grid, name))
        weights = self.calibration.norms(name) ** 2
        if weights.ndim == 1:
            return encode_searched(grid, values, _scaled(weights))
        return b"".join(encode_searched(grid, part, _scaled(own)) for part, own in zip(values, weights, strict=True))


def column_weights(calibration: Calibration | None, name: str, columns: int) -> F32:
    """What a calibration weighs the errors of a tensor's columns by: of experts the mean of theirs; 1 without."""
    if calibration is None or name not in calibration:
        return np.ones(columns, np.float32)
    norms = calibration.norms(name)
    return _scaled((norms**2).reshape(-1, columns).mean(axis=0, dtype=np.float32))


def _scaled(weights: F32) -> F32:
    """With a mean of 1, none of them 0; all 1 where nothing was read."""
    mean = math.fsum(weights.tolist()) / len(weights)
    if mean == 0:
        return np.ones_like(weights)
    return (weights.astype(np.float64) / mean + _LEAST_WEIGHT).astype(np.float32)
