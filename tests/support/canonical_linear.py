"""Quantised layers in NumPy: the codes of activations and the canonical order of sums, bit for bit (kernels/ops/quantize_rows.h,
kernels/ops/linear.h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quantization import LAYOUTS

Array = np.ndarray[Any, Any]
BLOCK = 32


def fma32(a: Array, b: Array, c: Array) -> Array:
    """a b + c, rounded once to float32. The product of two float32 is exact in float64; their sum is rounded to odd, so that the second
    rounding cannot err."""
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
    scales: Array  # [rows, blocks, 2] float32; both the same unless scale_by_half
    minima: Array | None  # [rows, blocks] float32; Q2_K: [rows, blocks, 2]
    scale_by_half: bool = False

    @property
    def values(self) -> Array:
        """[rows, columns] float64, exact but for the sum with the minimum."""
        halves = self.codes.reshape(*self.codes.shape[:2], 2, 16) * self.scales.astype(np.float64)[..., None]
        if self.minima is not None:
            minima = self.minima if self.minima.ndim == 3 else self.minima[..., None]
            halves = halves + minima.astype(np.float64)[..., None]
        return halves.reshape(len(self.codes), -1)


def _halves(raw: Array, at: int) -> Array:
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16)[:, 0].astype(np.float32)


def _nibbles(raw: Array) -> Array:
    """Low nibbles of all bytes, then high ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1).astype(np.int64)


IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
E2M1_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])  # doubled


def _two_bits(raw: Array) -> Array:
    """[blocks, 64] bytes to [blocks, 8, 32] codes."""
    return np.stack([raw.reshape(-1, 2, 32).astype(np.int64) >> 2 * i & 3 for i in range(4)], axis=2).reshape(-1, 8, 32)


def _bits(raw: Array) -> Array:
    """[blocks, 32] bytes to [blocks, 8, 32]: bit i of each byte is of block i."""
    return np.stack([raw.astype(np.int64) >> i & 1 for i in range(8)], axis=1)


def _scales_of_q4_k(packed: Array) -> tuple[Array, Array]:
    low, high = packed[:, 0:4], packed[:, 4:8]
    scale = np.concatenate([low & 63, packed[:, 8:12] & 15 | (low >> 6) << 4], axis=1)
    return scale, np.concatenate([high & 63, packed[:, 8:12] >> 4 | (high >> 6) << 4], axis=1)


