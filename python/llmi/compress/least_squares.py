"""Products of columns and least squares in one order of sums: equal inputs give equal bits on every machine, on any number of threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from llmi import _core
from llmi.errors import from_core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
else:
    from llmi.base.lazy_numpy import np

_COLUMNS = 64  # that one task computes


def products(first: F32, second: F32) -> F64:
    """first^T second."""
    sums = np.zeros((first.shape[1], second.shape[1]))
    _in_pieces(first.shape[1], partial(_add, first, np.ascontiguousarray(second, np.float32), sums))
    return sums


def times(first: F32 | F64, second: F32 | F64) -> F64:
    """first second, both rounded to fp32."""
    return products(np.ascontiguousarray(first.T, np.float32), np.ascontiguousarray(second, np.float32))


def solve(right: F64, squares: F64, damping: float, name: str) -> F64:
    """The rows x of x (squares + damping I) = right, where squares is X^T X. Raises InvalidParamsError that names the tensor: squares are
    not positive definite."""
    size = len(squares)
    try:
        upper32, pivots = _core.factor_products(squares.astype(np.float32), list(range(size)), damping)
    except _core.CoreError as error:
        raise from_core(error, name) from None
    upper = upper32.astype(np.float64)
    solved = np.empty_like(right)

    def piece(begin: int, end: int) -> None:
        rows = np.ascontiguousarray(right[begin:end].T)
        for k in range(size - 1, 0, -1):
            rows[:k] -= upper[:k, k, None] * rows[k]
        rows /= pivots[:, None]
        for k in range(size - 1):
            rows[k + 1 :] -= upper[k, k + 1 :, None] * rows[k]
        solved[begin:end] = rows.T

    _in_pieces(len(right), piece)
    return solved


def over_columns(values: F64) -> F64:
    """Sums of rows: halves are added to halves."""
    while values.shape[1] > 1:
        half = (values.shape[1] + 1) // 2
        folded = values[:, :half].copy()
        folded[:, : values.shape[1] - half] += values[:, half:]
        values = folded
    return values[:, 0]


def mean_square(squares: F64) -> float:
    """Of a column of X, by X^T X."""
    return math.fsum(np.diag(squares).tolist()) / len(squares)


def _add(first: F32, second: F32, sums: F64, begin: int, end: int) -> None:
    own = np.zeros((end - begin, second.shape[1]))
    _core.add_row_products(np.ascontiguousarray(first[:, begin:end], np.float32), second, own)
    sums[begin:end] = own


def _in_pieces(count: int, work: Callable[[int, int], None]) -> None:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda begin: work(begin, min(begin + _COLUMNS, count)), range(0, count, _COLUMNS)))
