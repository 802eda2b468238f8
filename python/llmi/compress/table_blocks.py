"""ggml's blocks of 32 values whose codes are places in a table: IQ4_NL and MXFP4."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from llmi import _core
from llmi.compress.blocks import BLOCK, Scales, as_fp16, row_sum

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    I16 = NDArray[np.int16]
    U8 = NDArray[np.uint8]
else:
    from llmi.base.lazy_numpy import np

_EXPONENTS = 3  # that a search tries, from the least that cuts nothing off


@dataclasses.dataclass(frozen=True)
class TableType:
    """Values are scale * level.

    Attributes
    ----------
    levels : tuple of float
        Ascending. A code counts them; `stored` is what the file holds for it.
    is_power : bool
        Whether scales are powers of two (a byte e: 2^(e - 128)), or fp16.
    """

    name: str
    number: int
    levels: tuple[float, ...]
    stored: tuple[int, ...]
    is_power: bool

    columns = BLOCK
    part = BLOCK

    @property
    def block_bytes(self) -> int:
        """Bytes of 32 values."""
        return 16 + (1 if self.is_power else 2)

    @property
    def codes(self) -> tuple[int, int]:
        """The least and the largest one."""
        return 0, len(self.levels) - 1

    def scales(self, values: F32, weights: F32) -> Scales:
        """Scales of the least weighted squared error that is found. Raises InvalidParamsError: one is beyond fp16."""
        if not self.is_power:
            found, _ = _core.search_scales(values, weights, *self.codes, self.levels, has_minimum=False, in_halves=True, below_zero=False)
            scale = as_fp16(found).astype(np.float32)[:, None]
            return Scales(scale, np.zeros_like(scale), (scale,))
        best = np.full((len(values), 1), np.inf, np.float32)
        scale = np.zeros_like(best)
        for tried in _powers(np.abs(values).max(axis=1, keepdims=True) / np.float32(self.levels[-1])):
            gap = values - tried * self._nearest(values, tried)
            error = row_sum(weights * gap * gap)
            better = error < best
            best, scale = np.where(better, error, best), np.where(better, tried, scale)
        return Scales(scale, np.zeros_like(scale), (scale,))

    def _nearest(self, values: F32, scale: F32) -> F32:
        return np.array(self.levels, np.float32)[self.nearest_codes(values, scale)]

    def nearest_codes(self, values: F32, scale: F32) -> NDArray[np.int64]:
        """Codes of blocks under scales [num_blocks, 1]; of two that are equally near the lower one."""
        levels = np.array(self.levels, np.float32)
        sound = scale != 0
        with np.errstate(over="ignore"):
            scaled = np.where(sound, values / np.where(sound, scale, np.float32(1)), np.float32(0))
        return np.searchsorted((levels[1:] + levels[:-1]) / 2, scaled)

    def pack(self, codes: I16, scales: Scales) -> bytes:
        """The bytes of blocks. codes [num_blocks, 32]."""
        stored = np.array(self.stored, np.uint8)[codes]
        (scale,) = scales.fields
        head: U8
        if self.is_power:
            head = (np.frexp(scale)[1] - 1 + 128).astype(np.uint8)
        else:
            head = scale.astype(np.float16).view(np.uint8)
        return np.concatenate([head, stored[:, :16] | (stored[:, 16:] << 4)], axis=1).astype(np.uint8).tobytes()


def _powers(largest: F32) -> list[F32]:
    """The least powers of two that are not below these numbers, and those below them."""
    mantissa, exponent = np.frexp(largest)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    return [np.ldexp(np.float32(1), np.clip(exponent - step, -126, 126)).astype(np.float32) for step in range(_EXPONENTS)]


_NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12)  # twice the values

TABLE_TYPES = {
    kind.name: kind
    for kind in (
        TableType("IQ4_NL", 20, tuple(map(float, _NON_LINEAR)), tuple(range(16)), is_power=False),
        TableType("MXFP4", 39, tuple(map(float, _E2M1)), (15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7), is_power=True),
    )
}
