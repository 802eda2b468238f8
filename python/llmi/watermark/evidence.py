"""What a detector finds, and the laws of its counts under plain text."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class Detection:
    """How far a text is from what plain text would show.

    Attributes
    ----------
    p_value : float
        The probability that plain text shows as much or more, in [0, 1]; 1.0 where nothing could be scored.
    z : float
        Standard deviations above the mean of plain text; 0.0 where nothing could be scored.
    num_scored : int
        Positions that count: each n-gram (KGW) or context (SynthID) once.
    num_green : int
        Green tokens among them; for SynthID the g values that are 1, of num_scored x len(keys).
    score : float
        The share of green tokens; for SynthID the weighted mean of the g values. NaN where nothing could be scored.

    Examples
    --------
    >>> detection = KGW(llm.model_info.vocab_size).detect([5, 7, 9, 11])
    >>> detection.num_scored, 0 <= detection.p_value <= 1
    (3, True)
    """

    p_value: float
    z: float
    num_scored: int
    num_green: int
    score: float


def binomial_tail(count: int, trials: int, share: float) -> float:
    """P(X >= count) for X of the binomial law of `trials` and `share` in (0, 1)."""
    if count <= 0:
        return 1.0
    log_all = math.lgamma(trials + 1)
    hit, miss = math.log(share), math.log1p(-share)
    terms = (
        math.exp(log_all - math.lgamma(i + 1) - math.lgamma(trials - i + 1) + i * hit + (trials - i) * miss)
        for i in range(count, trials + 1)
    )
    return min(1.0, math.fsum(terms))


#: Largest sum up to which a law of sums is computed by convolution, in some 10 ms.
_MOST_EXACT = 1 << 13


def normal_tail(z: float) -> float:
    """P(Z >= z) of the standard normal law."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def sum_tail(levels: NDArray[np.int64], total: int, trials: int) -> float:
    """P(the sum of `trials` draws from `levels`, with replacement, >= total).

    Exact where the sums have few values. Otherwise the saddlepoint approximation for sums of whole numbers (Lugannani and Rice, 1980;
    Daniels, 1987); its relative error is below 2 % from 8 draws (tests/sampling/test_watermark.py).

    levels : int64 [n] of 0 or more, whose differences have no common divisor.
    """
    if total <= trials * int(levels.min()):
        return 1.0
    if total >= trials * int(levels.max()):
        return float(np.mean(levels == levels.max())) ** trials
    if trials * int(levels.max()) <= _MOST_EXACT:
        return _exact_tail(np.bincount(levels) / len(levels), total, trials)
    spread = float(levels.std())
    values, distance = levels.astype(np.float64) - float(levels.mean()), total / trials - float(levels.mean())
    z = distance / spread * math.sqrt(trials)
    if abs(z) < 1e-3:  # the formula divides by zero there; this is its limit
        skew = float(np.mean((values / spread) ** 3))
        return normal_tail(z) + (0.5 / spread - skew / 6) / math.sqrt(2 * math.pi * trials)
    tilt = _tilt(values, distance, z / math.sqrt(trials) / spread)
    generating, _, variance = _cumulants(values, tilt)
    root = math.copysign(math.sqrt(2 * trials * max(0.0, tilt * distance - generating)), tilt)
    slope = -math.expm1(-tilt) * math.sqrt(trials * variance)
    density = math.exp(-root * root / 2) / math.sqrt(2 * math.pi)
    return min(1.0, max(0.0, normal_tail(root) + density * (1 / slope - 1 / root)))


def _exact_tail(law: NDArray[np.float64], total: int, trials: int) -> float:
    """P(the sum of `trials` draws >= total). law: the probability of each level from 0, float64."""
    power, sums = law, np.ones(1)
    for bit in range(trials.bit_length()):
        if trials >> bit & 1:
            sums = np.convolve(sums, power)
        if trials >> bit > 1:
            power = np.convolve(power, power)
    return min(1.0, math.fsum(sums[total:]))


def _cumulants(values: NDArray[np.float64], tilt: float) -> tuple[float, float, float]:
    """log E exp(tilt v), and its two derivatives."""
    largest = float((tilt * values).max())
    weights = np.exp(tilt * values - largest)
    total = float(weights.sum())
    first = float((weights * values).sum()) / total
    second = float((weights * (values - first) ** 2).sum()) / total
    return largest + math.log(total / len(values)), first, second


def _tilt(values: NDArray[np.float64], mean: float, guess: float) -> float:
    """The tilt at which the mean under weights exp(tilt v) is `mean`: Newton's steps inside a bracket that shrinks."""
    low, high, tilt = -math.inf, math.inf, guess
    for _ in range(100):
        _, first, second = _cumulants(values, tilt)
        if abs(first - mean) <= 1e-9 * math.sqrt(second):
            break
        low, high = (tilt, high) if first < mean else (low, tilt)
        step = tilt + (mean - first) / max(second, 1e-300)
        if not low < step < high:
            step = (low + high) / 2 if math.isfinite(low + high) else 2 * tilt + math.copysign(1.0, mean - first)
        tilt = step
    return tilt
