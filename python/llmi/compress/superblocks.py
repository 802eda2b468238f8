"""ggml's super-blocks of 256 values (K types): parts with scales of few bits under a scale of the whole."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.compress.blocks import Scales, as_fp16, row_sum

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    I16 = NDArray[np.int16]
    U8 = NDArray[np.uint8]
else:
    from llmi.base.lazy_numpy import np

_ROUNDS = 3  # in which scales are fitted to codes, and codes to scales


@dataclasses.dataclass(frozen=True)
class SuperType:
    """A K type: values are (d scale) code - (d_min minimum) with whole scales and minima, or (d scale) code.

    Attributes
    ----------
    bits : int
        Of a code.
    has_minimum : bool
    part : int
        Values of a part.
    scale_range : tuple of int
        Of a part's scale, and where there are minima of its minimum.
    """

    name: str
    number: int
    bits: int
    has_minimum: bool
    part: int
    scale_range: tuple[int, int]
    block_bytes: int

    columns = 256
    levels: tuple[float, ...] = ()

    @property
    def codes(self) -> tuple[int, int]:
        """The least and the largest one."""
        most = 2**self.bits - 1
        return (0, most) if self.has_minimum else (-(2 ** (self.bits - 1)), most >> 1)

    def scales(self, values: F32, weights: F32) -> Scales:
        """Scales and minima of the least weighted squared error that is found. Raises InvalidParamsError: one is beyond fp16."""
        parts, own = values.reshape(-1, self.part), weights.reshape(-1, self.part)
        scale, low = _core.search_scales(
            parts, own, *self.codes, (), has_minimum=self.has_minimum, in_halves=False, below_zero=self.has_minimum
        )
        num_parts = self.columns // self.part
        best = self._whole(scale.reshape(-1, num_parts), low.reshape(-1, num_parts))
        least = self._error(best, values, weights)
        tried = best
        for _ in range(_ROUNDS):
            tried = self._refitted(tried, values, weights)
            error = self._error(tried, values, weights)
            better = error < least
            least = np.where(better, error, least)
            best = _Whole(*(np.where(better, new, old) for new, old in zip(tried.fields(), best.fields(), strict=True)))
        return self._stored(best)

    def _whole(self, scale: F32, low: F32) -> _Whole:
        """Whole scales under the finest d that holds all of them."""
        least, most = self.scale_range
        if self.has_minimum:
            d = np.maximum(scale.max(axis=1, keepdims=True), 0) / np.float32(most)
            d_min = -low.min(axis=1, keepdims=True) / np.float32(most)
        else:
            extreme = np.take_along_axis(scale, np.abs(scale).argmax(axis=1)[:, None], axis=1)
            d, d_min = extreme / np.float32(least), np.zeros((len(scale), 1), np.float32)
        return self._rounded(d, d_min, scale, low)

    def _rounded(self, d: F32, d_min: F32, scale: F32, low: F32) -> _Whole:
        d, d_min = as_fp16(d).astype(np.float32), as_fp16(d_min).astype(np.float32)
        least, most = self.scale_range
        return _Whole(d, d_min, np.clip(_ratio(scale, d), least, most), np.clip(_ratio(-low, d_min), 0, most))

    def _refitted(self, whole: _Whole, values: F32, weights: F32) -> _Whole:
        """Scales that fit the codes best, part by part, then d and d_min by all of them."""
        now = self._stored(whole)
        parts, own = values.reshape(-1, self.part), weights.reshape(-1, self.part)
        scale, low = now.scale.reshape(-1, 1), now.low.reshape(-1, 1)
        codes = nearest_codes(self, parts, scale, low)
        scale, low = self._fitted(parts, own, codes, (scale, low))
        shape = whole.scales.shape
        refitted = self._rounded(whole.d, whole.d_min, scale.reshape(shape), low.reshape(shape))
        first = (codes.reshape(*shape, self.part) * refitted.scales[..., None]).reshape(values.shape)
        second = np.repeat(-refitted.minima, self.part, axis=1)
        d, d_min = _two_factors(first, second, values, weights, (refitted.d, refitted.d_min))
        return self._rounded(d, d_min, refitted.scales * d, -refitted.minima * d_min)

    def _fitted(self, parts: F32, weights: F32, codes: F32, now: tuple[F32, F32]) -> tuple[F32, F32]:
        """The scale and the minimum of each part that fit these codes best; `now` where nothing is determined."""
        squares, products = row_sum(weights * codes * codes), row_sum(weights * codes * parts)
        alone = np.where(squares > 0, products / np.where(squares > 0, squares, 1), now[0])
        if not self.has_minimum:
            return alone, now[1]
        total, mean, firsts = row_sum(weights), row_sum(weights * parts), row_sum(weights * codes)
        determinant = total * squares - firsts * firsts
        sound = determinant > np.float32(1e-6) * total * squares
        divisor = np.where(sound, determinant, 1)
        scale = np.where(sound, (total * products - firsts * mean) / divisor, now[0])
        low = np.where(sound, (squares * mean - firsts * products) / divisor, now[1])
        return np.maximum(np.where(low > 0, alone, scale), 0), np.minimum(low, 0)

    def _error(self, whole: _Whole, values: F32, weights: F32) -> F32:
        stored = self._stored(whole)
        parts = values.reshape(-1, self.part)
        scale, low = stored.scale.reshape(-1, 1), stored.low.reshape(-1, 1)
        gap = (parts - (scale * nearest_codes(self, parts, scale, low) + low)).reshape(values.shape)
        return row_sum(weights * gap * gap)

    def _stored(self, whole: _Whole) -> Scales:
        return Scales(whole.d * whole.scales, -(whole.d_min * whole.minima), whole.fields())

    def pack(self, codes: I16, scales: Scales) -> bytes:
        """The bytes of blocks. codes [num_blocks, 256]: within `codes`."""
        parts: list[NDArray[Any]]
        d, d_min, whole, minima = scales.fields
        halves = d.astype(np.float16).view(np.uint8), d_min.astype(np.float16).view(np.uint8)
        unsigned: U8 = (codes - self.codes[0]).astype(np.uint8)
        if self.has_minimum:
            low = unsigned.reshape(-1, 4, 2, 32) & 15
            parts = [*halves, _six_bits(whole.astype(np.uint8), minima.astype(np.uint8))]
            if self.bits == 5:
                parts.append(_bits(unsigned.reshape(-1, 8, 32) >> 4))
            parts.append((low[:, :, 0] | (low[:, :, 1] << 4)).reshape(-1, 128))
        elif self.bits == 6:
            halved = unsigned.reshape(-1, 2, 4, 32)
            low, high = halved & 15, halved >> 4
            parts = [
                (low[:, :, :2] | (low[:, :, 2:] << 4)).reshape(-1, 128),
                (high[:, :, 0] | (high[:, :, 1] << 2) | (high[:, :, 2] << 4) | (high[:, :, 3] << 6)).reshape(-1, 64),
                whole.astype(np.int8).view(np.uint8),
                halves[0],
            ]
        else:
            pairs = unsigned.reshape(-1, 2, 4, 32) & 3
            own = (whole + 32).astype(np.uint8)
            high = (own >> 4).reshape(-1, 4, 4)
            parts = [
                _bits(unsigned.reshape(-1, 8, 32) >> 2),
                (pairs[:, :, 0] | (pairs[:, :, 1] << 2) | (pairs[:, :, 2] << 4) | (pairs[:, :, 3] << 6)).reshape(-1, 64),
                (own[:, :8] & 15) | ((own[:, 8:] & 15) << 4),
                high[:, 0] | (high[:, 1] << 2) | (high[:, 2] << 4) | (high[:, 3] << 6),
                halves[0],
            ]
        return np.concatenate(parts, axis=1).astype(np.uint8).tobytes()


@dataclasses.dataclass(frozen=True)
class _Whole:
    """d, d_min [num_blocks, 1]; whole scales and minima [num_blocks, parts]."""

    d: F32
    d_min: F32
    scales: F32
    minima: F32

    def fields(self) -> tuple[F32, ...]:
        return self.d, self.d_min, self.scales, self.minima


def nearest_codes(kind: SuperType, parts: F32, scale: F32, low: F32) -> F32:
    """The codes of parts [num_parts, part] that are nearest under scales and minima [num_parts, 1]."""
    return np.clip(_ratio(parts - low, scale), *kind.codes)


def _ratio(values: F32, by: F32) -> F32:
    """Rounded to whole numbers; 0 where `by` is 0."""
    sound = by != 0
    with np.errstate(over="ignore"):
        rounded: F32 = np.where(sound, np.rint(values / np.where(sound, by, np.float32(1))), np.float32(0))
    return rounded


def _two_factors(first: F32, second: F32, values: F32, weights: F32, now: tuple[F32, F32]) -> tuple[F32, F32]:
    """a and b of the least weighted squared error of a first + b second, none below 0 where b counts."""
    aa, ab, bb = row_sum(weights * first * first), row_sum(weights * first * second), row_sum(weights * second * second)
    ax, bx = row_sum(weights * first * values), row_sum(weights * second * values)
    determinant = aa * bb - ab * ab
    both = determinant > np.float32(1e-6) * aa * bb
    divisor = np.where(both, determinant, 1)
    alone = np.where(aa > 0, ax / np.where(aa > 0, aa, 1), now[0])
    a = np.where(both, (bb * ax - ab * bx) / divisor, np.where(bb > 0, now[0], alone))
    b = np.where(both, (aa * bx - ab * ax) / divisor, now[1])
    sound = b >= 0
    return np.where(sound, a, now[0]), np.where(sound, b, now[1])


def _six_bits(scales: U8, minima: U8) -> U8:
    """Eight scales and eight minima of six bits in twelve bytes."""
    first = (scales[:, :4] & 63) | ((scales[:, 4:] >> 4) << 6)
    second = (minima[:, :4] & 63) | ((minima[:, 4:] >> 4) << 6)
    third = (scales[:, 4:] & 15) | ((minima[:, 4:] & 15) << 4)
    return np.concatenate([first, second, third], axis=1)


def _bits(of_parts: NDArray[Any]) -> U8:
    """[num_blocks, 8, 32] bits as bytes [num_blocks, 32], the first part's in the lowest bit."""
    joined: U8 = (of_parts << np.arange(8, dtype=np.uint8)[None, :, None]).sum(axis=1, dtype=np.uint8)
    return joined


SUPER_TYPES = {
    kind.name: kind
    for kind in (
        SuperType("Q3_K", 11, 3, False, 16, (-32, 31), 110),
        SuperType("Q4_K", 12, 4, True, 32, (0, 63), 144),
        SuperType("Q5_K", 13, 5, True, 32, (0, 63), 176),
        SuperType("Q6_K", 14, 6, False, 16, (-128, 127), 210),
    )
}