def _block_weights(dtype: str, raw: Array) -> tuple[Array, Array, Array | None]:
    """Codes, scales and minima of types whose blocks have 32 values, or 64 (NVFP4)."""
    minima: Array | None = None
    if dtype == "MXFP4":
        scales = np.ldexp(np.float32(1), raw[:, 0].astype(np.int32) - 128)
        return E2M1_VALUES[_nibbles(raw[:, 1:])], np.repeat(scales[:, None], 2, axis=1), None
    if dtype == "NVFP4":
        bits = raw[:, :4].astype(np.float32)
        scales = np.where(bits < 8, bits * 2.0**-10, np.ldexp(1 + bits % 8 / 8, (bits // 8).astype(np.int32) - 8))
        return E2M1_VALUES[_nibbles(raw[:, 4:].reshape(-1, 4, 8))], scales.reshape(-1, 2), None
    scales = np.repeat(_halves(raw, 0)[:, None], 2, axis=1)
    if dtype == "Q8_0":
        codes = raw[:, 2:].view(np.int8).astype(np.int64)
    elif dtype in ("Q5_0", "Q5_1"):
        at = 4 if dtype == "Q5_1" else 2
        fifth = np.unpackbits(raw[:, at : at + 4], axis=1, bitorder="little").astype(np.int64)
        codes = (_nibbles(raw[:, at + 4 :]) | fifth << 4) - (0 if dtype == "Q5_1" else 16)
        minima = _halves(raw, 2) if dtype == "Q5_1" else None
    elif dtype == "Q4_1":
        codes, minima = _nibbles(raw[:, 4:]), _halves(raw, 2)
    else:
        codes = IQ4_VALUES[_nibbles(raw[:, 2:])] if dtype == "IQ4_NL" else _nibbles(raw[:, 2:]) - 8
    return codes, scales, minima


def _super_block_weights(dtype: str, raw: Array) -> tuple[Array, Array, Array | None]:
    """The same of super-blocks."""
    minima: Array | None = None
    if dtype in ("Q4_K", "Q5_K"):
        scale, minimum = _scales_of_q4_k(raw[:, 4:16].astype(np.int64))
        scales = np.repeat((_halves(raw, 0)[:, None] * scale.astype(np.float32))[..., None], 2, axis=-1)
        minima = -_halves(raw, 2)[:, None] * minimum.astype(np.float32)
        codes = _nibbles(raw[:, -128:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
        if dtype == "Q5_K":
            codes = codes | _bits(raw[:, 16:48]) << 4
    elif dtype == "Q2_K":
        codes = _two_bits(raw[:, 16:80])
        scales = (_halves(raw, 80)[:, None] * (raw[:, :16] & 15).astype(np.float32)).reshape(-1, 8, 2)
        minima = (-_halves(raw, 82)[:, None] * (raw[:, :16] >> 4).astype(np.float32)).reshape(-1, 8, 2)
    elif dtype == "Q3_K":
        codes = (_two_bits(raw[:, 32:96]) | _bits(raw[:, :32]) << 2) - 4
        packed = raw[:, 96:108].astype(np.int64)
        low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
        high = np.concatenate([packed[:, 8:] >> 2 * i & 3 for i in range(4)], axis=1)
        scales = (_halves(raw, 108)[:, None] * ((low | high << 4) - 32).astype(np.float32)).reshape(-1, 8, 2)
    elif dtype == "IQ4_XS":
        codes = IQ4_VALUES[_nibbles(raw[:, 8:].reshape(-1, 8, 16))]
        high = np.ascontiguousarray(raw[:, 2:4]).view(np.uint16).astype(np.int64)
        low = np.stack([raw[:, 4:8] & 15, raw[:, 4:8] >> 4], axis=2).reshape(-1, 8)
        scale = (low | (high >> 2 * np.arange(8) & 3) << 4) - 32
        scales = np.repeat((_halves(raw, 0)[:, None] * scale.astype(np.float32))[..., None], 2, axis=-1)
    elif dtype == "TQ2_0":
        codes = _two_bits(raw[:, :64]) - 1
        scales = np.broadcast_to(_halves(raw, 64)[:, None, None], (len(raw), 8, 2))
    else:
        low, high = raw[:, :128].reshape(-1, 2, 2, 32).astype(np.int64), raw[:, 128:192].reshape(-1, 2, 32).astype(np.int64)
        quarters = [(low[:, :, i % 2] >> (4 if i > 1 else 0) & 15) | (high >> 2 * i & 3) << 4 for i in range(4)]
        codes = np.stack(quarters, axis=2).reshape(-1, 8, 32) - 32
        scales = _halves(raw, 208)[:, None, None] * raw[:, 192:208].view(np.int8).astype(np.float32).reshape(-1, 8, 2)
    return codes, scales, minima


def weights_of(dtype: str, data: bytes, rows: int, cols: int) -> Weights:
    """From the bytes of a file's tensor; layouts: ggml-common.h."""
    size, count = LAYOUTS[dtype][0], cols // BLOCK
    raw = np.frombuffer(data, np.uint8).reshape(rows * cols // size, -1)
    codes, scales, minima = (_super_block_weights if size == 256 else _block_weights)(dtype, raw)
    return Weights(
        codes.reshape(rows, count, BLOCK),
        scales.reshape(rows, count, 2).astype(np.float32),
        None if minima is None else minima.reshape(rows, count, *minima.shape[2:]),
        dtype in ("Q6_K", "Q3_K", "Q2_K", "NVFP4"),
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
        if weights.minima is not None and weights.minima.ndim == 3:
            for i in (0, 1):
                sums = x.half_sums[:, block, i : i + 1].astype(np.float32)
                part = fma32(weights.minima[:, block, i], sums, dots[..., i].astype(np.float32) * w[:, i])
                out = fma32(part, s[:, i if fine else 0][:, None], out)
            continue
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
