"""Writers of quantised blocks, for tests: the inverse of the readers, in NumPy. Layouts: ggml-common.h."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def through_bf16(x: Array) -> Array:
    """Rounds to nearest even in bf16."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def random_blocks(dtype: str, rows: int, cols: int, seed: int = 0) -> bytes:
    """Random but sane contents of a tensor [rows, cols]: codes uniform, scales about 0.01."""
    rng = np.random.default_rng(seed)
    if dtype in ("F32", "F16", "BF16"):
        values = (rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)
        if dtype == "F32":
            return values.tobytes()
        if dtype == "F16":
            return values.astype(np.float16).tobytes()
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()

    def halves(count: int, low: float = 0.002, high: float = 0.02) -> Array:
        return rng.uniform(low, high, (count, 1)).astype(np.float16).view(np.uint8)

    def random_bytes(count: int, width: int) -> Array:
        return rng.integers(0, 256, (count, width), dtype=np.uint8)

    count = rows * cols // (256 if dtype.endswith("K") else 32)
    if dtype == "Q4_0":
        parts = [halves(count), random_bytes(count, 16)]
    elif dtype == "Q4_1":
        parts = [halves(count), halves(count, -0.1, 0.0), random_bytes(count, 16)]
    elif dtype == "Q5_0":
        parts = [halves(count), random_bytes(count, 20)]
    elif dtype == "Q8_0":
        parts = [halves(count, 0.0001, 0.001), random_bytes(count, 32)]
    elif dtype == "Q4_K":
        parts = [halves(count, 0.0001, 0.001), halves(count, 0.0001, 0.001), random_bytes(count, 12), random_bytes(count, 128)]
    else:
        parts = [random_bytes(count, 208), halves(count, 0.00001, 0.0001)]
    return np.concatenate(parts, axis=1).tobytes()


def extreme_blocks(dtype: str, rows: int, cols: int) -> tuple[bytes, float]:
    """Every code the largest in magnitude, or of its unsigned form: the worst case of 16-bit sums; and the value of all weights."""
    count = rows * cols // (256 if dtype.endswith("K") else 32)
    scale = float(np.float16(0.01))

    def halves(value: float) -> Array:
        return np.full((count, 1), value, np.float16).view(np.uint8)

    def filled(width: int, byte: int = 0xFF) -> Array:
        return np.full((count, width), byte, np.uint8)

    if dtype == "Q4_K":  # the scale's bytes: all 1, all minima 0
        ones = np.tile(np.array([1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1], np.uint8), (count, 1))
        return np.concatenate([halves(0.01), halves(0.01), ones, filled(128)], axis=1).tobytes(), 15 * scale
    parts, value = {
        "Q4_0": ([halves(0.01), filled(16)], 7),
        "Q4_1": ([halves(0.01), halves(0.0), filled(16)], 15),
        "Q5_0": ([halves(0.01), filled(20)], 15),
        "Q8_0": ([halves(0.01), filled(32, 0x80)], -128),
        "Q6_K": ([filled(192), filled(16, 1), halves(0.01)], 31),
    }[dtype]
    return np.concatenate(parts, axis=1).tobytes(), value * scale
