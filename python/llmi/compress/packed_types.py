"""The packed integers of compressed-tensors (llm-compressor, vLLM): groups of columns under one scale, and a zero point."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from llmi.compress.blocks import Scales, row_sum
from llmi.compress.folders import TYPES
from llmi.compress.grids import nearest
from llmi.compress.made_files import bf16_bits, float_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    I16 = NDArray[np.int16]
    U8 = NDArray[np.uint8]
else:
    from llmi.base.lazy_numpy import np

#: llm-compressor's name of a type: (bits, whether codes have no zero point).
PACKED = {"W4A16": (4, True), "W4A16_ASYM": (4, False), "W8A16": (8, True)}
#: Columns of a group.
GROUPS = (128, 64, 32)
# In 32nds, of a group's own scale. Scales that are fitted to the codes as well, as those of GGUF's blocks, lose 0.2 to 0.6 % less.
_FACTORS = range(20, 37)
_EPSILON = {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}  # the scale of a group of zeros


@dataclasses.dataclass(frozen=True)
class PackedType:
    """A grid of groups of `columns`.

    Attributes
    ----------
    bits : int
        4 or 8.
    is_symmetric : bool
        Values are scale * code, with codes from -2^(bits - 1); else scale * (code - zero), both from 0.
    float_type : {"F32", "F16", "BF16"}
        Of the scales: that of the matrix.
    """

    name: str
    bits: int
    is_symmetric: bool
    columns: int
    float_type: str

    number = -1  # GGUF has none
    levels: tuple[float, ...] = ()

    @property
    def part(self) -> int:
        """Columns of a scale."""
        return self.columns

    @property
    def codes(self) -> tuple[int, int]:
        """The least and the largest one."""
        half = 2 ** (self.bits - 1)
        return (-half, half - 1) if self.is_symmetric else (0, 2 * half - 1)

    @property
    def block_bytes(self) -> int:
        """Of a group, before `stored` takes codes and scales apart."""
        return self._group.itemsize

    @property
    def _group(self) -> np.dtype[np.void]:
        return np.dtype([("scale", np.float32), ("zero", np.uint8), ("codes", np.uint8, (self.columns,))])

    def scales(self, values: F32, weights: F32) -> Scales:
        """Those of the least weighted squared error that is found, for groups [num_groups, columns]."""
        scale, zero = self._of_range(values)
        best, least = scale, np.full_like(scale, np.inf)
        for factor in _FACTORS:
            tried = self._scales(self._as_stored(scale * np.float32(factor / 32)), zero)
            gap = values - (tried.scale * nearest(self, values, tried) + tried.low)
            error = row_sum(weights * gap * gap)
            best, least = np.where(error < least, tried.scale, best), np.minimum(error, least)
        return self._scales(best, zero)

    def absmax(self, values: F32) -> bytes:
        """The groups of a matrix by llm-compressor's own rule, each step rounded to the type of the scales."""
        groups = values.reshape(-1, self.columns)
        scale, zero = self._of_range(groups)
        least, most = self.codes
        middle = np.float32(0 if self.is_symmetric else 2 ** (self.bits - 1))
        scaled = self._as_stored(self._as_stored(groups / scale) + (zero - middle))
        return self.pack((np.rint(np.clip(scaled, least - middle, most - middle)) + middle).astype(np.int16), self._scales(scale, zero))

    def pack(self, codes: I16, scales: Scales) -> bytes:
        """Groups as `stored` reads them. codes [num_groups, columns]: within `codes`."""
        groups = np.empty(len(codes), self._group)
        (groups["zero"],) = (field[:, 0] for field in scales.fields)
        groups["scale"], groups["codes"] = scales.scale[:, 0], codes - self.codes[0]
        return groups.tobytes()

    def stored(self, rows: int, columns: int) -> dict[str, tuple[tuple[int, ...], int]]:
        """What a folder has for a matrix: ending of a name: (shape, the columns first, type)."""
        groups = columns // self.columns
        found: dict[str, tuple[tuple[int, ...], int]] = {
            "weight_packed": ((columns * self.bits // 32, rows), TYPES["I32"]),
            "weight_shape": ((2,), TYPES["I64"]),
            "weight_scale": ((groups, rows), TYPES[self.float_type]),
        }
        if not self.is_symmetric:
            found["weight_zero_point"] = (groups, -(-rows * self.bits // 32)), TYPES["I32"]
        return found

    def bytes_of(self, name: str, data: bytes, rows: int) -> dict[str, bytes]:
        """Of the groups of a matrix: ending: bytes, without those of the shape. Raises InvalidParamsError: a scale is beyond fp16."""
        groups = np.frombuffer(data, self._group).reshape(rows, -1)
        zeros = np.pad(groups["zero"], ((0, -rows % (32 // self.bits)), (0, 0)))
        by_word = zeros.reshape(-1, 32 // self.bits, zeros.shape[1]).swapaxes(1, 2)
        return {
            "weight_packed": self._words(groups["codes"]),
            "weight_scale": float_bytes(np.ascontiguousarray(groups["scale"]), TYPES[self.float_type], name, "type"),
            "weight_zero_point": self._words(by_word),
        }

    def _words(self, codes: U8) -> bytes:
        """Little-endian words, the first code in the lowest bits."""
        flat = codes.reshape(-1)
        return (flat if self.bits == 8 else flat[::2] | (flat[1::2] << 4)).astype(np.uint8).tobytes()

    def _of_range(self, groups: F32) -> tuple[F32, F32]:
        """(scales, zero points) [num_groups, 1] that reach from the least to the largest value, and to 0."""
        low = np.minimum(groups.min(axis=1, keepdims=True), np.float32(0))
        high = np.maximum(groups.max(axis=1, keepdims=True), np.float32(0))
        steps = np.float32(2**self.bits - 1)
        if self.is_symmetric:
            scale = self._as_stored(np.maximum(-low, high) / (steps / 2))
        else:
            scale = self._as_stored(self._as_stored(high - low) / steps)
        scale = np.where(scale == 0, np.float32(_EPSILON[self.float_type]), scale)
        if self.is_symmetric:
            return scale, np.zeros_like(scale)
        middle = np.float32(2 ** (self.bits - 1))
        return scale, np.rint(np.clip(self._as_stored(-middle - self._as_stored(low / scale)), -middle, middle - 1)) + middle

    @staticmethod
    def _scales(scale: F32, zero: F32) -> Scales:
        return Scales(scale, -scale * zero, (zero,))

    def _as_stored(self, values: F32) -> F32:
        if self.float_type == "F32":
            return values.astype(np.float32)
        if self.float_type == "F16":
            with np.errstate(over="ignore"):
                return values.astype(np.float16).astype(np.float32)
        return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32)
