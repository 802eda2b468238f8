"""Quantised layers whose activations have codes of 16 bits, beside those of 8: codes, products and bounds, by type, table and device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from canonical_linear import BLOCK, Array, Codes, Weights, canonical_linear, codes_of, weights_of
from llmi import _core
from quantization import extreme_blocks, random_blocks
from test_ops import packed, rand, same

T = _core.testing
DTYPES = ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"]
MODES: dict[str, dict[str, Any]] = {"8": {}, "8 fine": {"fine": True}, "16": {"bits": 16}}
ROW_COUNTS = [1, 2, 3, 5, 8, 9, 16, 33, 48, 49]
MOST_ROWS = max(ROW_COUNTS)
ROUNDING_OF_Y = 127 * 2 * 2.0**-24  # y = 127 x / max is rounded twice


def blocks_of_all_kinds() -> Array:
    """[20, 256] float32: 20 rows of 8 blocks are ten lots of 16 blocks; with every value that is a case of its own."""
    x = rand(20, 256, scale=3.0, seed=1) * np.float32(10.0) ** np.arange(-10, 10, dtype=np.float32)[:, None]
    for row, sign in ((0, 1), (5, -1), (19, 1)):
        x[row, :32] = 0.0
        x[row, 32:64] = sign * 1e-39  # a subnormal
        x[row, 64:96] = sign * 2.0**-100  # the largest that still counts as nothing
        x[row, 96:128] = sign * np.nextafter(np.float32(2.0**-100), np.float32(1))  # the smallest that does not
        x[row, 128:160] = sign * 3.4e38
        x[row, 160:192] = -0.0
        x[row, 192:224] = x[row, 192:224] * np.float32(1e-30)
        x[row, 224:256] = np.where(np.arange(32) == 3, sign, np.float32(1e-42))
    x[3, 5], x[4, 40], x[8, 250], x[19, 130] = np.inf, np.nan, -np.inf, np.nan
    x[9, 31], x[9, 32], x[9, 63] = np.nan, np.inf, -np.inf
    return x


def blocks_of_ties() -> Array:
    """Blocks whose largest is 127 times a power of two, so that y is exact: ties of both bytes, and low bytes at their ends."""
    k = np.arange(-126, 126)
    y = np.concatenate([k + 0.5, k + np.arange(len(k)) % 256 / 256 + 1 / 512, k + 127 / 256, k + 127.5 / 256, k - 127.5 / 256, k + 1 / 512])
    y = np.concatenate([y, y + 2.0**-16, y - 2.0**-16, np.arange(-127, 127) / 65536])
    y = np.pad(y, (0, -len(y) % 31)).reshape(-1, 31)
    y = np.concatenate([np.where(np.arange(len(y)) % 2, 127, -127)[:, None], y], axis=1)
    x = (y * 2.0 ** (np.arange(len(y)) % 7 - 3)[:, None]).astype(np.float32)
    return np.ascontiguousarray(x[: len(x) // 4 * 4].reshape(-1, 4 * BLOCK))


@pytest.mark.parametrize("mode", MODES)
def test_codes_are_those_of_the_definition(table: str, mode: str) -> None:
    for x in (blocks_of_all_kinds(), blocks_of_ties(), rand(3, 96), rand(1, 32), rand(5, 1056, scale=1e6)):
        expected = codes_of(x, **MODES[mode]).arrays()
        actual = T.quantize_rows(table, x, **MODES[mode])
        assert len(actual) == len(expected) == (5 if mode == "16" else 4)
        for made, wanted in zip(actual, expected, strict=True):
            assert made.dtype == wanted.dtype and np.array_equal(made.reshape(-1), wanted, equal_nan=made.dtype.kind == "f")


def test_codes_of_two_bytes() -> None:
    """Their range, what they leave out, and what is lost with a value that is not finite."""
    x = blocks_of_ties()
    high, scales, _, half_sums, low = T.quantize_rows("reference", x, bits=16)
    for byte in (high, low):
        assert byte.min() == -127 and byte.max() == 127
    whole = 256 * high.astype(np.int64) + low
    assert np.abs(whole).max() == 256 * 127
    exact = x.reshape(-1) / np.repeat(scales.astype(np.float64), BLOCK)
    at_the_end = np.abs(low) == 127
    assert np.abs(exact - whole)[~at_the_end].max() <= 0.5 + 256 * ROUNDING_OF_Y
    assert 0.99 < np.abs(exact - whole)[at_the_end].max() <= 1 + 256 * ROUNDING_OF_Y
    assert np.array_equal(half_sums.reshape(-1), whole.reshape(-1, 16).sum(-1))

    x = blocks_of_all_kinds()
    high, scales, sums, half_sums, low = T.quantize_rows("reference", x, bits=16)
    blocks = x.reshape(-1, BLOCK)
    bad = ~np.isfinite(blocks).all(-1)
    assert bad.sum() == 6
    assert np.array_equal(np.isnan(scales.reshape(-1)), bad) and np.array_equal(np.isnan(sums.reshape(-1)), bad)
    nothing = bad | (np.abs(np.where(np.isfinite(blocks), blocks, 0)).max(-1) <= 2.0**-100)
    for codes in (high, low):
        assert not codes.reshape(-1, BLOCK)[nothing].any()
    assert high.reshape(-1, BLOCK)[~nothing].any(-1).all() and not half_sums.reshape(-1, 2)[nothing].any()


def test_fine_scales_are_for_8_bits() -> None:
    with pytest.raises(_core.CoreError, match="two bytes have a scale for 32 columns"):
        T.quantize_rows("reference", rand(1, 32), fine=True, bits=16)
    for bits in (0, 4, 12, 32):
        with pytest.raises(_core.CoreError, match="8 or 16"):
            T.quantize_rows("reference", rand(1, 32), bits=bits)


def widths(dtype: str) -> list[tuple[int, int]]:
    """(rows, columns) of weights: tiles that end inside, one row alone; several widths."""
    shapes = [(37, 512), (16, 1536), (1, 256)]
    return shapes if dtype.endswith("K") else [*shapes, (50, 32), (17, 64)]


@functools.cache
def laid_out(dtype: str, rows: int, cols: int) -> tuple[bytes, Array]:
    """Random weights, and 49 rows of activations of which some are large, nothing at all, or ties of their bytes."""
    x = rand(MOST_ROWS, cols, seed=rows, scale=2.0)
    x[1] *= np.float32(1e4)
    x[2, : cols // 2] = 0
    ties = blocks_of_ties().reshape(-1)
    for row in (3, 8, 48):
        x[row] = np.resize(ties[row * cols :], cols)
    return random_blocks(dtype, rows, cols, seed=cols), x


@functools.cache
def canonical(dtype: str, rows: int, cols: int, mode: str = "16") -> Array:
    data, x = laid_out(dtype, rows, cols)
    return canonical_linear(weights_of(dtype, data, rows, cols), codes_of(x, **MODES[mode]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_add_in_the_canonical_order(table: str, dtype: str, mode: str) -> None:
    """Each table and device, for every count of rows, has the bits of whole dots in integers and blocks in order; so rows are independent
    too."""
    for rows, cols in widths(dtype):
        data, x = laid_out(dtype, rows, cols)
        expected = canonical(dtype, rows, cols, mode)
        matrix = T.PackedMatrix(table, dtype, data, rows, cols)
        for count in ROW_COUNTS:
            begin = (7 * count) % (MOST_ROWS - count + 1)
            part = x[begin : begin + count].copy()
            got = T.linear(table, [matrix], part, num_threads=1 + count % 3, **MODES[mode])
            assert same(got, expected[begin : begin + count]), (rows, cols, count)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_added_to_a_layer(table: str, dtype: str) -> None:
    """A bias, then what stood in out; two layers side by side, and one of float weights."""
    data, x = laid_out(dtype, 37, 512)
    product = canonical(dtype, 37, 512)
    matrix, bias = T.PackedMatrix(table, dtype, data, 37, 512), rand(37, seed=5)
    other, floats = packed(table, "Q8_0", 19, 512, 6), packed(table, "F32", 33, 512, 7)
    for count in (1, 5, 9, 49):
        part, residual = x[:count].copy(), rand(count, 37, seed=count)
        got = T.linear(table, [matrix], part, biases=[bias.tolist()], residual=residual, num_threads=2, bits=16)
        assert same(got, residual + (product[:count] + bias))
        beside = T.linear(table, [matrix, other, floats], part, num_threads=2, bits=16)
        assert same(beside[:, :37].copy(), product[:count])
        assert same(beside[:, 37:56].copy(), T.linear(table, [other], part, bits=16))
        assert same(beside[:, 56:].copy(), T.linear(table, [floats], part))


@pytest.mark.parametrize("dtype", DTYPES)
def test_some_tiles_of_a_layer(table: str, dtype: str) -> None:
    data, x = laid_out(dtype, 250, 256)
    whole = canonical(dtype, 250, 256)
    matrix = T.PackedMatrix(table, dtype, data, 250, 256)
    for count in (1, 3, 9):
        for tiles in ([(0, 2), (5, 6), (9, 16)], [(15, 16)]):
            listed = np.zeros(256, bool)
            for begin, end in tiles:
                listed[16 * begin : 16 * end] = True
            part = T.linear(table, [matrix], x[:count].copy(), num_threads=2, tiles=tiles, bits=16)
            assert same(part[:, listed[:250]], whole[:count, listed[:250]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_a_large_call(table: str, dtype: str) -> None:
    """Every row of a call of 512 is the same row run with 1, 2, 3, 5, 8, 16 and 33."""
    matrix, x = packed(table, dtype, 64, 256), rand(512, 256)
    whole = T.linear(table, [matrix], x, bits=16, num_threads=2)
    for count in (1, 2, 3, 5, 8, 16, 33) if table != "reference" else (1, 5):
        for begin in (0, 17, 512 - count):
            part = x[begin : begin + count].copy()
            assert same(T.linear(table, [matrix], part, bits=16), whole[begin : begin + count])


@pytest.mark.parametrize("dtype", DTYPES)
def test_127_in_both_bytes(table: str, dtype: str) -> None:
    """No activations have such codes, as the largest have low bytes of nothing; dots of them are as exact."""
    rows, cols = 37, 512
    data = random_blocks(dtype, rows, cols)
    x, signs = rand(33, cols), np.where(rand(33, cols, seed=1) < 0, -1, 1)
    signs[0], signs[1], signs[2] = 1, -1, np.where(np.arange(cols) % 2, 1, -1)
    high = (127 * signs).astype(np.int8).reshape(33, -1, BLOCK)
    low = (127 * np.where(np.arange(33)[:, None] < 5, signs, np.roll(signs, 3, axis=1))).astype(np.int8).reshape(33, -1, BLOCK)
    whole = 256 * high.astype(np.int64) + low
    scales = codes_of(x, bits=16).scales
    made = Codes(whole, high, low, scales, scales[..., 0] * whole.sum(-1).astype(np.float32), np.zeros(0))
    for name, weights in (("random", data), ("extreme", extreme_blocks(dtype, rows, cols)[0])):
        expected = canonical_linear(weights_of(dtype, weights, rows, cols), made)
        matrix = T.PackedMatrix(table, dtype, weights, rows, cols)
        for count in (1, 5, 9, 33):
            bytes_ = np.stack([high[:count].reshape(count, cols), low[:count].reshape(count, cols)])
            got = T.linear(table, [matrix], x[:count].copy(), bits=16, codes=bytes_)
            assert same(got, expected[:count]), (name, count)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_not_finite(table: str, dtype: str, mode: str) -> None:
    """Each makes its own row NaN, and no other; what is too small to count gives nothing."""
    matrix, x = packed(table, dtype, 37, 512), rand(12, 512)
    clean = T.linear(table, [matrix], x, **MODES[mode])
    x[1, 5], x[4, 511], x[9, 256], x[11] = np.nan, np.inf, -np.inf, 2.0**-100
    got = T.linear(table, [matrix], x, **MODES[mode])
    bad = [1, 4, 9]
    assert np.isnan(got[bad]).all() and not got[11].any()
    assert same(np.delete(got, [*bad, 11], axis=0), np.delete(clean, [*bad, 11], axis=0))


def bound_of_codes(x: Array, weights: Array, share: float) -> Array:
    """[rows of x, rows of weights]: a share of each block's largest activation times the block's absolute sum of weights, over all
    blocks."""
    largest = np.abs(x.astype(np.float64)).reshape(len(x), -1, BLOCK).max(-1)
    return share * largest @ np.abs(weights).reshape(len(weights), -1, BLOCK).sum(-1).T


def rounding_of_sums(x: Array, weights: Weights) -> Array:
    """At most six roundings a block (twice the dot, the scales' product and the fma; the minimum's sum and fma) of no more than all
    magnitudes."""
    magnitudes = np.abs(weights.codes.reshape(len(weights.codes), -1)) * np.repeat(np.abs(weights.scales), 16, axis=-1).reshape(
        len(weights.codes), -1
    )
    if weights.minima is not None:
        magnitudes = magnitudes + np.repeat(np.abs(weights.minima), BLOCK, axis=-1)
    num_blocks = weights.codes.shape[1]
    return np.abs(x.astype(np.float64)) @ magnitudes.T * (num_blocks + 6) * 2 * 2.0**-24


@pytest.mark.parametrize("dtype", DTYPES)
def test_against_float64(table: str, dtype: str) -> None:
    """Exact activations times dequantised weights: at 16 bits off by at most 2^-15 of each block's largest times the weights' absolute sum.

    One activation, in units of max / 127, is off by half a step of its low byte, 2^-9: 2^-16 of the largest. Where y lies within 2^-9 of
    the middle between two high bytes, the low byte ends at 127 and it may be a whole step, 2^-8: 1 / (127 x 256), which is 1.008 x 2^-15.
    So 2^-15 holds by far for what is not made of such values alone, and 1.008 x 2^-15 and the rounding of y and of the sums for all.
    """
    for rows, cols in widths(dtype):
        data = random_blocks(dtype, rows, cols, seed=cols)
        matrix, w = T.PackedMatrix(table, dtype, data, rows, cols), weights_of(dtype, data, rows, cols)
        weights = w.values
        for x in (rand(9, cols, scale=3.0), np.abs(rand(1, cols, seed=2)), rand(3, cols, seed=3) ** 5):
            exact = x.astype(np.float64) @ weights.T
            off = np.abs(T.linear(table, [matrix], x, bits=16) - exact)
            assert (off <= bound_of_codes(x, weights, 2.0**-15)).all(), "the bound that the documents give"
            for fine in (False, True):
                off = np.abs(T.linear(table, [matrix], x, fine=fine) - exact)
                assert (off <= bound_of_codes(x, weights, 0.5 / 127) + rounding_of_sums(x, w)).all()
        ties = np.where(rand(2, cols, seed=4) > 0, 2.5, -70.5).astype(np.float32)
        ties[:, ::BLOCK] = 127
        off = np.abs(T.linear(table, [matrix], ties, bits=16) - ties.astype(np.float64) @ weights.T)
        assert (off <= bound_of_codes(ties, weights, 1 / (127 * 256) + ROUNDING_OF_Y / 127) + rounding_of_sums(ties, w)).all()


def extreme_activations(cols: int) -> Array:
    """Rows of the largest codes: 127 and 0; 127 and -127; 126 and 127; both signs of each, together and by turns."""
    turns = np.where(np.arange(cols) % 2, 1.0, -1.0)
    rows = []
    for y in (127.0, 126.5 + 2.0**-10, 126.5, 127.0 - 127 / 256):
        for signs in (np.ones(cols), -np.ones(cols), turns, np.where(np.arange(cols) % 32 < 16, 1.0, -1.0)):
            row = y * signs
            row[::BLOCK] = 127 * signs[::BLOCK]  # so that the scale is what makes y of x
            rows.append(row)
    return np.array(rows).astype(np.float32)


@pytest.mark.parametrize("codes", ["largest", "smallest", "by turns"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_codes_of_both(table: str, dtype: str, codes: str) -> None:
    """Whole dots of up to 1.3e8 in int32, partial products of both bytes in 16 bits, offsets by whole half sums, minima by whole sums."""
    cols = 512
    size = cols // (256 if dtype.endswith("K") else 32)
    block, _ = extreme_blocks(dtype, 1, 256 if dtype.endswith("K") else 32)
    raw = np.tile(np.frombuffer(block, np.uint8), (48 * size, 1))
    at, end = {"Q4_0": (2, 18), "Q4_1": (4, 20), "Q5_0": (2, 22), "Q8_0": (2, 34), "Q4_K": (16, 144), "Q6_K": (0, 192)}[dtype]
    small = 0x7F if dtype == "Q8_0" else 0x00
    if codes != "largest":
        raw[:: 1 if codes == "smallest" else 2, at:end] = small
    if dtype == "Q4_1":
        raw[:, 2:4] = np.array([-0.25], np.float16).view(np.uint8)
    if dtype == "Q4_K":
        raw[:, 4:16] = 0xFF  # scales and minima of 63
    if dtype == "Q6_K":
        raw[:, 192:208] = np.resize(np.array([127, -128], np.int8).view(np.uint8), 16)
    w = weights_of(dtype, raw.tobytes(), 48, cols)
    x = extreme_activations(cols)
    made = codes_of(x, bits=16)
    expected = canonical_linear(w, made)
    matrix = T.PackedMatrix(table, dtype, raw.tobytes(), 48, cols)
    for begin, end_row in ((0, 16), (0, 1), (4, 6), (3, 12)):
        assert same(T.linear(table, [matrix], x[begin:end_row].copy(), bits=16), expected[begin:end_row])
    exact = made.values @ w.values.T
    assert (np.abs(expected - exact) <= rounding_of_sums(x, w) * 1.01).all()
