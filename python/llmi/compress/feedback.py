"""Rounding with error feedback (GPTQ): what a column loses, the columns behind it make up for, by the products of what the matrix reads."""

from __future__ import annotations

import dataclasses
import math
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from llmi import _core
from llmi.compress.blocks import Scales, row_sum
from llmi.compress.calibration import Calibration
from llmi.compress.grids import Grid
from llmi.errors import InvalidParamsError, from_core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    I64 = NDArray[np.int64]
else:
    from llmi.base.lazy_numpy import np

DAMPING = 0.1  # of the mean square of a column, added to each
_KEPT = 3  # factors at once: those of one layer are asked for one after the other


@dataclasses.dataclass(frozen=True)
class Factor:
    """Of the products of what a matrix reads, in the order in which its columns are rounded.

    Attributes
    ----------
    order : int64 [columns]
        Blocks with the largest squares first, and in each block the columns.
    upper : float32 [columns, columns]
        How much of a column's error each column behind it makes up for.
    pivots : float32 [columns]
        What an error costs that no column behind it makes up for.
    """

    order: I64
    upper: F32
    pivots: F32


class Ordering(Protocol):
    """Blocks of `columns`, in parts, which stay together."""

    @property
    def columns(self) -> int: ...
    @property
    def part(self) -> int: ...


class Factors:
    """Factors of a calibration, each made once for tensors that read the same."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._lock = threading.Lock()
        self._made: dict[tuple[str, int, int], Future[Factor]] = {}

    def of(self, grid: Ordering | None, name: str) -> Factor:
        """Without a grid in the file's order. Raises InvalidParamsError: the calibration has no products of it, or they are not positive
        definite."""
        key = self._calibration.shares_gram(name) or name, *((0, 0) if grid is None else (grid.columns, grid.part))
        with self._lock:
            found = self._made.get(key)
            mine = None if found is not None else Future[Factor]()
            if mine is not None:
                self._made = dict([*self._made.items(), (key, mine)][-_KEPT:])
        if mine is None:
            assert found is not None
            return found.result()
        try:
            mine.set_result(_factor(self._calibration.gram(name), name, grid))
        except BaseException as error:
            mine.set_exception(error)
        return mine.result()


def _factor(gram: F32, name: str, grid: Ordering | None) -> Factor:
    squares = np.diag(gram).astype(np.float64)
    order = np.arange(len(squares)) if grid is None else order_of(squares, grid)
    damping = DAMPING * math.fsum(squares.tolist()) / len(squares)
    if damping == 0:
        raise InvalidParamsError(f"calibration: all that {name} read is 0", "calibration")
    try:
        upper, pivots = _core.factor_products(gram, order.tolist(), damping)
    except _core.CoreError as error:
        raise from_core(error, name) from None
    return Factor(order, upper, (pivots / damping).astype(np.float32))


def order_of(squares: NDArray[np.float64], grid: Ordering) -> I64:
    """The largest first: blocks by their sums, in each block the parts, in each part the columns."""
    parts = squares.reshape(-1, grid.part)
    of_parts = row_sum(parts).reshape(-1, grid.columns // grid.part)
    blocks = np.argsort(-row_sum(of_parts)[:, 0], kind="stable")
    inside = np.argsort(-of_parts[blocks], axis=1, kind="stable") + blocks[:, None] * of_parts.shape[1]
    within = np.argsort(-parts, axis=1, kind="stable")
    order: I64 = (inside.reshape(-1, 1) * grid.part + within[inside.reshape(-1)]).reshape(-1)
    return order


def encode_by_feedback(grid: Grid, values: F32, factor: Factor) -> bytes:
    """The bytes of a matrix [rows, columns], block by block: scales of the least squared error that is left, by what no column behind makes
    up for; then codes one column after the other."""
    rows, columns = values.shape
    wanted = np.ascontiguousarray(values[:, factor.order])
    targets = wanted.copy()
    codes = np.empty((rows, columns), np.int16)
    found: dict[int, Scales] = {}
    least, most = grid.codes
    for begin in range(0, columns, grid.columns):
        own = factor.order[begin : begin + grid.columns]
        block, inside = int(own[0]) // grid.columns, np.argsort(own)  # scales are those of parts in the file's order
        weights = np.broadcast_to(factor.pivots[begin : begin + grid.columns][inside], (rows, grid.columns))
        found[block] = scales = grid.scales(targets[:, begin : begin + grid.columns][:, inside], weights)
        for place in range(begin, begin + grid.columns, grid.part):
            part = factor.order[place : place + grid.part]
            number = int(part[0]) % grid.columns // grid.part
            scale, low = (np.ascontiguousarray(of_parts[:, number]) for of_parts in (scales.scale, scales.low))
            codes[:, part] = _core.feed_errors(wanted, targets, factor.upper, place, grid.part, scale, low, least, most, grid.levels)
    return grid.pack(codes.reshape(-1, grid.columns), _joined([found[block] for block in range(columns // grid.columns)]))


def _joined(of_blocks: list[Scales]) -> Scales:
    """The scales of all blocks, row by row."""

    def join(arrays: list[F32]) -> F32:
        return np.stack(arrays, axis=1).reshape(-1, arrays[0].shape[1])

    fields = tuple(join(list(each)) for each in zip(*(scales.fields for scales in of_blocks), strict=True))
    return Scales(join([scales.scale for scales in of_blocks]), join([scales.low for scales in of_blocks]), fields)
