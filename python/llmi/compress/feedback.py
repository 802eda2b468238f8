"""Rounding with error feedback (GPTQ): what a column loses, the columns behind it make up for, by the products of what the matrix reads."""

from __future__ import annotations

import dataclasses
import math
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from llmi import _core
from llmi.compress.blocks import BLOCK, BlockType, pack, row_sum, stored_scales
from llmi.compress.calibration import Calibration
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


class Factors:
    """Factors of a calibration, each made once for tensors that read the same."""

    def __init__(self, calibration: Calibration) -> None:
        self._calibration = calibration
        self._lock = threading.Lock()
        self._made: dict[str, Future[Factor]] = {}

    def of(self, name: str) -> Factor:
        """Raises InvalidParamsError: the calibration has no products of it, or they are not positive definite."""
        key = self._calibration.shares_gram(name) or name
        with self._lock:
            found = self._made.get(key)
            mine = None if found is not None else Future[Factor]()
            if mine is not None:
                self._made = dict([*self._made.items(), (key, mine)][-_KEPT:])
        if mine is None:
            assert found is not None
            return found.result()
        try:
            mine.set_result(_factor(self._calibration.gram(name), name))
        except BaseException as error:
            mine.set_exception(error)
        return mine.result()


def _factor(gram: F32, name: str) -> Factor:
    squares = np.diag(gram).astype(np.float64)
    by_block = np.argsort(-row_sum(squares.reshape(-1, BLOCK))[:, 0], kind="stable")
    within = np.argsort(-squares.reshape(-1, BLOCK), axis=1, kind="stable")
    order = (by_block[:, None] * BLOCK + within[by_block]).reshape(-1)
    damping = DAMPING * math.fsum(squares.tolist()) / len(squares)
    if damping == 0:
        raise InvalidParamsError(f"calibration: all that {name} read is 0", "calibration")
    try:
        upper, pivots = _core.factor_products(gram, order.tolist(), damping)
    except _core.CoreError as error:
        raise from_core(error, name) from None
    return Factor(order, upper, (pivots / damping).astype(np.float32))


def encode_by_feedback(kind: BlockType, values: F32, factor: Factor) -> bytes:
    """The bytes of a matrix [rows, columns], block by block: scales and minima of the least squared error that is left, by what no column
    behind makes up for; then codes one column after the other."""
    rows, columns = values.shape
    wanted = np.ascontiguousarray(values[:, factor.order])
    targets = wanted.copy()
    codes = np.empty((rows, columns), np.int16)
    scales = np.empty((rows, columns // BLOCK, 1), np.float32)
    minima = np.zeros_like(scales)
    least, most = kind.codes
    for begin in range(0, columns, BLOCK):
        part = slice(begin, begin + BLOCK)
        weights = np.broadcast_to(factor.pivots[part], (rows, BLOCK))
        place = factor.order[begin] // BLOCK
        scale, low = stored_scales(kind, np.ascontiguousarray(targets[:, part]), weights)
        scales[:, place], minima[:, place] = scale, low
        codes[:, factor.order[part]] = _core.feed_errors(
            wanted, targets, factor.upper, begin, BLOCK, scale[:, 0], low[:, 0], least, most, ()
        )
    return pack(kind, codes.reshape(-1, BLOCK), scales.reshape(-1, 1), minima.reshape(-1, 1))
