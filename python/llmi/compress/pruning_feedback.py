"""Pruning with error feedback (SparseGPT: Frantar and Alistarh, 2023): what a zero loses, the columns behind it make up for."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from llmi import _core
from llmi.compress.feedback import Factor
from llmi.compress.masks import prune_mask

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

_BLOCK = 128  # columns whose zeros are chosen at once, of a share


@dataclasses.dataclass(frozen=True)
class Groups:
    """Columns of a pattern, which stay together when those that read most come first. Of a share the file's order loses less."""

    columns: int

    @property
    def part(self) -> int:
        """As a grid has it."""
        return self.columns

    @classmethod
    def of(cls, pattern: str | None) -> Groups | None:
        """Of "N:M" those of M columns."""
        return None if pattern is None else cls(int(pattern.partition(":")[2]))


def prune_by_feedback(values: F32, factor: Factor, sparsity: float | None, pattern: str | None) -> F32:
    """A matrix [rows, columns] with zeros where the square of what a column has become, by what its error costs, is least."""
    columns = values.shape[1]
    wanted = np.ascontiguousarray(values[:, factor.order])
    targets = wanted.copy()
    costs = np.sqrt(factor.pivots)
    groups = Groups.of(pattern)
    step = _BLOCK if groups is None else groups.columns
    for begin in range(0, columns, step):
        end = min(begin + step, columns)
        scores = targets[:, begin:end] * costs[begin:end]
        if pattern is not None:
            kept = prune_mask(scores, pattern=pattern)
        else:
            kept = _share(scores, sparsity or 0.0, begin, end)
        _core.feed_pruned(wanted, targets, factor.upper, begin, np.ascontiguousarray(kept))
    pruned = np.empty_like(values)
    pruned[:, factor.order] = targets
    return pruned


def _share(scores: F32, sparsity: float, begin: int, end: int) -> NDArray[np.bool_]:
    """Of each row, so that floor(sparsity * columns) have gone after the last block."""
    gone = math.floor(sparsity * end) - math.floor(sparsity * begin)
    order = scores.shape[1] - 1 - np.argsort(np.abs(scores[:, ::-1]), axis=1, kind="stable")  # of equal scores the last goes first
    kept = np.ones(scores.shape, np.bool_)
    np.put_along_axis(kept, order[:, :gone], False, axis=1)
    return kept
