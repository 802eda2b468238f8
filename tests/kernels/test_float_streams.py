"""Layers of float weights in the CPU's order, which come through a stream in pieces of 16 columns (kernels/cuda/stream_float_kernel.h).

The same weights on tensor cores: test_tensor_cores.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmi import _core
from quantization import random_blocks
from test_ops import rand, same

T = _core.testing
KINDS = ["F32", "F16", "BF16"]
pytestmark = pytest.mark.usefixtures("device")


def both(device: str, kind: str, shape: tuple[int, int], x: np.ndarray[Any, Any], **options: Any) -> list[Any]:
    rows, cols = shape
    data = random_blocks(kind, rows, cols, 3)
    return [T.linear(table, [T.PackedMatrix(table, kind, data, rows, cols)], x, **options) for table in (device, "reference")]


# Whole slots; one column; cut pieces, blocks and slots; more tiles than blocks of the grid, one of them cut; more slots than warps.
@pytest.mark.parametrize("shape", [(16, 256), (1, 1), (5, 7), (37, 40), (20, 300), (100, 512), (16, 2304)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_those_of_the_reference(device: str, kind: str, shape: tuple[int, int]) -> None:
    bias, cols = rand(shape[0], seed=1).tolist(), shape[1]
    for num_rows in (1, 2, 8, 9, 16, 17, 32, 33, 64, 128, 512):
        x = rand(num_rows, cols, seed=num_rows)
        assert same(*both(device, kind, shape, x)), num_rows
    x = rand(9, cols)
    assert same(*both(device, kind, shape, x, biases=[bias])) and same(*both(device, kind, shape, x, residual=rand(9, shape[0], seed=2)))


@pytest.mark.parametrize("cols", [256, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_not_finite(device: str, kind: str, cols: int) -> None:
    """NaN and infinity in x stay in their row; zeros that fill a piece up meet none of them."""
    x = rand(12, cols)
    x[1, 5], x[4, cols - 1], x[9, 64] = np.nan, np.inf, -np.inf
    x[6] = -0.0
    for count in (1, 7, 12):
        got, wanted = both(device, kind, (40, cols), x[-count:].copy())
        assert np.array_equal(np.isnan(got), np.isnan(wanted))
        assert same(np.nan_to_num(got, nan=0.0), np.nan_to_num(wanted, nan=0.0))


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_read_pieces(device: str, kind: str) -> None:
    for cols in (256, 37):
        data = random_blocks(kind, 37, cols)
        ids = [0, 36, 7, 8, 15, 16, 23, 24, 31, 7]
        got, wanted = (T.embedding(table, T.PackedMatrix(table, kind, data, 37, cols), ids, 1.0) for table in (device, "reference"))
        assert same(got, wanted)
