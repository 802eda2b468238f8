"""Quantised layers in NumPy: the codes of activations and the canonical order of sums, bit for bit (kernels/ops/quantize_rows.h, kernels/ops/linear.h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BLOCK = 32


def fma32(a: Array, b: Array, c: Array) -> Array:
    """a b + c, rounded once to float32. The product of two float32 is exact in float64; their sum is rounded to odd, so that the second rounding cannot err."""
    product = np.asarray(a, np.float32).astype(np.float64) * np.asarray(b, np.float32).astype(np.float64)
    addend = np.asarray(c, np.float32).astype(np.float64)
    total = product + addend
    part = total - product
    lost = (product - (total - part)) + (addend - part)
    odd = total.view(np.int64) & 1 == 1
    total = np.where((lost == 0) | odd | ~np.isfinite(total), total, np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)))
    return total.astype(np.float32)


@dataclass
class Codes:
    """Activations [rows, columns] as a quantised layer reads them. `scales` [rows, blocks, 1], or, where fine, [rows, blocks, 2]."""

    whole: Array  # [rows, blocks, 32] int64; at 16 bits 256 high + low
    high: Array  # [rows, blocks, 32] int8
    low: Array | None  # the same, at 16 bits alone
    scales: Array
    sums: Array  # [rows, blocks] float32
    half_sums: Array  # [rows, blocks, 2] int32

    @property
    def values(self) -> Array:
        """What the codes stand for, exactly, [rows, columns] float64."""
        width = BLOCK // self.scales.shape[-1]
        scales = np.repeat(self.scales.astype(np.float64), width, axis=-1)
        return (self.whole * scales).reshape(len(self.whole), -1)

    def arrays(self) -> list[Array]:
        """In the order of _core.testing.quantize_rows, each flat."""
        parts = [self.high, self.scales, self.sums, self.half_sums, *([] if self.low is None else [self.low])]
        return [np.ascontiguousarray(part).reshape(-1) for part in parts]


def codes_of(x: Array, *, fine: bool = False, bits: int = 8) -> Codes:
    """x [rows, columns] float32; each step is a float32 operation of its own, rounded to nearest even."""
    width = 16 if fine else BLOCK
    blocks = x.reshape(len(x), -1, BLOCK // width, width)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        magnitudes = np.where(np.isnan(blocks), np.float32(0), np.abs(blocks))  # a NaN is larger than nothing
        maximum = magnitudes.max(-1, keepdims=True)
        finite = np.isfinite(blocks).all(-1, keepdims=True)
        inverse = np.where(maximum > 2.0**-100, np.float32(127) / maximum, np.float32(0))
        scales = np.where(finite, maximum / np.float32(127), np.float32(np.nan))
        y = np.where(finite, blocks, np.float32(0)) * np.where(finite, inverse, np.float32(0))
    high = np.rint(y)
    low = np.clip(np.rint((y - high) * np.float32(256)), -127, 127) if bits == 16 else None
    whole = high if low is None else 256 * high + low
    if bits == 16:
        scales = scales * np.float32(1 / 256)
    of_scales = whole.astype(np.int64).sum(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        products = scales[..., 0] * of_scales.astype(np.float32)
        sums = products[..., 0] + products[..., 1] if fine else products[..., 0]
    return Codes(
        whole.reshape(len(x), -1, BLOCK).astype(np.int64),
        high.reshape(len(x), -1, BLOCK).astype(np.int8),
        None if low is None else low.reshape(len(x), -1, BLOCK).astype(np.int8),
        scales[..., 0],
        sums,
        whole.reshape(len(x), -1, 2, 16).astype(np.int64).sum(-1).astype(np.int32),
    )


@dataclass
class Weights:
    """A quantised matrix: value = scale (of the block's half) times code, plus minimum."""

    codes: Array  # [rows, blocks, 32] int64
    scales: Array  # [rows, blocks, 2] float32; both the same but for Q6_K
    minima: Array | None  # [rows, blocks] float32
    scale_by_half: bool = False

    @property
    def values(self) -> Array:
        """[rows, columns] float64, exact but for the sum with the minimum."""
        halves = self.codes.reshape(*self.codes.shape[:2], 2, 16) * self.scales.astype(np.float64)[..., None]
        if self.minima is not None:
            halves = halves + self.minima.astype(np.float64)[..., None, None]
        return halves.reshape(len(self.codes), -1)


def _halves(raw: Array, at: int) -> Array:
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16)[:, 0].astype(np.float32)


