"""Which weights stay when a matrix is pruned."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from llmi.base.kinds import Real, Text, parse
from llmi.compress.arrays import finite, matrix
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
else:
    from llmi.base.lazy_numpy import np

_SHARE = Real(0.0, 1.0, "a share in [0, 1]")


def prune_mask(
    w: ArrayLike, *, sparsity: float | None = None, pattern: str | None = None, input_norms: ArrayLike | None = None
) -> NDArray[np.bool_]:
    """True for the weights that stay: those of the largest score, which is |w|, or with the norms of its inputs |w| times the norm of the
    column (Wanda: Sun et al. 2023, arXiv 2306.11695).

    Parameters
    ----------
    w : array [rows, columns]
    sparsity : float, optional
        The share that goes, in [0, 1]: floor(sparsity n) weights of the whole matrix, or with norms of each row.
    pattern : str, optional
        "N:M", such as "2:4": of each M columns of a row N stay.
    input_norms : array [columns], optional
        L2 norms of the layer's inputs by column, 0 or more.

    Returns
    -------
    bool array [rows, columns]
        Of equal scores the one of the lower row, then of the lower column stays.

    Raises
    ------
    InvalidParamsError
        Both or neither of sparsity and pattern, a share outside of [0, 1], a pattern whose M does not divide the columns, norms of another
        length, a negative norm, NaN.

    Examples
    --------
    >>> from llmi.compress import prune_mask
    >>> prune_mask([[3.0, -1.0, 1.0, 2.0]], pattern="2:4").tolist()
    [[True, False, False, True]]
    >>> prune_mask([[3.0, -1.0, 1.0, 2.0]], sparsity=0.5, input_norms=[1, 9, 1, 1]).tolist()
    [[True, True, False, False]]
    """
    if (sparsity is None) == (pattern is None):
        raise InvalidParamsError("give sparsity or pattern, one of the two", "sparsity")
    scores = np.abs(matrix("w", w))
    columns = scores.shape[1]
    if input_norms is not None:
        norms = finite("input_norms", input_norms, 1, "[columns]")
        if len(norms) != columns:
            raise InvalidParamsError(f"input_norms has {len(norms)} numbers, w has {columns} columns", "input_norms")
        if norms.min() < 0:
            raise InvalidParamsError(f"input_norms[{int(norms.argmin())}] is {norms.min():g}: a norm cannot be negative", "input_norms")
        scores *= norms
    if pattern is not None:
        kept, size = _pattern(pattern, columns)
        groups, num_gone = scores.reshape(-1, size), size - kept
    else:
        groups = scores.reshape(1, -1) if input_norms is None else scores
        num_gone = math.floor(parse(_SHARE, "sparsity", sparsity) * groups.shape[1])
    # The order of a stable sort from the end: of equal scores the last goes first.
    order = groups.shape[1] - 1 - np.argsort(groups[:, ::-1], axis=1, kind="stable")
    mask = np.ones(groups.shape, np.bool_)
    np.put_along_axis(mask, order[:, :num_gone], False, axis=1)
    return mask.reshape(scores.shape)


def _pattern(pattern: object, columns: int) -> tuple[int, int]:
    """(columns that stay, columns of a group). Raises InvalidParamsError."""
    text = parse(Text(), "pattern", pattern)
    match = re.fullmatch(r"([1-9][0-9]{0,3}):([1-9][0-9]{0,3})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise InvalidParamsError(f'pattern must be "N:M" with N below M, such as "2:4", not {text!r}', "pattern")
    kept, size = int(match[1]), int(match[2])
    if columns % size:
        raise InvalidParamsError(f"pattern {text}: groups of {size} columns do not divide the {columns} columns of w", "pattern")
    return kept, size
