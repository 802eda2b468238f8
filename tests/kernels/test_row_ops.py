"""Ops that take rows one by one, on every kernel table and device: bit-equal to the reference; the reference against float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from llmi import _core
from quantization import through_bf16
from test_ops import Array, packed, rand, same

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


def normed(x: Array, kind: str, weight: Array | None, bias: Array | None) -> Array:
    """A group's norm in float64."""
    values = x.astype(np.float64)
    if kind == "layer":
        values = values - values.mean(-1, keepdims=True)
    values = values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-6)
    values = values if weight is None else values * weight
    return values if bias is None else values + bias


# Sizes that fill 16 lanes, that do not, and that are below them.
@pytest.mark.parametrize("size", [64, 80, 75, 5])
@pytest.mark.parametrize("parameters", ["", "w", "b", "wb", "own"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norm(table: str, kind: str, parameters: str, size: int) -> None:
    x, groups = rand(7, 4 * size) + np.float32(0.5), 4
    shape = (groups, size) if parameters == "own" else (size,)
    weight = rand(*shape, seed=1) if parameters in ("w", "wb", "own") else None
    bias = rand(*shape, seed=2) if parameters in ("b", "wb", "own") else None
    given: dict[str, Any] = {"kind": kind, "num_groups": groups, "own_weights": parameters == "own"}
    given |= {} if bias is None else {"bias": bias}
    expected = T.norm("reference", x, weight, **given)
    assert same(T.norm(table, x, weight, **given), expected)
    exact = normed(x.reshape(7, groups, size), kind, weight, bias).reshape(x.shape)
    assert np.abs(expected - exact).max() < 4e-6
    residual = rand(*x.shape, seed=3)
    assert same(T.norm(table, x, weight, residual=residual, **given), residual + expected)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norm_of_padded_heads(table: str, kind: str) -> None:
    """Of each head's 48 values 40 are normed, as if they stood alone; the others stay."""
    x, weight = rand(3, 5 * 48), rand(40, seed=1)
    got = T.norm(table, x, weight, kind=kind, num_groups=5, size=40, group_stride=48).reshape(3, 5, 48)
    heads = x.reshape(3, 5, 48)
    assert same(got[..., 40:].copy(), heads[..., 40:].copy())
    assert same(got[..., :40].copy(), T.norm("reference", heads[..., :40].reshape(15, 40).copy(), weight, kind=kind).reshape(3, 5, 40))


def test_rms_norm_keeps_its_bits() -> None:
    """The order of RMS norms of whole lanes is that of every release: 16 sums, folded by halves, in fp32."""
    x, weight = rand(2, 96), rand(96, seed=1)
    squares = np.zeros((2, 16), np.float32)
    for i in range(0, 96, 16):  # fma: one rounding of the exact product and sum
        squares = (x[:, i : i + 16].astype(np.float64) ** 2 + squares).astype(np.float32)
    for width in (8, 4, 2, 1):
        squares = squares[:, :width] + squares[:, width:]
    inverse = np.float32(1) / np.sqrt(squares / np.float32(96) + np.float32(1e-6))
    assert same(T.norm("reference", x, weight), (x * inverse) * weight)


# How activations become codes: a scale for 32 columns, for 16, and codes of two bytes.
MODES = [(False, 8), (True, 8), (False, 16)]


# 21 rows: more than one task of several threads, and than are converted at once; 96 columns leave blocks over, 4,096 take rows in fours.
@pytest.mark.parametrize(("fine", "bits"), MODES)
@pytest.mark.parametrize("shape", [(1, 96), (21, 96), (21, 576), (9, 4096)])
def test_forms_made_on_the_way(table: str, shape: tuple[int, int], fine: bool, bits: int) -> None:
    """What norm and activate make of their outputs is what the ops on their own make of them."""
    x, weight, gate_up = rand(*shape), rand(shape[1], seed=1), rand(shape[0], 2 * shape[1], seed=2, scale=4.0)
    x[-1, -1] = gate_up[0, 0] = np.inf
    for out, forms, rounded, expected in (
        (*T.norm_forms(table, x, weight, 1e-6, fine, 3, bits), T.norm(table, x, weight, eps=1e-6)),
        (*T.activate_forms(table, gate_up, True, fine, 3, bits), T.activate(table, "silu", gate_up)),
        (*T.activate_forms(table, x, False, fine, 3, bits), T.activate(table, "silu", x, gated=False)),
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
    expected = T.activate_forms(table, apart, True, fine, 1, bits)[1]
    for threads in (1, 3):
        for made, wanted in zip(
            T.gated_linear_forms(table, gate, up, x, bias.tolist(), fine=fine, num_threads=threads, bits=bits), expected, strict=True
        ):
            assert np.array_equal(made, wanted, equal_nan=made.dtype.kind == "f")


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "relu", "relu2"])
def test_gated_linear_of_any_activation(table: str, activation: str) -> None:
    x = rand(17, 256)
    gate, up = (packed(table, "Q4_0", 96, 256, seed=seed) for seed in (2, 3))
    outputs = T.activate(table, activation, T.linear(table, [gate, up], x))
    made = T.gated_linear_forms(table, gate, up, x, [0.0] * 96, activation=activation)
    for one, wanted in zip(made, T.quantize_rows(table, outputs), strict=True):
        assert np.array_equal(one, wanted)


@pytest.mark.parametrize("rotary_dim", [64, 32, 16, 20, 2])
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


def test_rope_of_padded_heads(table: str) -> None:
    """Heads of 40 values, 48 apart, are rotated as if they stood alone; what follows each stays."""
    x, angle = rand(4, 3 * 48), rand(4, 20, seed=1)
    cosine, sine = np.cos(angle), np.sin(angle)
    got = T.rope(table, x, 3, 40, cosine, sine, head_dim=40).reshape(4, 3, 48)
    heads = x.reshape(4, 3, 48)
    assert same(got[..., 40:].copy(), heads[..., 40:].copy())
    assert same(got[..., :40].reshape(4, 120), T.rope("reference", heads[..., :40].reshape(4, 120).copy(), 3, 40, cosine, sine))


XIELU = (0.8, 1.3, 0.5, -1e-6)  # a_p, a_n, b, eps
CLAMPED = (3.0, 1.702, 1.0, 0.0)  # limit, alpha, plus


def activated(name: str, x: Array) -> Array:
    """In float64."""
    x = x.astype(np.float64)
    with np.errstate(over="ignore"):
        if name == "silu":
            return x / (1 + np.exp(-x))
        if name == "gelu_tanh":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        if name == "gelu":
            return 0.5 * x * np.vectorize(math.erfc)(-x / math.sqrt(2))
        if name == "xielu":
            a_p, a_n, b, eps = XIELU
            return np.where(x > 0, a_p * x**2 + b * x, (np.expm1(np.minimum(x, eps)) - x) * a_n + b * x)
    return np.maximum(x, 0) ** (2 if name == "relu2" else 1)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "gelu", "relu", "relu2", "xielu"])