def _nibbles(raw: Array) -> Array:
    """Low nibbles of all bytes, then high ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1).astype(np.int64)


def weights_of(dtype: str, data: bytes, rows: int, cols: int) -> Weights:
    """From the bytes of a file's tensor; layouts: ggml-common.h."""
    size = 256 if dtype.endswith("K") else 32
    raw = np.frombuffer(data, np.uint8).reshape(rows * cols // size, -1)
    minima: Array | None = None
    if dtype in ("Q4_0", "Q4_1", "Q5_0", "Q8_0"):
        scales = np.repeat(_halves(raw, 0)[:, None], 2, axis=1)
        if dtype == "Q8_0":
            codes = raw[:, 2:].view(np.int8).astype(np.int64)
        elif dtype == "Q5_0":
            fifth = np.unpackbits(raw[:, 2:6], axis=1, bitorder="little").astype(np.int64)
            codes = (_nibbles(raw[:, 6:]) | fifth << 4) - 16
        elif dtype == "Q4_1":
            codes, minima = _nibbles(raw[:, 4:]), _halves(raw, 2)
        else:
            codes = _nibbles(raw[:, 2:]) - 8
    elif dtype == "Q4_K":
        packed = raw[:, 4:16].astype(np.int64)
        low, high = packed[:, 0:4], packed[:, 4:8]
        scale = np.concatenate([low & 63, packed[:, 8:12] & 15 | (low >> 6) << 4], axis=1)
        minimum = np.concatenate([high & 63, packed[:, 8:12] >> 4 | (high >> 6) << 4], axis=1)
        scales = np.repeat((_halves(raw, 0)[:, None] * scale.astype(np.float32))[..., None], 2, axis=-1)
        minima = -_halves(raw, 2)[:, None] * minimum.astype(np.float32)
        codes = _nibbles(raw[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    else:
        low, high = raw[:, :128].reshape(-1, 2, 2, 32).astype(np.int64), raw[:, 128:192].reshape(-1, 2, 32).astype(np.int64)
        quarters = [(low[:, :, i % 2] >> (4 if i > 1 else 0) & 15) | (high >> 2 * i & 3) << 4 for i in range(4)]
        codes = np.stack(quarters, axis=2).reshape(-1, 8, 32) - 32
        scales = _halves(raw, 208)[:, None, None] * raw[:, 192:208].view(np.int8).astype(np.float32).reshape(-1, 8, 2)
    count = cols // BLOCK
    return Weights(
        codes.reshape(rows, count, BLOCK),
        scales.reshape(rows, count, 2).astype(np.float32),
        None if minima is None else minima.reshape(rows, count),
        dtype == "Q6_K",
    )


def canonical_linear(weights: Weights, x: Codes) -> Array:
    """[rows of x, rows of weights] float32: whole dots in integers, then blocks in order, scale before minimum."""
    out = np.zeros((len(x.whole), len(weights.codes)), np.float32)
    fine = x.scales.shape[-1] == 2
    for block in range(weights.codes.shape[1]):
        halves = x.whole[:, block].reshape(-1, 1, 2, 16) * weights.codes[:, block].reshape(1, -1, 2, 16)
        dots = halves.sum(-1)
        assert np.abs(dots).max(initial=0) < 2**31 and np.abs(dots.sum(-1)).max(initial=0) < 2**31, "a dot leaves int32"
        w, s = weights.scales[:, block], x.scales[:, block]
        parts = [0, 1] if weights.scale_by_half else [None]
        if fine and weights.scale_by_half:
            for i in (0, 1):
                out = fma32(dots[..., i].astype(np.float32) * s[:, i : i + 1], w[:, i], out)
        elif fine:
            first = dots[..., 0].astype(np.float32) * s[:, :1]
            out = fma32(fma32(dots[..., 1].astype(np.float32), s[:, 1:], first), w[:, 0], out)
        else:
            for part in parts:
                dot = dots.sum(-1) if part is None else dots[..., part]
                out = fma32(dot.astype(np.float32), w[:, part or 0] * s[:, :1], out)
        if weights.minima is not None:
            out = fma32(weights.minima[:, block], x.sums[:, block, None], out)
    return out
