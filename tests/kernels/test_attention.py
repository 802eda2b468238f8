"""Attention: bit-equal over tables; against float64; rows, blocks, chunks and trees make no difference."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from features import DEVICES, has_bits_of_its_own
from llmi import _core
from quantization import through_bf16

T = _core.testing
Array = np.ndarray[Any, Any]
KV_DTYPES = ["float16", "float32", "int8", "bfloat16", "fp8"]
TABLES = _core.system_info()["tables"]
TABLES_AND_TYPES = [(table, kv) for table in (*TABLES, *DEVICES) for kv in KV_DTYPES]


def qkv(slots: int, rows: int, heads: int, kv_heads: int, head_dim: int, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)

    def make(n: int, h: int) -> Array:
        return rng.standard_normal((n, h * head_dim)).astype(np.float32)

    return make(rows, heads), make(slots, kv_heads), make(slots, kv_heads)


def through_int8(x: Array, head_dim: int) -> Array:
    """Rounds to codes, with an fp16 scale for each 16 values of a head."""
    heads = x.reshape(len(x), -1, head_dim)
    out = np.zeros_like(heads, np.float64)
    for begin in range(0, head_dim, 16):
        block = heads[:, :, begin : begin + 16]
        peak = np.abs(block).max(axis=-1, keepdims=True)
        scale = (peak / np.float32(127)).astype(np.float16)
        out[:, :, begin : begin + 16] = np.rint(block * (np.float32(127) / peak)) * scale.astype(np.float64)
    return out.reshape(x.shape)


def float8_values() -> Array:
    """What e4m3 can hold of what is not negative, ascending: codes 0 to 0x7E."""
    codes = np.arange(0x7F)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))


def through_fp8(x: Array) -> Array:
    """Rounds to nearest even in e4m3; 448 at most."""
    values = float8_values()
    middles = (values[1:] + values[:-1]) / 2
    magnitude = np.abs(x).astype(np.float64)
    code = np.searchsorted(middles, magnitude)
    tie = magnitude == middles[np.minimum(code, len(middles) - 1)]
    return np.copysign(values[code + (tie & (code % 2 == 1))], x)


def exact(
    q: Array,
    k: Array,
    v: Array,
    heads: int,
    kv_heads: int,
    window: int,
    scale: float,
    cap: float,
    kv_dtype: str,
    parents: list[int] | None = None,
    sinks: Array | None = None,
    linear_biases: Array | None = None,
    view: tuple[int, int] | None = None,
) -> Array:
    rows, slots = len(q), len(k)
    base, head_dim = slots - rows, q.shape[1] // heads
    if kv_dtype == "float16":
        k, v = k.astype(np.float16), v.astype(np.float16)
    if kv_dtype == "int8":
        k, v = through_int8(k, head_dim), through_int8(v, head_dim)
    if kv_dtype == "fp8":
        k, v = through_fp8(k), through_fp8(v)
    if kv_dtype == "bfloat16":
        q, k, v = through_bf16(q), through_bf16(k), through_bf16(v)
    out = np.zeros((rows, heads, head_dim))
    for row in range(rows):
        path = []
        node = row
        while node >= 0:
            path.append(node)
            node = node - 1 if parents is None else parents[node]
        visible = np.array([*range(base), *(base + node for node in reversed(path))])
        if window:
            visible = visible[-window:]
        if view is not None:
            places = np.arange(len(visible))
            visible = visible[(places < view[0]) | (places >= len(visible) - view[1])]
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            kk = k.reshape(slots, kv_heads, head_dim)[visible, kv_head].astype(np.float64)
            vv = v.reshape(slots, kv_heads, head_dim)[visible, kv_head].astype(np.float64)
            scores = kk @ q.reshape(rows, heads, head_dim)[row, head].astype(np.float64) * scale
            if cap:
                scores = cap * np.tanh(scores / cap)
            if linear_biases is not None:
                depths = np.arange(base + len(path))[-len(visible) :]  # positions, not slots: those of a path are consecutive
                scores = scores + np.float64(linear_biases[head]) * depths
            peak = scores.max() if sinks is None else max(scores.max(), sinks[head])
            p = np.exp(scores - peak)
            total = p.sum() + (0 if sinks is None else np.exp(sinks[head] - peak))
            out[row, head] = (p / total) @ vv
    return out.reshape(rows, heads * head_dim)


CASES = [  # slots, rows, heads, kv_heads, head_dim, window, soft cap
    (1, 1, 1, 1, 16, 0, 0.0),
    (17, 17, 4, 2, 32, 0, 0.0),
    (300, 300, 3, 1, 16, 0, 0.0),
    (700, 5, 9, 3, 64, 0, 0.0),
    (530, 40, 4, 1, 256, 64, 0.0),
    (600, 3, 2, 2, 48, 512, 0.0),
    (258, 258, 2, 2, 16, 17, 30.0),
    (270, 20, 24, 1, 16, 0, 0.0),
    (330, 90, 20, 1, 16, 0, 0.0),
    (270, 70, 2, 1, 256, 0, 0.0),
    (300, 70, 1, 1, 512, 100, 0.0),
    (33_100, 1, 1, 1, 16, 0, 0.0),
    (20, 3, 2, 1, 512, 0, 0.0),
    (300, 40, 2, 1, 576, 100, 0.0),
    (40, 20, 3, 1, 80, 0, 0.0),
    (1030, 10, 2, 1, 16, 0, 0.0),
    (530, 2, 32, 2, 144, 0, 0.0),
    (300, 2, 8, 1, 576, 0, 30.0),
    (600, 2, 10, 2, 48, 300, 0.0),
    (600, 86, 6, 2, 144, 270, 0.0),  # groups that are taken whole, and a rest of six rows
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("table", "kv_dtype"), TABLES_AND_TYPES)
def test_attention(table: str, case: tuple[int, ...], kv_dtype: str) -> None:
    slots, rows, heads, kv_heads, head_dim, window, cap = case
    q, k, v = qkv(slots, rows, heads, kv_heads, head_dim)
    kwargs = {"window": window, "scale": head_dim**-0.5, "soft_cap": cap, "kv_dtype": kv_dtype}
    expected = T.attention("reference", q, k, v, heads, kv_heads, **kwargs)
    got = [T.attention(table, q, k, v, heads, kv_heads, block_size=block, num_threads=n, **kwargs) for block, n in ((16, 1), (64, 2))]
    assert_same_bits(got[0], got[1])
    if has_bits_of_its_own(table, kv_dtype):
        expected = got[0]
    assert_same_bits(got[0], expected)
    truth = exact(q, k, v, heads, kv_heads, window, head_dim**-0.5, cap, kv_dtype)
    # A soft cap rounds scores at the cap's own size: 30 x 2^-24 = 1.8e-6 more. bf16 rounds each weight by 2^-9 of itself at most, of
    # which the mean over values moves by less than twice that.
    assert np.abs(expected - truth).max() < 2e-6 + cap * 2.0**-24 + (kv_dtype == "bfloat16") * 2.0**-8 * np.abs(v).max()


def test_prompts_over_fp16_take_groups_whole() -> None:
    """Sixteen rows of a chain, or a rest of eight and more, if more than 64 rows are in such groups; a tree's rows are single."""

    def launched(rows: int, parents: list[int] | None = None) -> set[str]:
        q, k, v = qkv(rows, rows, 2, 1, 32)
        before = T.device_work()["kernels"]
        T.attention("emulated", q, k, v, 2, 1, parents=parents)
        after = T.device_work()["kernels"]
        return {name.partition("<")[0] for name, count in after.items() if count > before.get(name, 0)} - {"KvWriteKernel"}

    assert launched(80) == launched(72) == {"PromptAttentionKernel"}
    assert launched(85) == {"PromptAttentionKernel", "SpanKernel"}
    assert launched(64) == launched(80, [-1, *range(79)]) == {"SpanKernel"}


