"""Resamplers: which particles go on, so that each is chosen n times its weight in the mean.

Douc, Cappé, Moulines, "Comparison of resampling schemes for particle filtering", 2005.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from llmi.smc.numeric import F64, I64, total


def _choose(weights: F64, points: F64) -> I64:
    """The particle in whose part of [0, 1) each point falls; parts follow each other and are as long as their weights."""
    ends = np.cumsum(weights)
    last = int(np.flatnonzero(weights)[-1])
    chosen: I64 = np.minimum(np.searchsorted(ends, points * ends[-1], side="right"), last)
    return chosen


def multinomial(weights: F64, uniforms: F64) -> I64:
    """Independent draws."""
    return _choose(weights, uniforms)


def stratified(weights: F64, uniforms: F64) -> I64:
    """One point in each n-th of [0, 1), with a number of its own."""
    return _choose(weights, (np.arange(len(uniforms)) + uniforms) / len(uniforms))


def systematic(weights: F64, uniforms: F64) -> I64:
    """One point in each n-th of [0, 1), all with the first number: a particle is chosen floor or ceil of n times its weight."""
    return _choose(weights, (np.arange(len(uniforms)) + uniforms[0]) / len(uniforms))


def residual(weights: F64, uniforms: F64) -> I64:
    """floor(n weight) copies of each, the rest by independent draws from the remainders of n weight."""
    expected = weights * (len(uniforms) / total(weights))
    # A sum of m numbers has a relative error of up to m ulp: a number that is as close below a whole one counts as that one.
    copies = np.floor(expected * (1.0 + len(weights) * np.finfo(np.float64).eps)).astype(np.int64)
    kept = np.repeat(np.arange(len(weights)), copies)[: len(uniforms)]
    if len(kept) == len(uniforms):
        return kept
    left = np.maximum(expected - copies, 0.0)
    if total(left) <= 0.0:
        left = weights
    return np.concatenate([kept, _choose(left, uniforms[len(kept) :])])


#: Resamplers by name. Each takes weights, float64 [m] of 0 or more with a positive sum, and n numbers in (0, 1), and returns the chosen
#: particles, int64 [n].
RESAMPLERS: Mapping[str, Callable[[F64, F64], I64]] = MappingProxyType(
    {"systematic": systematic, "stratified": stratified, "multinomial": multinomial, "residual": residual}
)


def effective_sample_size(weights: F64) -> float:
    """How many equal weights would vary as much: (sum of w)^2 / (sum of w^2). It raises nothing.

    Parameters
    ----------
    weights : float64 array [n]
        At least 0.

    Returns
    -------
    float
        In [1, n]; 0 if all are 0.

    Examples
    --------
    >>> effective_sample_size(np.array([0.5, 0.5, 0.0, 0.0]))
    2.0
    """
    squares = total(weights * weights)
    return total(weights) ** 2 / squares if squares > 0 else 0.0
