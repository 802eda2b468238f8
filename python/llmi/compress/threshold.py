"""Where to cut a histogram of magnitudes before it is rounded: the threshold of least divergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmi.base.kinds import Whole, parse
from llmi.compress.arrays import finite
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
else:
    from llmi.base.lazy_numpy import np

_LEVELS = Whole(1, 1 << 20)
_LEAST = 1e-12  # a bin of the rounded law that is empty


def kl_threshold(counts: ArrayLike, *, num_levels: int = 128) -> int:
    """How many bins of a histogram to keep, so that rounding what is kept to `num_levels` levels changes the distribution least (Migacz,
    "8-bit inference with TensorRT", 2017).

    For each number i of bins from num_levels on, P is the first i bins, with what is cut added to the last of them; Q is the first i bins
    without it, in num_levels groups (bin b is in group b num_levels // i), the sum of a group spread evenly over its bins that are not
    empty. The i of the least KL(P || Q) is returned.

    Parameters
    ----------
    counts : array [num_bins]
        Of |x|; numbers of 0 or more, not all 0.
    num_levels : int

    Returns
    -------
    int
        In [num_levels, num_bins]; the fewest at a tie.

    Raises
    ------
    InvalidParamsError
        Fewer bins than levels, a negative count, NaN, or nothing but zeros.

    Examples
    --------
    >>> from llmi.compress import kl_threshold
    >>> kl_threshold([8, 7, 6, 5, 1, 0, 0, 1], num_levels=4)
    8
    """
    num_levels = parse(_LEVELS, "num_levels", num_levels)
    bins = finite("counts", counts, 1, "[num_bins]")
    if len(bins) < num_levels:
        raise InvalidParamsError(f"counts has {len(bins)} bins, fewer than num_levels = {num_levels}", "counts")
    if bins.min() < 0:
        raise InvalidParamsError(f"counts[{int(bins.argmin())}] is {bins.min():g}: a count cannot be negative", "counts")
    if not bins.any():
        raise InvalidParamsError("counts: all bins are empty", "counts")
    divergences = [_divergence(bins, kept, num_levels) for kept in range(num_levels, len(bins) + 1)]
    return num_levels + int(np.argmin(divergences))


def _divergence(bins: NDArray[np.float64], kept: int, num_levels: int) -> float:
    """KL(P || Q) where the first `kept` bins are kept."""
    first = bins[:kept]
    law = first.copy()
    law[-1] += bins[kept:].sum()
    law /= law.sum()
    groups = np.arange(kept) * num_levels // kept
    filled = first > 0
    sums = np.bincount(groups, first, num_levels)
    sizes = np.bincount(groups[filled], minlength=num_levels)
    rounded = np.where(filled, (sums / np.maximum(sizes, 1))[groups], 0.0)
    total = rounded.sum()
    rounded = np.maximum(rounded / total if total > 0 else rounded, _LEAST)
    held = law > 0
    return float((law[held] * np.log(law[held] / rounded[held])).sum())
