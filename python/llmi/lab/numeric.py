"""The engine's own arithmetic for users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmi import _core
from llmi.base.kinds import array_of, show
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """log softmax over the last axis, the engine's own, bit for bit: logits - log_sum_exp(logits).

    Parameters
    ----------
    logits : float32 array [..., vocab_size]

    Returns
    -------
    float32 array of the same shape
        It raises nothing.

    Examples
    --------
    >>> log_softmax(np.zeros((1, 4), np.float32)).round(4)
    array([[-1.3863, -1.3863, -1.3863, -1.3863]], dtype=float32)
    """
    given = array_of("logits", logits)
    if given.dtype.kind not in "iuf" or given.ndim == 0 or given.shape[-1] == 0:
        raise InvalidParamsError(f"logits must be an array of numbers [..., vocab_size], not {show(logits)}", "logits")
    rows = np.ascontiguousarray(given, dtype=np.float32)
    flat = rows.reshape(-1, rows.shape[-1])
    totals = np.array([_core.log_sum_exp(row) for row in flat], dtype=np.float32)
    return (flat - totals[:, None]).reshape(rows.shape)
