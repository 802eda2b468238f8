"""The grids on which a matrix may be rounded, and the search for the scales of the least error."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from llmi.compress.blocks import BLOCK_TYPES, Scales
from llmi.compress.superblocks import SUPER_TYPES
from llmi.compress.table_blocks import TABLE_TYPES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    I16 = NDArray[np.int16]
else:
    from llmi.base.lazy_numpy import np

_PIECE = 1 << 16  # values at once: they stay in a core's cache


class Grid(Protocol):
    """A type of blocks of `columns` values, in parts with a scale each."""

    @property
    def name(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def part(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def codes(self) -> tuple[int, int]: ...
    @property
    def levels(self) -> tuple[float, ...]: ...
    def scales(self, values: F32, weights: F32) -> Scales: ...
    def pack(self, codes: I16, scales: Scales) -> bytes: ...


GRIDS: dict[str, Grid] = {**BLOCK_TYPES, **SUPER_TYPES, **TABLE_TYPES}


def encode_searched(grid: Grid, values: F32, weights: F32 | None = None) -> bytes:
    """The bytes of values [..., columns]: scales of the least squared error, then the nearest codes.

    weights: float32 [columns], what a column's error is weighed by; 1 without. Raises InvalidParamsError: a scale is beyond fp16.
    """
    blocks = values.reshape(-1, grid.columns)
    per_row = np.ones((1, grid.columns), np.float32) if weights is None else weights.reshape(-1, grid.columns)
    step = _PIECE // grid.columns

    def piece(begin: int) -> bytes:
        part = blocks[begin : begin + step]
        scales = grid.scales(part, per_row[np.arange(begin, begin + len(part)) % len(per_row)])
        return grid.pack(nearest(grid, part, scales), scales)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # NumPy lets other threads run meanwhile
        return b"".join(pool.map(piece, range(0, len(blocks), step)))


def rounded(grid: Grid, values: F32, weights: F32) -> F32:
    """What a search by these weights of columns makes of a matrix."""
    blocks = values.reshape(-1, grid.columns)
    per_row = weights.reshape(-1, grid.columns)
    scales = grid.scales(blocks, per_row[np.arange(len(blocks)) % len(per_row)])
    codes = nearest(grid, blocks, scales).reshape(-1, grid.part)
    levels = np.array(grid.levels, np.float32)[codes] if grid.levels else codes.astype(np.float32)
    found: F32 = (scales.scale.reshape(-1, 1) * levels + scales.low.reshape(-1, 1)).reshape(values.shape)
    return found


def nearest(grid: Grid, blocks: F32, scales: Scales) -> I16:
    """The codes [num_blocks, columns] that are nearest under these scales."""
    parts = blocks.reshape(-1, grid.part)
    scale, low = scales.scale.reshape(-1, 1), scales.low.reshape(-1, 1)
    sound = scale != 0
    with np.errstate(over="ignore"):
        scaled = np.where(sound, (parts - low) / np.where(sound, scale, np.float32(1)), np.float32(0))
    if grid.levels:
        levels = np.array(grid.levels, np.float32)
        codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, scaled)  # of two that are equally near the lower one
    else:
        codes = np.clip(np.rint(scaled), *grid.codes)
    return codes.astype(np.int16).reshape(blocks.shape)
