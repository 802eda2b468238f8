"""Ops that take rows one by one, on every kernel table and device: bit-equal to the reference; the reference against float64."""

from __future__ import annotations

import numpy as np
import pytest

from llmi import _core
from quantization import through_bf16
from test_ops import packed, rand, same

T = _core.testing


@pytest.mark.parametrize("fine", [False, True])
def test_quantize_rows(table: str, fine: bool) -> None:
    x = rand(9, 256, scale=3.0)  # tables take 16 blocks, two rows, at once, and the last row's alone
    for row in (0, 5, 8):
        x[row, :32], x[row, 32:64], x[row, 64:96] = 0.0, 1e-39, 2.0**-100
    x[3, 5], x[4, 7], x[8, 250] = np.inf, np.nan, -np.inf
    bad = [3, 4, 8]
    actual = T.quantize_rows(table, x, fine=fine)
    expected = T.quantize_rows("reference", x, fine=fine)
    for a, b in zip(actual, expected, strict=True):
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    codes, scales, sums, half_sums = expected
    width = 16 if fine else 32
    scales = scales.reshape(9, -1)
    assert np.isnan(scales[3, 0]) and np.isnan(scales[4, 0]) and np.isnan(scales[8, -1])
    assert np.isfinite(np.delete(scales, bad, axis=0)).all()
    good = np.delete(np.arange(9), bad)
    blocks = x.reshape(9, -1, width)[good].astype(np.float64)
    peak = np.abs(blocks).max(-1, keepdims=True)
    wanted = np.rint(np.where(peak > 2.0**-100, blocks * (127 / np.maximum(peak, 1e-300)), 0))
    assert np.abs(codes.reshape(9, -1, width)[good] - wanted).max() <= 1  # a tie may fall either way in fp32
    assert np.array_equal(half_sums.reshape(9, 8, 2, 1)[..., 0], codes.reshape(9, 8, 2, 16).sum(-1))
    # A block's sum: for each scale one product with its codes' exact sum, then their sum, in fp32.
    per_scale = half_sums.reshape(9, 8, -1, width // 16).sum(-1, dtype=np.int32)[good]
    products = scales[good].reshape(len(good), 8, -1) * per_scale.astype(np.float32)
    assert same(sums.reshape(9, 8)[good], products[..., 0] + products[..., 1] if fine else products[..., 0])


@pytest.mark.parametrize("groups", [1, 4])
def test_rms_norm(table: str, groups: int) -> None:
    x, size = rand(7, 256), 256 // groups
    weight, residual = rand(size, seed=1), rand(7, 256, seed=2)
    expected = T.rms_norm("reference", x, weight, 1e-6, groups)
    assert same(T.rms_norm(table, x, weight, 1e-6, groups), expected)
    exact = x.astype(np.float64).reshape(7, groups, size)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6) * weight
    assert np.abs(expected - exact.reshape(7, 256)).max() < 2e-6
    fused = T.rms_norm(table, x, weight, 1e-6, groups, residual)
    assert same(fused, residual + expected)


# How activations become codes: a scale for 32 columns, for 16, and codes of two bytes.
MODES = [(False, 8), (True, 8), (False, 16)]


# 21 rows: more than one task of several threads, and than are converted at once; 96 columns leave blocks over, 4,096 take rows in fours.
@pytest.mark.parametrize(("fine", "bits"), MODES)
@pytest.mark.parametrize("shape", [(1, 96), (21, 96), (21, 576), (9, 4096)])
def test_forms_made_on_the_way(table: str, shape: tuple[int, int], fine: bool, bits: int) -> None:
    """What rms_norm and gated_activation make of their outputs is what the ops on their own make of them."""
    x, weight, gate_up = rand(*shape), rand(shape[1], seed=1), rand(shape[0], 2 * shape[1], seed=2, scale=4.0)
    x[-1, -1] = gate_up[0, 0] = np.inf
    for out, forms, rounded, expected in (
        (*T.rms_norm_forms(table, x, weight, 1e-6, fine, 3, bits), T.rms_norm(table, x, weight, 1e-6)),
        (*T.gated_activation_forms(table, gate_up, fine, 3, bits), T.gated_activation(table, "silu", gate_up)),
    ):
        assert same(out.reshape(shape), expected)
        for made, apart in zip(forms, T.quantize_rows(table, expected, fine=fine, bits=bits), strict=True):
            assert np.array_equal(made, apart, equal_nan=made.dtype.kind == "f")
        if not table.startswith(("emulated", "cuda")):
            bf16 = np.where(np.isnan(expected), np.float32(0), through_bf16(expected)).view(np.uint32) >> 16
            assert np.array_equal(np.where(np.isnan(expected.ravel()), 0, rounded), bf16.ravel())


# 96 columns are fewer blocks than threads may take, 1,056 leave one over; 15 and 16 rows are made apart and together, 101 in parts.
@pytest.mark.parametrize(("fine", "bits"), MODES)
@pytest.mark.parametrize("dtype", ["F32", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize(("num_rows", "size"), [(1, 96), (15, 96), (16, 96), (49, 96), (17, 1056), (101, 1056)])
def test_gated_linear(table: str, num_rows: int, size: int, dtype: str, fine: bool, bits: int) -> None:
    """Gate, up, activation and conversion in one op have the bits of the ops one by one."""
    x, bias = rand(num_rows, 256), rand(size, seed=1)
    x[-1, -1] = np.inf
    gate, up = (packed(table, dtype, size, 256, seed=seed) for seed in (2, 3))
    apart = T.linear(table, [gate, up], x, biases=[bias.tolist(), bias.tolist()], bits=bits)
    expected = T.gated_activation_forms(table, apart, fine, 1, bits)[1]
    for threads in (1, 3):
        for made, wanted in zip(
            T.gated_linear_forms(table, gate, up, x, bias.tolist(), fine=fine, num_threads=threads, bits=bits), expected, strict=True
        ):
            assert np.array_equal(made, wanted, equal_nan=made.dtype.kind == "f")


@pytest.mark.parametrize("rotary_dim", [64, 32, 16])
def test_rope(table: str, rotary_dim: int) -> None:
    x, half = rand(5, 3 * 64), rotary_dim // 2
    angle = np.random.default_rng(3).uniform(0, 6, (5, half)).astype(np.float32)
    cosine, sine = np.cos(angle), np.sin(angle)
    expected = T.rope("reference", x, 3, rotary_dim, cosine, sine)
    assert same(T.rope(table, x, 3, rotary_dim, cosine, sine), expected)
    exact = x.reshape(5, 3, 64).astype(np.float64).copy()
    a, b = exact[..., :half].copy(), exact[..., half:rotary_dim].copy()
    exact[..., :half] = a * cosine[:, None] - b * sine[:, None]
    exact[..., half:rotary_dim] = b * cosine[:, None] + a * sine[:, None]
    assert np.abs(expected.reshape(5, 3, 64) - exact).max() < 1e-6


@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_gated_activation(table: str, name: str) -> None:
    gate_up = rand(4, 2 * 75, scale=4.0)
    gate_up[0, :3] = [-200.0, 200.0, 0.0]
    expected = T.gated_activation("reference", name, gate_up)
    assert same(T.gated_activation(table, name, gate_up), expected)
    gate, up = gate_up[:, :75].astype(np.float64), gate_up[:, 75:].astype(np.float64)
    with np.errstate(over="ignore"):
        exact = (
            gate / (1 + np.exp(-gate)) if name == "silu" else 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        )
    assert np.allclose(expected, exact * up, rtol=2e-6, atol=1e-6)
