"""Linear layers with the norm before them and the activation behind them: one op, one launch where the kernels take it
(kernels/ops/linear_step.h, cuda/norm_prologue.h, cuda/gated_output.h), and the bits of the ops one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmi import _core
from quantization import random_blocks
from test_ops import rand, same

T = _core.testing
pytestmark = pytest.mark.usefixtures("device")

#: Chunks of whole and of short rows; a type without chunks, and float weights, which take a launch for each part.
SHAPES = [("Q4_0", 288), ("Q4_1", 512), ("Q8_0", 736), ("Q4_K", 256), ("Q6_K", 512), ("IQ4_NL", 352), ("Q2_K", 256), ("F32", 256)]
ROWS = (1, 3, 4, 5, 8, 9, 33, 65)
#: Whole slots of a float kernel, whose blocks make the norm of one row; cut ones, which take a launch of its own.
FLOATS = [("BF16", 512), ("F16", 1024), ("F32", 512), ("BF16", 288), ("F16", 300)]
MODES: list[dict[str, Any]] = [{}, {"bits": 16}]


def matrices(table: str, dtype: str, sizes: list[int], cols: int) -> list[Any]:
    def data(rows: int, seed: int) -> bytes:
        return rand(rows, cols, seed=seed).tobytes() if dtype == "F32" else random_blocks(dtype, rows, cols, seed=seed)

    return [T.PackedMatrix(table, dtype, data(rows, seed), rows, cols) for seed, rows in enumerate(sizes)]


def equal_forms(got: Any, wanted: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize(("dtype", "cols"), SHAPES + FLOATS, ids=str)
def test_layers_of_a_norm(device: str, dtype: str, cols: int) -> None:
    """Five parts: more than a launch has; one of them is cut. Rows whose norm is not finite, or of zeros, spoil no other."""
    sizes = [32, 16, 7, 48, 16]
    own, reference = (matrices(table, dtype, sizes, cols) for table in (device, "reference"))
    weight = rand(1, cols, seed=3)[0]
    for num_rows in ROWS:
        x = rand(num_rows, cols, seed=num_rows) * np.float32(3)
        x[num_rows // 2] = 0
        for mode in [*MODES, {"fine": True}, {"layer_norm": True}]:
            got, wanted = (
                T.linear(t, m, x, norm=weight, biases=[[], [0.5] * 16], **mode) for t, m in ((device, own), ("reference", reference))
            )
            assert same(got, wanted), (num_rows, mode)


def test_parts_of_several_types(device: str) -> None:
    """As in files whose values have more bits than queries and keys."""
    x, weight = rand(3, 256), rand(1, 256, seed=3)[0]
    for num_rows in (1, 3):
        got, wanted = (
            T.linear(t, [matrices(t, dtype, [32], 256)[0] for dtype in ("Q4_K", "Q6_K", "Q4_K", "F32")], x[:num_rows], norm=weight)
            for t in (device, "reference")
        )
        assert same(got, wanted)


@pytest.mark.parametrize("hidden", [4096, 8192, 32768])
@pytest.mark.parametrize("dtype", ["Q4_0", "BF16"])
def test_rows_that_fit_shared_memory_and_rows_that_do_not(device: str, dtype: str, hidden: int) -> None:
    x, weight = rand(4, hidden), rand(1, hidden, seed=3)[0]
    own, reference = (matrices(table, dtype, [16], hidden) for table in (device, "reference"))
    for num_rows in (1, 2, 4):
        for mode in MODES:
            assert same(
                T.linear(device, own, x[:num_rows], norm=weight, **mode),
                T.linear("reference", reference, x[:num_rows], norm=weight, **mode),
            )


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("dtype", "cols"), SHAPES[:-1], ids=str)
def test_gate_and_up_with_their_activation(device: str, dtype: str, cols: int, normed: bool) -> None:
    """Groups of 32 columns; more groups than blocks of the emulated grid. A value that is not finite stays in its block."""
    size = 5 * 32
    bias = rand(1, size, seed=4)[0].tolist()
    own, reference = (matrices(table, dtype, [size, size], cols) for table in (device, "reference"))
    for num_rows in ROWS:
        x = rand(num_rows, cols, seed=num_rows)
        for mode in [*MODES, {"fine": True}, {"activation": "gelu_tanh", "bits": 16}, {"activation": "relu2"}]:
            extra = {"norm": rand(1, cols, seed=3)[0]} if normed else {}
            got, wanted = (T.gated_linear_forms(t, *m, x, bias, **mode, **extra) for t, m in ((device, own), ("reference", reference)))
            assert equal_forms(got, wanted), (num_rows, mode)


def test_an_activation_that_is_not_finite(device: str) -> None:
    x = rand(2, 256)
    x[1, 3] = np.inf
    bias = [0.0] * 64
    own, reference = (matrices(table, "Q4_0", [64, 64], 256) for table in (device, "reference"))
    for mode in MODES:
        got, wanted = (T.gated_linear_forms(t, *m, x, bias, **mode) for t, m in ((device, own), ("reference", reference)))
        for a, b in zip(got, wanted, strict=True):
            assert np.array_equal(a, b, equal_nan=np.asarray(a).dtype == np.float32)
