"""Fewer heads of keys and values: neighbours become their mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmi.base.kinds import Whole, parse
from llmi.compress.arrays import matrix
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
else:
    from llmi.base.lazy_numpy import np

_HEADS = Whole(1, 1 << 20)


def pool_kv_heads(w: ArrayLike, *, num_kv_heads: int, to: int) -> NDArray[np.float32]:
    """The key or value projection with fewer heads: each is the mean of num_kv_heads / to neighbours (Ainslie et al. 2023, GQA,
    arXiv 2305.13245, section 2.1). It is where training begins: without it, the model is much worse.

    Parameters
    ----------
    w : array [num_kv_heads * head_dim, columns]
    num_kv_heads : int
        Heads of `w`.
    to : int
        Heads that are left; divides num_kv_heads.

    Returns
    -------
    float32 array [to * head_dim, columns]
        The means were taken in float64.

    Raises
    ------
    InvalidParamsError
        Rows that num_kv_heads does not divide, `to` that does not divide num_kv_heads.

    Examples
    --------
    >>> from llmi.compress import pool_kv_heads
    >>> pool_kv_heads([[1.0], [2.0], [5.0], [8.0]], num_kv_heads=2, to=1).tolist()
    [[3.0], [5.0]]
    """
    num_kv_heads, to = parse(_HEADS, "num_kv_heads", num_kv_heads), parse(_HEADS, "to", to)
    values = matrix("w", w)
    rows, columns = values.shape
    if rows % num_kv_heads:
        raise InvalidParamsError(f"num_kv_heads = {num_kv_heads} does not divide the {rows} rows of w", "num_kv_heads")
    if num_kv_heads % to:
        raise InvalidParamsError(f"to = {to} does not divide num_kv_heads = {num_kv_heads}", "to")
    heads = values.reshape(to, num_kv_heads // to, rows // num_kv_heads, columns)
    pooled: NDArray[np.float32] = heads.mean(axis=1).reshape(-1, columns).astype(np.float32)
    return pooled
