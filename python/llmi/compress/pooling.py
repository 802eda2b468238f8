"""Heads of keys and values pooled by least squares: what the old heads make of a text, as near as fewer heads can come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmi.compress.least_squares import mean_square, solve, times

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
else:
    from llmi.base.lazy_numpy import np

_ROUNDS = 8
_DAMPING = 1e-4  # of the mean square of a head's values


def pooled_values(values: F32, squares: F64, name: str) -> tuple[F64, list[F64]]:
    """One head for several: (its weight [head_dim, columns], maps) so that of values [heads, head_dim, columns] each head's is near
    map @ weight, over inputs of these squares (X^T X). Least squares in turn, of the maps and of the weight, from the mean on."""
    weight = values.astype(np.float64).mean(axis=0)
    read = [times(head, squares) for head in values.astype(np.float64)]  # W_i X^T X
    maps: list[F64] = []
    for _ in range(_ROUNDS):
        own = times(times(weight, squares), weight.T)
        damping = _DAMPING * mean_square(own)
        maps = [solve(times(each, weight.T), own, damping, name) for each in read]
        normal = sum((times(turn.T, turn) for turn in maps), np.zeros_like(own))
        right = sum((times(turn.T, head) for turn, head in zip(maps, values, strict=True)), np.zeros_like(weight))
        weight = solve(np.ascontiguousarray(right.T), normal, _DAMPING * mean_square(normal), name).T
    return weight, maps
