"""ggml's blocks of 32 values: numbers become codes and scales, by ggml's own rule or by a search for the least squared error."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    U8 = NDArray[np.uint8]
else:
    from llmi.base.lazy_numpy import np

BLOCK = 32
_LEAST_NORMAL = 2.0**-126


@dataclasses.dataclass(frozen=True)
class Scales:
    """Scales of blocks as a file holds them.

    Attributes
    ----------
    scale, low : float32 array [num_blocks, parts]
        A code of a part stands for scale * code + low, or scale * level + low.
    fields : tuple of arrays
        What the type packs.
    """

    scale: F32
    low: F32
    fields: tuple[F32, ...]


@dataclasses.dataclass(frozen=True)
class BlockType:
    """A type of blocks.

    Attributes
    ----------
    number : int
        Its number in a GGUF file.
    bits : int
        Of a code.
    has_minimum : bool
        Values are scale * code + minimum; else scale * (code - 2^(bits - 1)), or of 8 bits scale * code.
    """

    name: str
    number: int
    bits: int
    has_minimum: bool

    columns = BLOCK
    part = BLOCK
    levels: tuple[float, ...] = ()

    @property
    def block_bytes(self) -> int:
        """Bytes of 32 values."""
        return 2 + 2 * self.has_minimum + 4 * self.bits

    @property
    def codes(self) -> tuple[int, int]:
        """The least and the largest one: values are scale * code, or scale * code + minimum."""
        if self.bits == 8:
            return -127, 127
        most = 2**self.bits - 1
        return (0, most) if self.has_minimum else (-(2 ** (self.bits - 1)), most >> 1)

    @property
    def bits_per_weight(self) -> float:
        """Scales included."""
        return self.block_bytes / 4

    def scales(self, values: F32, weights: F32) -> Scales:
        """Those that a search finds, for blocks [num_blocks, 32]. Raises InvalidParamsError: one is beyond fp16."""
        found = _core.search_scales(values, weights, *self.codes, (), has_minimum=self.has_minimum, in_halves=True, below_zero=False)
        scale, low = (as_fp16(each).astype(np.float32)[:, None] for each in found)
        return Scales(scale, low, (scale, low))

    def pack(self, codes: NDArray[np.int16], scales: Scales) -> bytes:
        """The bytes of blocks. codes [num_blocks, 32]: within `codes`."""
        unsigned: U8 = (codes - (0 if self.bits == 8 else self.codes[0])).astype(np.int8).view(np.uint8)
        scale, low = scales.fields
        return _packed(self, unsigned, scale.astype(np.float16), low.astype(np.float16))


BLOCK_TYPES = {
    kind.name: kind
    for kind in (
        BlockType("Q4_0", 2, 4, False),
        BlockType("Q4_1", 3, 4, True),
        BlockType("Q5_0", 6, 5, False),
        BlockType("Q5_1", 7, 5, True),
        BlockType("Q8_0", 8, 8, False),
    )
}


def encode_absmax(kind: BlockType, values: F32) -> bytes:
    """The bytes of values by ggml's own rule (quantize_row_*_ref). Raises InvalidParamsError: a scale is beyond fp16."""
    blocks = values.reshape(-1, BLOCK)
    scale, minimum = _of_ggml(kind, blocks)
    return _packed(kind, _rounded(kind, blocks, scale, minimum), as_fp16(scale), as_fp16(minimum))


def _of_ggml(kind: BlockType, blocks: F32) -> tuple[F32, F32]:
    """(scales, minima) [num_blocks, 1] before they are rounded to fp16."""
    if kind.has_minimum:
        low = blocks.min(axis=1, keepdims=True)
        return (blocks.max(axis=1, keepdims=True) - low) / np.float32(2**kind.bits - 1), low
    zeros = np.zeros((len(blocks), 1), np.float32)
    if kind.bits == 8:
        return np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127), zeros
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    return extreme / np.float32(-(2 ** (kind.bits - 1))), zeros


def _inverse(scale: F32) -> F32:
    """1 / scale; 0 where that is beyond float32: such scales are 0 in fp16."""
    sound = np.abs(scale) >= _LEAST_NORMAL
    return np.where(sound, np.float32(1) / np.where(sound, scale, np.float32(1)), np.float32(0))


def _rounded(kind: BlockType, blocks: F32, scale: F32, minimum: F32) -> U8:
    """Codes as ggml rounds them: by the scale before it is rounded, halves away from zero (or up)."""
    scaled = (blocks - minimum if kind.has_minimum else blocks) * _inverse(scale)
    if kind.bits == 8:
        away = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
        # A sum that was rounded up to the next whole number: roundf does not.
        away = np.where(np.abs(away - scaled) > np.float32(0.5), away - np.sign(scaled), away)
        return _bytes(away)
    middle = np.float32(0.5 if kind.has_minimum else 2 ** (kind.bits - 1) + 0.5)
    return _whole(np.minimum(np.trunc(scaled + middle), 2**kind.bits - 1))


def _bytes(codes: F32) -> U8:
    """Whole numbers in [-128, 127] as bytes of two's complement."""
    signed: U8 = codes.astype(np.int8).view(np.uint8)
    return signed


def _whole(codes: F32) -> U8:
    unsigned: U8 = codes.astype(np.uint8)
    return unsigned


def row_sum(values: NDArray[Any]) -> NDArray[Any]:
    """Sums of 32 columns in one order on every machine: halves are added to halves."""
    size = values.shape[1]
    while size > 1:
        size //= 2
        values = values[:, :size] + values[:, size : 2 * size]
    return values


def as_fp16(values: F32) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        stored = values.astype(np.float16)
    if not np.isfinite(stored).all():
        raise InvalidParamsError(f"a scale of {np.abs(values).max():g} is beyond fp16: this tensor cannot have blocks", "type")
    return stored


def _packed(kind: BlockType, codes: U8, scale: NDArray[np.float16], minimum: NDArray[np.float16]) -> bytes:
    parts = [scale.view(np.uint8)]
    if kind.has_minimum:
        parts.append(minimum.view(np.uint8))
    if kind.bits == 8:
        parts.append(codes)
    else:
        if kind.bits == 5:
            parts.append(np.packbits(codes >> 4, axis=1, bitorder="little"))
        low = codes & 15
        parts.append((low[:, :16] | (low[:, 16:] << 4)).astype(np.uint8))
    return np.concatenate(parts, axis=1).tobytes()