def test_activate(table: str, name: str, gated: bool) -> None:
    x = rand(4, (1 + gated) * 75, scale=4.0)
    x[0, :9] = [-200.0, 200.0, 0.0, -0.0, 1e-30, -1e-30, -87.5, 13.1, -13.2]
    expected = T.activate("reference", name, x, gated, XIELU)
    assert same(T.activate(table, name, x, gated, XIELU), expected)
    exact = activated(name, x[:, :75])
    assert np.allclose(expected, exact * x[:, 75:] if gated else exact, rtol=2e-6, atol=1e-6)
    x[1, ::7] = np.nan
    assert np.array_equal(np.isnan(T.activate(table, name, x, gated, XIELU)), np.isnan(x[:, :75]) | (gated and np.isnan(x[:, -75:])))


def test_clamped_swiglu(table: str) -> None:
    x = rand(4, 150, scale=4.0)
    x[0, :9] = [-200.0, 200.0, 0.0, -0.0, 1e-30, 3.0, -3.0, 3.1, -3.1]
    x[0, 75:84] = [-200.0, 200.0, 0.0, -0.0, 1e-30, 3.0, -3.0, 3.1, -3.1]
    expected = T.activate("reference", "swiglu_clamped", x, True, CLAMPED)
    assert same(T.activate(table, "swiglu_clamped", x, True, CLAMPED), expected)
    limit, alpha, plus, _ = CLAMPED
    gate, up = np.minimum(x[:, :75].astype(np.float64), limit), np.clip(x[:, 75:].astype(np.float64), -limit, limit)
    with np.errstate(over="ignore"):
        assert np.allclose(expected, gate / (1 + np.exp(-alpha * gate)) * (up + plus), rtol=2e-6, atol=1e-6)
    x[1, ::7] = np.nan
    got = T.activate(table, "swiglu_clamped", x, True, CLAMPED)
    assert np.array_equal(np.isnan(got), np.isnan(x[:, :75]) | np.isnan(x[:, 75:]))