SINKS_AND_BIASES = [  # slots, rows, heads, kv_heads, head_dim, window, soft cap, parents
    (600, 3, 8, 2, 64, 0, 0.0, None),  # several spans
    (300, 150, 3, 1, 32, 24, 30.0, None),  # a window, a soft cap, groups of rows that are taken whole
    (270, 9, 4, 2, 32, 0, 0.0, [-1, 0, 0, 1, 1, 2, -1, 6, 7]),
    (33_100, 1, 2, 1, 16, 0, 0.0, None),  # more spans than one pass of the merge takes
]


VIEWS = [  # slots, rows, heads, kv_heads, head_dim, sinks, recent, parents
    (700, 5, 9, 3, 64, 4, 100, None),
    (700, 60, 4, 1, 32, 4, 508, None),  # rows before and behind the first that leaves something out
    (300, 300, 4, 2, 32, 17, 40, None),
    (620, 40, 2, 2, 16, 256, 1, None),  # most sinks, least of a window
    (40, 40, 6, 2, 16, 7, 2, None),  # sinks of the rows' own pass
    (700, 1, 2, 1, 16, 0, 300, None),
    (280, 9, 4, 2, 32, 4, 20, [-1, 0, 0, 1, 1, 2, -1, 6, 7]),
    (12, 9, 4, 2, 32, 5, 2, [-1, 0, 0, 1, 2, 2, 3, 6, 7]),  # sinks on the rows' paths
]


