"""Noise and elementary functions of particle filters: plain float64 products and sums in one order, so that every machine gives the same
bits.

NumPy's own exp and log differ in their last bit between instruction sets.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

#: Purposes of llmi's noise (docs/numerics.md).
TOKEN_NOISE, RESAMPLING_NOISE = 6, 7

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_LOG2E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.4286068203094173e-06  # the high part has 17 bits: its products with exponents are exact
_FACTORIALS = (1, 2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800)


def philox(counter: list[U64], seed: int) -> list[U64]:
    """Philox4x32-10 (Salmon et al., SC 2011): four words of 32 bits from four, in uint64 arrays of one shape."""
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        first, second = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            (second >> _32) ^ counter[1] ^ np.uint64(key0),
            second & _LOW,
            (first >> _32) ^ counter[3] ^ np.uint64(key1),
            first & _LOW,
        ]
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return counter


def uniforms(seed: int, purpose: int, position: int, count: int) -> F64:
    """Numbers in (0, 1), float64 [count]: those of samples 0 to count - 1.

    The counter is (0, position, sample, purpose), the key `seed`; a number is the high 26 bits of the first two words, and a half.
    """
    zeros = np.zeros(count, np.uint64)
    words = philox([zeros, zeros + np.uint64(position), np.arange(count, dtype=np.uint64), zeros + np.uint64(purpose)], seed)
    bits = (words[0] >> np.uint64(6)) << np.uint64(26) | words[1] >> np.uint64(6)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def exp(x: F64) -> F64:
    """e to the power of x, float64 of the same shape, for x <= 700; 0 below -700. Error below 2 ulp."""
    kept = np.maximum(x, -701.0)
    n = np.rint(kept * _LOG2E)
    r = (kept - n * _LN2_HIGH) - n * _LN2_LOW
    p = np.full(r.shape, 1.0 / _FACTORIALS[-1])
    for factorial in _FACTORIALS[-2::-1]:
        p *= r
        p += 1.0 / factorial
    result: F64 = np.ldexp(p * r + 1.0, n.astype(np.int32))
    result[x < -700.0] = 0.0
    return result


def log(x: float) -> float:
    """The natural logarithm of a finite number of 0 or more; -inf for 0. Error below 2 ulp."""
    if x == 0.0:
        return -np.inf
    mantissa, exponent = np.frexp(x)
    m, k = float(mantissa), int(exponent)
    if m < 0.7071067811865476:
        m, k = 2.0 * m, k - 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 0.0
    for odd in range(23, 1, -2):
        p = p * z + 1.0 / odd
    return k * _LN2_HIGH + (k * _LN2_LOW + (2.0 * s * (z * p) + 2.0 * s))


def total(values: F64) -> float:
    """The sum of float64 [n], n > 0, from the first to the last."""
    return float(np.cumsum(values)[-1])