def test_gelu_of_either_tail() -> None:
    """Relative errors, down to the smallest results that are not subnormal."""
    x = np.concatenate([np.linspace(-12.8, 13, 20_001), np.logspace(-30, 0, 200), -np.logspace(-30, 0, 200)]).astype(np.float32)
    got, exact = T.activate("reference", "gelu", x[None], gated=False)[0], activated("gelu", x)
    error = np.abs(got - exact) / np.where(exact == 0, 1, np.spacing(np.abs(exact).astype(np.float32)))
    assert error.max() < 4 and np.sqrt((error**2).mean()) < 0.8
    assert not T.activate("reference", "gelu", np.array([[-13.2, -1e30, -np.inf]], np.float32), gated=False)[0, :2].any()


def test_add_scaled_and_scale(table: str) -> None:
    x, to = rand(3, 75), rand(3, 75, seed=1)
    # fma: one rounding of the exact product and sum.
    assert same(T.add_scaled(table, x, 0.22, to), (np.float64(np.float32(0.22)) * x + to).astype(np.float32))
    assert same(T.scale(table, x, 0.22), x * np.float32(0.22))
    factors = rand(3, seed=2)
    wanted = x.copy()
    wanted[:, :40] *= factors[:, None]
    assert same(T.scale_rows(table, x, 40, factors), wanted)


def test_clip_rows(table: str) -> None:
    x = rand(3, 75)
    x[0, :3] = np.inf, -np.inf, np.nan
    wanted = x.copy()
    wanted[:, :40] = np.clip(x[:, :40], -np.float32(0.7), np.float32(0.7))
    assert same(T.clip_rows(table, x, 40, 0.7), wanted)


@pytest.mark.parametrize("head_dim", [64, 20])
@pytest.mark.parametrize("per_head", [False, True])
def test_gate(table: str, per_head: bool, head_dim: int) -> None:
    """Rows of gates are longer than what is read of them."""
    x, gate = rand(5, 3 * head_dim), rand(5, 3 * head_dim + 8, seed=1, scale=8.0)
    gate[0, 0] = -100.0
    expected = T.gate("reference", x, gate, 3, per_head)
    assert same(T.gate(table, x, gate, 3, per_head), expected)
    gates = np.repeat(gate[:, :3], head_dim, axis=1) if per_head else gate[:, : 3 * head_dim]
    assert np.allclose(expected, x / (1 + np.exp(-gates.astype(np.float64))), rtol=4e-7, atol=1e-37)


def test_copy_heads(table: str) -> None:
    x = rand(5, 3 * 48)
    assert same(T.copy_heads(table, x, 3, 40, False), x.reshape(5, 3, 48)[..., :40].reshape(5, 120))
    assert same(T.copy_heads(table, x, 3, 48, False), x)
    assert same(T.copy_heads(table, x, 3, 40, True), np.ascontiguousarray(x.reshape(5, 3, 48)[..., :40].swapaxes(0, 1)))
