"""Writers of quantised blocks, for tests: the inverse of the readers, in NumPy. Layouts: ggml-common.h."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def through_bf16(x: Array) -> Array:
    """Rounds to nearest even in bf16."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


#: A block's fields in order: a number of random bytes, or the range of an fp16; of all quantised types, beside the number of values.
#: IQ1_M's d and the scales of MXFP4 and NVFP4, which are no fp16, are set by _set_scales.
LAYOUTS: dict[str, tuple[int, list[int | tuple[float, float]]]] = {
    "Q4_0": (32, [(0.002, 0.02), 16]),
    "Q4_1": (32, [(0.002, 0.02), (-0.1, 0.0), 16]),
    "Q5_0": (32, [(0.002, 0.02), 20]),
    "Q5_1": (32, [(0.002, 0.02), (-0.1, 0.0), 20]),
    "Q8_0": (32, [(0.0001, 0.001), 32]),
    "Q2_K": (256, [80, (0.001, 0.005), (0.001, 0.005)]),
    "Q3_K": (256, [108, (0.0001, 0.001)]),
    "Q4_K": (256, [(0.0001, 0.001), (0.0001, 0.001), 12, 128]),
    "Q5_K": (256, [(0.0001, 0.001), (0.0001, 0.001), 172]),
    "Q6_K": (256, [208, (0.00001, 0.0001)]),
    "IQ4_NL": (32, [(0.0001, 0.001), 16]),
    "IQ4_XS": (256, [(0.00001, 0.0001), 134]),
    "MXFP4": (32, [17]),
    "TQ2_0": (256, [64, (0.002, 0.02)]),
    "TQ1_0": (256, [52, (0.002, 0.02)]),
    "NVFP4": (64, [36]),
    "IQ1_S": (256, [(0.001, 0.01), 48]),
    "IQ1_M": (256, [56]),
    "IQ2_XXS": (256, [(0.0001, 0.001), 64]),
    "IQ2_XS": (256, [(0.0001, 0.001), 72]),
    "IQ2_S": (256, [(0.0001, 0.001), 80]),
    "IQ3_XXS": (256, [(0.0001, 0.001), 96]),
    "IQ3_S": (256, [(0.0001, 0.001), 108]),
}
#: Of the quantised types, in GGUF.
NUMBERS = {
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "IQ4_NL": 20,
    "IQ4_XS": 23,
    "MXFP4": 39,
    "TQ2_0": 35,
    "TQ1_0": 34,
    "NVFP4": 40,
    "IQ1_S": 19,
    "IQ1_M": 29,
    "IQ2_XXS": 16,
    "IQ2_XS": 17,
    "IQ2_S": 22,
    "IQ3_XXS": 18,
    "IQ3_S": 21,
}
#: Quantised types that kernels read as they are, and those that are unpacked at load.
UNPACKED = ["TQ1_0", "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
KERNEL_TYPES = [dtype for dtype in LAYOUTS if dtype not in UNPACKED]


def _set_scales(dtype: str, blocks: Array, rng: np.random.Generator) -> None:
    if dtype == "MXFP4":
        blocks[:, 0] = rng.integers(118, 125, len(blocks))
    elif dtype == "NVFP4":
        blocks[:, :4] = rng.integers(1, 0x18, (len(blocks), 4))
    elif dtype == "IQ1_M":  # a d of about 0.002 in the highest four bits of four words
        d = rng.uniform(0.001, 0.01, len(blocks)).astype(np.float16).view(np.uint16)
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (d >> 4 * i & 15) << 4


def block_bytes(dtype: str) -> int:
    return sum(field if isinstance(field, int) else 2 for field in LAYOUTS[dtype][1])


def random_blocks(dtype: str, rows: int, cols: int, seed: int = 0) -> bytes:
    """Random but sane contents of a tensor [rows, cols]: codes uniform, scales such that most values are below 1."""
    rng = np.random.default_rng(seed)
    if dtype in ("F32", "F16", "BF16"):
        values = (rng.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)
        if dtype == "F32":
            return values.tobytes()
        if dtype == "F16":
            return values.astype(np.float16).tobytes()
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    size, fields = LAYOUTS[dtype]
    count = rows * cols // size
    parts = []
    for field in fields:
        if isinstance(field, int):
            parts.append(rng.integers(0, 256, (count, field), dtype=np.uint8))
        else:
            parts.append(rng.uniform(*field, (count, 1)).astype(np.float16).view(np.uint8))
    blocks = np.concatenate(parts, axis=1)
    _set_scales(dtype, blocks, rng)
    return blocks.tobytes()


def extreme_blocks(dtype: str, rows: int, cols: int) -> tuple[bytes, float]:
    """Every code the largest in magnitude, or of its unsigned form: the worst case of 16-bit sums; and the value of all weights."""
    count = rows * cols // LAYOUTS[dtype][0]
    scale = float(np.float16(0.01))

    def halves(value: float) -> Array:
        return np.full((count, 1), value, np.float16).view(np.uint8)

    def filled(width: int, byte: int = 0xFF) -> Array:
        return np.full((count, width), byte, np.uint8)

    if dtype in ("Q4_K", "Q5_K"):  # the scale's bytes: all 1, all minima 0
        ones = np.tile(np.array([1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1], np.uint8), (count, 1))
        codes, value = (filled(128), 15) if dtype == "Q4_K" else (filled(160), 31)
        return np.concatenate([halves(0.01), halves(0.01), ones, codes], axis=1).tobytes(), value * scale
    if dtype == "MXFP4":  # -12 and 2^-7
        return np.concatenate([filled(1, 121), filled(16)], axis=1).tobytes(), -12 * 2.0**-7
    parts, value = {
        "Q4_0": ([halves(0.01), filled(16)], 7),
        "Q4_1": ([halves(0.01), halves(0.0), filled(16)], 15),
        "Q5_0": ([halves(0.01), filled(20)], 15),
        "Q5_1": ([halves(0.01), halves(0.0), filled(20)], 31),
        "Q2_K": ([filled(16, 1), filled(64), halves(0.01), halves(0.01)], 3),
        "Q3_K": ([filled(96), filled(8, 0x11), filled(4, 0xAA), halves(0.01)], 3),
        "IQ4_NL": ([halves(0.01), filled(16, 0)], -127),
        "IQ4_XS": ([halves(0.01), filled(2, 0xAA), filled(4, 0x11), filled(128, 0)], -127),
        "TQ2_0": ([filled(64), halves(0.01)], 2),
        "Q8_0": ([halves(0.01), filled(32, 0x80)], -128),
        "Q6_K": ([filled(192), filled(16, 1), halves(0.01)], 31),
    }[dtype]
    return np.concatenate(parts, axis=1).tobytes(), value * scale