@pytest.mark.parametrize("case", VIEWS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_sinks_and_a_window(cpu_table: str, kv_dtype: str, case: tuple[Any, ...]) -> None:
    """A row sees the first positions and the last: the bits of each row alone, of any block size and number of threads."""
    slots, rows, heads, kv_heads, head_dim, sinks, recent, parents = case
    q, k, v = qkv(slots, rows, heads, kv_heads, head_dim)
    view = _core.SparseView(sinks=sinks, recent=recent)
    kwargs: dict[str, Any] = {"scale": head_dim**-0.5, "parents": parents, "kv_dtype": kv_dtype, "view": view}
    got = T.attention(cpu_table, q, k, v, heads, kv_heads, **kwargs)
    assert_same_bits(got, T.attention("reference", q, k, v, heads, kv_heads, block_size=64, num_threads=2, **kwargs))
    truth = exact(q, k, v, heads, kv_heads, 0, head_dim**-0.5, 0.0, kv_dtype, parents, view=(sinks, recent))
    assert np.abs(got - truth).max() < 2e-6 + (kv_dtype == "bfloat16") * 2.0**-8 * np.abs(v).max()
    for row in range(0, rows if parents is None else 0, 7):
        end = slots - rows + row + 1
        alone = T.attention(cpu_table, q[row : row + 1].copy(), k[:end].copy(), v[:end].copy(), heads, kv_heads, **kwargs)
        assert_same_bits(got[row : row + 1], alone)
        if end <= sinks + recent:
            whole = T.attention(
                cpu_table,
                q[row : row + 1].copy(),
                k[:end].copy(),
                v[:end].copy(),
                heads,
                kv_heads,
                **(kwargs | {"view": _core.SparseView()}),
            )
            assert_same_bits(alone, whole)


@pytest.mark.parametrize("parents", [None, [-1, 0, 0, 1]])
def test_weights_of_sinks_and_a_window(parents: list[int] | None) -> None:
    """The weights that are shown are those of the positions that the row sees, and zero elsewhere."""
    q, k, v = qkv(40, 4, 4, 2, 32)
    kwargs: dict[str, Any] = {"scale": 0.2, "kv_dtype": "float32", "parents": parents, "view": _core.SparseView(sinks=3, recent=6)}
    weights = T.attention_weights(q, k, 4, 2, **kwargs).astype(np.float64)
    values = v.reshape(40, 2, 32).repeat(2, axis=1).astype(np.float64)
    expected = np.einsum("hs,shd->hd", weights, values).reshape(-1)
    assert np.abs(T.attention("reference", q, k, v, 4, 2, **kwargs)[-1] - expected).max() < 1e-5
    seen = [0, 1, 2, *(range(34, 40) if parents is None else (33, 34, 35, 36, 37, 39))]
    assert np.array_equal(np.flatnonzero(weights.sum(0)), seen) and (weights[:, seen] > 0).all()


@pytest.mark.parametrize("which", ["sinks", "linear_biases", "both"])
@pytest.mark.parametrize("case", SINKS_AND_BIASES)
@pytest.mark.parametrize(("table", "kv_dtype"), TABLES_AND_TYPES)
def test_sinks_and_linear_biases(table: str, kv_dtype: str, case: tuple[Any, ...], which: str) -> None:
    slots, rows, heads, kv_heads, head_dim, window, cap, parents = case
    q, k, v = qkv(slots, rows, heads, kv_heads, head_dim)
    # Sinks above and below all scores, and about as large.
    sinks = np.linspace(-3, 12, heads).astype(np.float32) if which != "linear_biases" else None
    slopes = (2.0 ** -np.arange(1.0, heads + 1)).astype(np.float32) if which != "sinks" else None
    kwargs: dict[str, Any] = {"window": window, "scale": head_dim**-0.5, "soft_cap": cap, "parents": parents, "kv_dtype": kv_dtype}
    kwargs |= {"sinks": None if sinks is None else sinks.tolist(), "linear_biases": None if slopes is None else slopes.tolist()}
    got = T.attention(table, q, k, v, heads, kv_heads, **kwargs)
    assert_same_bits(got, T.attention(table, q, k, v, heads, kv_heads, block_size=64, num_threads=2, **kwargs))
    if not has_bits_of_its_own(table, kv_dtype):
        assert_same_bits(got, T.attention("reference", q, k, v, heads, kv_heads, **kwargs))
    truth = exact(q, k, v, heads, kv_heads, window, head_dim**-0.5, cap, kv_dtype, parents, sinks, slopes)
    # A score is rounded at its bias's own size.
    bias = 0 if slopes is None else slots * float(slopes.max())
    assert np.abs(got - truth).max() < 2e-6 + (cap + 4 * bias) * 2.0**-24 + (kv_dtype == "bfloat16") * 2.0**-8 * np.abs(v).max()


@pytest.mark.parametrize("parents", [None, [-1, 0, 0, 1]])
def test_weights_with_sinks_and_linear_biases(parents: list[int] | None) -> None:
    """The weights that are shown are those that attention uses: their sums with V are its output, and with a sink they miss its share."""
    q, k, v = qkv(40, 4, 4, 2, 32)
    kwargs: dict[str, Any] = {"scale": 0.2, "kv_dtype": "float32", "parents": parents, "sinks": [19.0, 10.0, 6.0, 3.0]}
    kwargs["linear_biases"] = [0.5, 0.25, 0.125, 0.0625]
    weights = T.attention_weights(q, k, 4, 2, **kwargs).astype(np.float64)
    values = v.reshape(40, 2, 32).repeat(2, axis=1).astype(np.float64)
    expected = np.einsum("hs,shd->hd", weights, values).reshape(-1)
    assert np.abs(T.attention("reference", q, k, v, 4, 2, **kwargs)[-1] - expected).max() < 1e-5
    assert (weights.sum(-1) < 1 - 1e-7).all()
    without = T.attention_weights(q, k, 4, 2, **(kwargs | {"sinks": None})).astype(np.float64)
    assert np.abs(without.sum(-1) - 1).max() < 1e-6 and (without >= weights).all()


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize(("table", "kv_dtype"), TABLES_AND_TYPES)
def test_rows_are_independent(table: str, window: int, kv_dtype: str) -> None:
    q, k, v = qkv(600, 600, 6, 2, 32)
    whole = T.attention(table, q, k, v, 6, 2, window=window, kv_dtype=kv_dtype, num_threads=2)
    for begin, end in ((0, 1), (255, 258), (511, 530), (599, 600), (3, 19)):
        part = T.attention(table, q[begin:end].copy(), k[:end].copy(), v[:end].copy(), 6, 2, window=window, kv_dtype=kv_dtype)
        assert_same_bits(part, whole[begin:end])


@pytest.mark.parametrize("rows", [40, 90])
@pytest.mark.parametrize(("table", "kv_dtype"), TABLES_AND_TYPES)
def test_what_is_not_finite_stays_with_those_that_see_it(table: str, kv_dtype: str, rows: int) -> None:
    """Rows that share loads see different positions: infinity, NaN or what is huge before a row's window, or behind the row, moves none of
    its bits."""
    q, k, v = qkv(rows, rows, 6, 2, 32)
    v[31, 7], v[32, 50] = 3e38, -3e38
    k[11, 40], k[12, 3], v[25, 5], v[26, 33], v[27] = np.nan, np.inf, np.inf, np.nan, np.nan
    kwargs: dict[str, Any] = {"window": 9, "kv_dtype": kv_dtype}
    whole = T.attention(table, q, k, v, 6, 2, **kwargs)
    for row in range(rows):
        alone = T.attention(table, q[row : row + 1].copy(), k[: row + 1].copy(), v[: row + 1].copy(), 6, 2, **kwargs)
        if np.isfinite(whole[row]).all():
            assert_same_bits(alone[0], whole[row], row)
        else:  # the bits of a NaN are nobody's
            np.testing.assert_array_equal(alone[0], whole[row])
        if not 31 <= row < 32 + 9:  # whose sums overflow or not by the cache's type
            assert np.isfinite(whole[row]).all() != any(row - 9 < position <= row for position in (11, 12, 25, 26, 27))


TREES = [
    [-1, 0, 0, 1, 1, 2, -1, 6, 7],
    [-1, -1, -1],
    [-1, 0, 1, 2, 3, 4, 5],
    [-1, 0, 0, 0, 2, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
]


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize("base", [0, 5, 16, 250, 256, 511])
@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize(("table", "kv_dtype"), [pair for pair in TABLES_AND_TYPES if pair[1] != "float32"])
def test_trees_equal_chains(table: str, parents: list[int], base: int, window: int, kv_dtype: str) -> None:
    check_tree(table, parents, base, window, kv_dtype)


@pytest.mark.parametrize(("table", "kv_dtype"), TABLES_AND_TYPES)
def test_a_large_tree(table: str, kv_dtype: str) -> None:
    check_tree(table, [(i - 1) // 2 if i % 5 else i - 1 for i in range(70)], 250, 24, kv_dtype)


def check_tree(table: str, parents: list[int], base: int, window: int, kv_dtype: str) -> None:
    """Each node's row has the bits that its path gives as a chain."""
    rows = len(parents)
    q, k, v = qkv(base + rows, rows, 4, 2, 32, seed=base)
    got = T.attention(table, q, k, v, 4, 2, window=window, parents=parents, kv_dtype=kv_dtype, num_threads=2)
    for row in range(rows):
        path = [row]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        slots = [*range(base), *(base + node for node in path)]
        chain = T.attention(table, q[path].copy(), k[slots].copy(), v[slots].copy(), 4, 2, window=window, kv_dtype=kv_dtype)
        assert_same_bits(chain[-1], got[row])


@pytest.mark.parametrize(("table", "kv_dtype"), TABLES_AND_TYPES)
def test_garbage_behind_the_sequence_stays_out(table: str, kv_dtype: str) -> None:
    """Slots of a recycled page past the sequence may hold NaN: they never reach a row."""
    q, k, v = qkv(20, 20, 2, 1, 16)
    clean = T.attention(table, q[:5].copy(), k[:5].copy(), v[:5].copy(), 2, 1, kv_dtype=kv_dtype)
    k[5:], v[5:] = np.nan, np.nan
    with_garbage = T.attention(table, q, k, v, 2, 1, kv_dtype=kv_dtype)
    assert_same_bits(with_garbage[:5], clean)
    assert np.isnan(with_garbage[5:]).all()


@pytest.mark.parametrize(("window", "length"), [(0, 40), (7, 40), (0, 530), (300, 530)])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_two_sided_rows_are_those_of_a_window(table: str, kv_dtype: str, window: int, length: int) -> None:
    """What a row sees behind it, it would see before it at a later position, with the same bits."""
    q, k, v = qkv(length, length, 4, 2, 32)
    firsts = [max(0, row - window + 1) if window else 0 for row in range(length)]
    lasts = [min(length, row + window) - 1 if window else length - 1 for row in range(length)]
    got = T.attention(table, q, k, v, 4, 2, kv_dtype=kv_dtype, firsts=firsts, lasts=lasts, num_threads=2)
    for row in range(0, length, 13):
        end = lasts[row] + 1
        alone = T.attention(
            table, q[row : row + 1].copy(), k[:end].copy(), v[:end].copy(), 4, 2, kv_dtype=kv_dtype, window=end - firsts[row]
        )
        assert_same_bits(got[row : row + 1], alone)


@pytest.mark.parametrize("exponents", [(-70, -60, -126), (0, -126, -120), (60, 60, 120), (-130, 0, -128)])
def test_bf16_pairs_near_the_ends_of_fp32(cpu_table: str, exponents: tuple[int, int, int]) -> None:
    """Where products, sums or values are subnormal (flushed to zero by the instruction, so everywhere) or overflow."""
    q, k, v = (x * np.float32(2.0) ** e for x, e in zip(qkv(40, 40, 4, 2, 48), exponents, strict=True))
    reference, got = (T.attention(name, q, k, v, 4, 2, kv_dtype="bfloat16", scale=2.0**60) for name in ("reference", cpu_table))
    assert np.array_equal(reference.view(np.uint32)[~np.isnan(reference)], got.view(np.uint32)[~np.isnan(reference)])
    assert np.array_equal(np.isnan(reference), np.isnan(got))


def rounded(x: Fraction, sign_of_zero: float) -> float:
    """To 24 bits, nearest even, of any exponent; then what is tiny is zero and what is too large is infinite."""
    if x == 0:
        return math.copysign(0.0, sign_of_zero)
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    unit = Fraction(2) ** (exponent - 23)
    value = round(x / unit) * unit
    if abs(value) < Fraction(2) ** -126:
        return math.copysign(0.0, x)
    return math.copysign(math.inf, x) if abs(value) >= Fraction(2) ** 128 else float(value)


def test_fp8_rounds_to_the_nearest() -> None:
    """All codes, all points between two of them and their neighbours, what is too large, and what is not finite."""
    values = float8_values().astype(np.float32)
    middles = (values[1:] + values[:-1]) / 2
    positive = np.concatenate(
        [values, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(1e9)), [463.9, 465, 3e38]]
    )
    x = np.concatenate([positive, -positive]).astype(np.float32)
    expected = through_fp8(x).astype(np.float32)
    np.testing.assert_array_equal(T.through_float8(x), expected)
    assert np.signbit(T.through_float8(np.array([-0.0, -1e-9], np.float32))).all()
    assert np.isnan(T.through_float8(np.array([np.nan, np.inf, -np.inf], np.float32))).all()


@pytest.mark.parity
def test_fp8_is_that_of_torch() -> None:
    import torch

    x = np.random.default_rng(3).standard_normal(20_000).astype(np.float32) * np.float32(60)
    expected = torch.from_numpy(x).to(torch.float8_e4m3fn).to(torch.float32).numpy()
    np.testing.assert_array_equal(T.through_float8(x), expected)


def test_bf16_multiply_adds_follow_the_manual() -> None:
    """The reference's step against arithmetic in fractions, everywhere on the way down to zero; subnormals count as zero."""
    rng = np.random.default_rng(0)
    a, b = (
        through_bf16(np.ldexp(rng.uniform(-2, 2, 4000).astype(np.float32), rng.integers(-90, 20, 4000)).astype(np.float32))
        for _ in range(2)
    )
    c = np.ldexp(rng.uniform(-2, 2, 4000), rng.integers(-128, 10, 4000)).astype(np.float32)
    # 2^-126 less 2^-151 at most rounds up to it in 24 bits and is not tiny; less 2^-150, a subnormal's 23 bits would round it up.
    a[:1000] = through_bf16(np.repeat(np.linspace(0.25, 4, 61), 17)[:1000].astype(np.float32)) * np.float32(2.0**-75)
    b[:1000], c[:1000] = -np.float32(2.0**-76), np.float32(2.0**-126)
    b[:500], c[:500] = -b[:500], -c[:500]
    got = T.flushing_fma(a, b, c)
    for x, y, z, value in zip(a, b, c, got, strict=True):
        x, y, z = (np.copysign(np.float32(0), n) if abs(n) < 2.0**-126 else n for n in (x, y, z))
        exact_sum = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        expected = np.float32(rounded(exact_sum, float(np.float32(x * y) + z)))
        assert_same_bits(value, expected, (x, y, z, value, expected))
    assert (got == 0).any() and (np.abs(got) == 2.0**-126).any()
