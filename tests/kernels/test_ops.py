"""One case table over every kernel table: bit-equal to the reference; the reference against float64; rows apart."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import _core
from quantization import extreme_blocks, random_blocks

ROOT = Path(__file__).parents[2]

T = _core.testing
DTYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"]
# (rows, columns) of weights: whole tiles, a cut tile, one row, several blocks; so many tiles that each of a task's four streams has two.
SHAPES = [(16, 256), (48, 512), (37, 256), (1, 768), (1019, 256)]
ROW_COUNTS = [1, 2, 3, 5, 8, 16, 33]
Array = np.ndarray[Any, Any]


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def packed(table: str, dtype: str, rows: int, cols: int, seed: int = 0, **kwargs: Any) -> Any:
    return T.PackedMatrix(table, dtype, random_blocks(dtype, rows, cols, seed), rows, cols, **kwargs)


def dequantized(dtype: str, rows: int, cols: int, seed: int = 0) -> Array:
    return T.dequantize_row(dtype, random_blocks(dtype, rows, cols, seed), rows * cols).reshape(rows, cols)


def same(actual: Array, expected: Array) -> bool:
    return actual.tobytes() == expected.tobytes()


def ulps(actual: Array, exact: Array, scale: Array | float) -> float:
    """Largest error in units of fp32 rounding of `scale`."""
    return float(np.max(np.abs(actual.astype(np.float64) - exact) / (np.asarray(scale) * 2.0**-24)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantize_matches_gguf(dtype: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the extra `test` brings gguf")
    if dtype == "BF16":
        raw = np.frombuffer(random_blocks(dtype, 4, 512), np.uint16)
        expected = (raw.astype(np.uint32) << 16).view(np.float32).reshape(4, 512)
    else:
        kind = getattr(gguf.GGMLQuantizationType, dtype)
        raw = np.frombuffer(random_blocks(dtype, 4, 512), np.uint8).reshape(4, -1)
        if dtype == "F32":
            expected = raw.view(np.float32)
        elif dtype == "F16":
            expected = raw.view(np.float16).astype(np.float32)
        else:
            expected = gguf.dequantize(raw, kind)
    assert np.array_equal(dequantized(dtype, 4, 512), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_rows", [1, 4, 7, 19])
def test_linear_equals_reference(table: str, dtype: str, shape: tuple[int, int], num_rows: int) -> None:
    rows, cols = shape
    x = rand(num_rows, cols)
    bias = rand(rows, seed=1).tolist()
    residual = rand(num_rows, rows, seed=2)
    weights = packed("reference", dtype, rows, cols)
    for kwargs in ({}, {"biases": [bias]}, {"residual": residual}, {"fine": True}, {"bits": 16}):
        expected = T.linear("reference", [weights], x, **kwargs)
        assert same(T.linear(table, [packed(table, dtype, rows, cols)], x, **kwargs, num_threads=2), expected)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("cols", [7, 72])
def test_float_columns_past_whole_blocks(table: str, dtype: str, cols: int) -> None:
    for num_rows in ROW_COUNTS[:5]:
        x = rand(num_rows, cols)
        expected = T.linear("reference", [packed("reference", dtype, 133, cols)], x)
        assert same(T.linear(table, [packed(table, dtype, 133, cols)], x), expected)
        exact = x.astype(np.float64) @ dequantized(dtype, 133, cols).astype(np.float64).T
        assert np.allclose(expected, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("dtype", "one"), [("F32", 0x3F800000), ("F16", 0x3C00), ("BF16", 0x3F80)])
def test_products_of_minus_zero_add_up_to_zero(table: str, dtype: str, one: int) -> None:
    """A block that begins with its first product may be -0; the sum that it is added to begins with +0."""
    ones = np.full((133, 72), one, np.uint32 if dtype == "F32" else np.uint16)
    weights = T.PackedMatrix(table, dtype, ones.tobytes(), 133, 72)
    for num_rows in (1, 3, 6, 8):
        assert not T.linear(table, [weights], np.full((num_rows, 72), -0.0, np.float32)).view(np.uint32).any()


@pytest.mark.parametrize(("dtype", "fine"), [*((dtype, False) for dtype in DTYPES), ("Q4_1", True), ("Q6_K", True)])
def test_linear_rows_are_independent(table: str, dtype: str, fine: bool) -> None:
    cols = 512
    weights = packed(table, dtype, 64, cols)
    x = rand(512, cols)
    whole = T.linear(table, [weights], x, fine=fine)
    for count in ROW_COUNTS if table != "reference" else [1, 5]:
        for begin in (0, 17, 512 - count):
            assert same(T.linear(table, [weights], x[begin : begin + count].copy(), fine=fine), whole[begin : begin + count])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_float_linear_against_float64(dtype: str) -> None:
    x, w = rand(5, 512), dequantized(dtype, 40, 512).astype(np.float64)
    exact = x.astype(np.float64) @ w.T
    got = T.linear("reference", [packed("reference", dtype, 40, 512)], x)
    plain = np.zeros((5, 40), np.float32)
    for k in range(512):  # a plain loop in fp32
        plain = (plain + x[:, k : k + 1] * w[:, k].astype(np.float32)[None, :]).astype(np.float32)
    assert np.abs(got - exact).max() <= 2 * np.abs(plain - exact).max()


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
def test_quantized_linear_against_float64(dtype: str, fine: bool) -> None:
    """With the activations' own quantisation taken as given, only fp32 sums of blocks round."""
    x = rand(5, 512)
    codes, scales, _, _ = T.quantize_rows("reference", x, fine=fine)
    xq = codes.reshape(len(scales), -1).astype(np.float64) * scales[:, None]
    w = dequantized(dtype, 40, 512).astype(np.float64)
    exact = xq.reshape(5, 512) @ w.T
    got = T.linear("reference", [packed("reference", dtype, 40, 512)], x, fine=fine)
    magnitude = np.abs(xq.reshape(5, 512)) @ np.abs(w.T)
    # 16 blocks, three roundings each, of sums no larger than the sum of magnitudes.
    assert ulps(got, exact, magnitude) <= 64


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
def test_saturation_extremes(table: str, dtype: str) -> None:
    """All weights the most that there is (-128), all activations +-127: 16-bit products reach 32,512."""
    blocks, weight = extreme_blocks(dtype, 16, 256)
    modes: list[dict[str, Any]] = [{}, {"fine": True}, {"bits": 16}]
    for sign, mode in itertools.product((1.0, -1.0), modes):
        x = np.full((3, 256), 127.0 * sign, np.float32)
        expected = T.linear("reference", [T.PackedMatrix("reference", dtype, blocks, 16, 256)], x, **mode)
        assert same(T.linear(table, [T.PackedMatrix(table, dtype, blocks, 16, 256)], x, **mode), expected)
        assert np.allclose(expected, weight * 127 * sign * 256, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["Q4_0", "Q8_0", "BF16", "F32"])
def test_linear_tiles(table: str, dtype: str) -> None:
    """Some tiles of 16 columns: the bits of the whole; on the CPU the others stay as they were."""
    x, matrix = rand(3, 256), packed(table, dtype, 250, 256)
    whole = T.linear(table, [matrix], x)
    for tiles in ([(0, 2), (5, 6), (9, 16)], [(15, 16)], [(0, 16)]):
        listed = np.zeros(256, bool)
        for begin, end in tiles:
            listed[16 * begin : 16 * end] = True
        part = T.linear(table, [matrix], x, residual=np.full((3, 250), np.nan, np.float32), num_threads=2, tiles=tiles)
        assert np.isnan(part[:, listed[:250]]).all(), "the residual is added"
        part = T.linear(table, [matrix], x, residual=np.zeros((3, 250), np.float32), num_threads=2, tiles=tiles)
        assert same(part[:, listed[:250]] + 0.0, whole[:, listed[:250]] + 0.0)
        if table in _core.system_info()["tables"]:
            assert (part[:, ~listed[:250]] == 0).all()
    with pytest.raises(_core.CoreError, match="past the last row"):
        T.linear("reference", [packed("reference", dtype, 250, 256)], x, tiles=[(0, 17)])
    with pytest.raises(_core.CoreError, match="one part"):
        T.linear("reference", [packed("reference", dtype, 250, 256)] * 2, x, tiles=[(0, 1)])


def test_linear_side_by_side(table: str) -> None:
    x = rand(3, 256)
    parts = [packed(table, "Q4_1", 48, 256, 1), packed(table, "Q8_0", 19, 256, 2), packed(table, "F32", 33, 256, 3)]
    together = T.linear(table, parts, x, num_threads=2)
    apart = np.concatenate([T.linear(table, [part], x) for part in parts], axis=1)
    assert same(together, apart)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(table: str, dtype: str) -> None:
    weights = packed(table, dtype, 37, 256)
    expected = dequantized(dtype, 37, 256)
    assert np.array_equal(T.embedding(table, weights, [0, 36, 5, 16], 1.0), expected[[0, 36, 5, 16]])
    assert same(T.embedding(table, weights, [3], 25.3), T.embedding("reference", packed("reference", dtype, 37, 256), [3], 25.3))


@pytest.mark.parametrize("format_and_numpy", [("float32", np.float32), ("float16", np.float16)])
def test_conversion_at_load(format_and_numpy: tuple[str, Any]) -> None:
    name, kind = format_and_numpy
    weights = packed("reference", "Q4_1", 32, 256, format=name)
    expected = dequantized("Q4_1", 32, 256).astype(kind).astype(np.float32)
    assert np.array_equal(T.embedding("reference", weights, list(range(32)), 1.0), expected)


@pytest.mark.parametrize("size", [16, 4096, 5000, 49152])
def test_log_sum_exp_and_masses(cpu_table: str, size: int) -> None:
    row = rand(size, scale=5.0)
    row[3] = -np.inf
    total = T.log_sum_exp("reference", row)
    assert T.log_sum_exp(cpu_table, row) == total
    exact = np.log(np.exp(row.astype(np.float64) - row.max()).sum()) + row.max()
    assert abs(total - exact) < 2e-6 * max(1, abs(exact))
    maximum = float(row.max())
    masses = T.token_masses("reference", row, maximum)
    assert np.array_equal(T.token_masses(cpu_table, row, maximum), masses)
    wanted = np.exp(row.astype(np.float64) - maximum) * 2.0**40
    assert np.allclose(masses.astype(np.float64), wanted, rtol=1e-6, atol=1) and masses[3] == 0


@pytest.mark.parametrize("size", [5, 16, 4096, 5000, 49152, 262144])
@pytest.mark.parametrize("spread", [0.0, 3.0, 40.0])
def test_mass_moments(cpu_table: str, size: int, spread: float) -> None:
    """The sums of token_masses, bit for bit, in 16 lanes; cut tokens and those without mass add nothing."""
    row = rand(size, scale=spread)
    row[size // 3 : size // 2] = -np.inf
    row[size // 2 : size // 2 + 40] -= 28.2  # about the least value that has a mass
    maximum = float(row.max())
    masses = T.token_masses("reference", row, maximum)
    terms = masses.astype(np.float64) * np.where(masses > 0, row.astype(np.float64) - maximum, 0.0)
    lanes = np.zeros(16)
    for begin in range(0, size, 16):
        part = terms[begin : begin + 16]
        lanes[: len(part)] += part
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    assert T.mass_moments(cpu_table, row, maximum) == (int(masses.sum()), lanes[0])


@pytest.mark.parametrize("size", [16, 4096, 5000, 49152])
def test_divergence(cpu_table: str, size: int) -> None:
    """Equal bits, near the exact value; tests/sampling/test_dola.py has the definition term by term."""
    rows = [rand(size, scale=4.0, seed=seed) for seed in (1, 2)]
    rows[1][: size // 3] -= 150
    a, b = (row - np.float32(T.log_sum_exp("reference", row)) for row in rows)
    m = np.logaddexp(a.astype(np.float64), b.astype(np.float64)) - np.log(2)
    for of_mean, exact in ((False, np.exp(a) @ (a - m) + np.exp(b) @ (b - m)), (True, np.exp(m) @ ((m - a) + (m - b)))):
        found = T.layer_divergence(cpu_table, a, b, of_mean)
        assert found == T.layer_divergence("reference", a, b, of_mean)
        assert abs(found - exact / 2) < 2e-5 * max(1, exact)
    a[5] = np.nan
    assert np.isnan(T.layer_divergence(cpu_table, a, b, False))


def test_log_sum_exp_edges(cpu_table: str) -> None:
    assert T.log_sum_exp(cpu_table, np.full(64, -np.inf, np.float32)) == -np.inf
    row = np.zeros(64, np.float32)
    row[7] = np.nan
    assert np.isnan(T.log_sum_exp(cpu_table, row))


@pytest.mark.parametrize("size", [4, 16, 4096, 4100, 49152])
def test_argmax(cpu_table: str, size: int) -> None:
    """The first of the largest; -1 where there is none, or anything is NaN or +inf."""
    for seed in range(20):
        row = np.random.default_rng(seed).integers(-50, 50, size).astype(np.float32)
        row[seed % 3 :: 3] = -np.inf
        assert T.argmax(cpu_table, row) == row.argmax()
        for bad in (np.nan, np.inf):
            spoilt = row.copy()
            spoilt[(seed * 7919) % size] = bad
            assert T.argmax(cpu_table, spoilt) == -1
    assert T.argmax(cpu_table, np.full(size, -np.inf, np.float32)) == -1


@pytest.mark.parametrize("size", [5, 64, 250, 4096])
def test_race_candidates(cpu_table: str, size: int) -> None:
    """Every table finds the same ids: those whose time may beat the limit."""
    for seed in range(40):
        law = rand(size, scale=float(seed % 5 * 4), seed=seed)
        law[seed % 4 :: 4] = -np.inf
        if seed % 5 == 3 and size > 64:  # blocks of 64 with one token left, or none
            kept = law[[61, size - 1]]
            law[:] = -np.inf
            law[[61, size - 1]] = kept if np.isfinite(kept).any() else 0
        limit = float(np.random.default_rng(seed).uniform(-12, 6) - law.max())
        found = T.race_candidates(cpu_table, seed << 33 | seed, seed * 5, law, limit)
        assert found == T.race_candidates("reference", seed << 33 | seed, seed * 5, law, limit)
        words = np.array([T.noise_word(seed << 33 | seed, seed * 5, 0, token) for token in range(size)], np.float64)
        with np.errstate(over="ignore"):
            beats = words * 2.0**-32 < np.exp(limit + law.astype(np.float64))
        assert set(np.flatnonzero(beats)) <= set(found)
        assert not np.isneginf(law[found]).any()


def test_probes_do_what_they_count(cpu_table: str) -> None:
    """The ceilings' loops compute: every table the same numbers."""
    starts = np.arange(12 * 16, dtype=np.float32).reshape(12, 16)
    chains = starts
    for _ in range(5):
        chains = chains * np.float32(0.5) + np.float32(1)
    assert np.array_equal(T.probe_fma(cpu_table, 5), chains.sum(0))
    assert np.array_equal(T.probe_bf16(cpu_table, 5), starts.sum(0) + np.float32(12 * 5 * 1.25))
    block, x = random_blocks("Q4_0", 16, 32)[:288], rand(64, 32)
    block = (block * 2)[:288]
    assert same(T.probe_dots(cpu_table, 19, block, x), T.probe_dots("reference", 19, block, x))
    assert np.abs(T.probe_dots("reference", 19, block, x)).max() > 100


def test_each_task_runs_once() -> None:
    """Regions of all sizes, one after the other, more tasks than a range counts too; and a thread that is held up holds up one task."""
    for num_threads in (1, 2, 3, 5):
        sizes = [(7 * i) % 61 for i in range(300)] + [70_000, 1, 65_536, 3]
        regions = T.threads_of_tasks(num_threads, sizes, 0.0)
        assert [len(region) for region in regions] == sizes
        assert all(0 <= thread < num_threads for region in regions for thread in region)
    # The first waits until all the others have run.
    assert all(-1 not in region for region in T.threads_of_tasks(3, [40] * 5, 10.0))


def test_scalar_math() -> None:
    rng = np.random.default_rng(0)
    for x in [*rng.uniform(-80, 80, 200), 0.0]:
        exact = np.exp(np.float64(np.float32(x)))
        assert abs(T.scalar_math("exp32", x) - exact) <= 3 * exact * 2.0**-24
        assert abs(T.scalar_math("exp64", x) - np.exp(x)) <= 4 * np.exp(x) * 2.0**-53
        assert abs(T.scalar_math("expm1_32", x) - np.expm1(np.float64(np.float32(x)))) <= 4 * 2.0**-24 * abs(np.expm1(x))
        assert abs(T.scalar_math("sigmoid32", x) - 1 / (1 + np.exp(-np.float64(np.float32(x))))) <= 5 * 2.0**-24 / (1 + np.exp(-x))
    for x in [*np.logspace(-40, -1, 100), *rng.uniform(0, 2, 200)]:
        for value in (float(np.float32(x)), -float(np.float32(x))):
            assert abs(T.scalar_math("expm1_32", value) - np.expm1(value)) <= 4 * 2.0**-24 * abs(np.expm1(value)) + 2.0**-149
    assert T.scalar_math("expm1_32", -1000.0) == -1.0 and np.isnan(T.scalar_math("expm1_32", np.nan))
    assert T.scalar_math("exp32", 0.0) == 1.0 and T.scalar_math("exp32", -87.0) == 0.0
    for x in [*rng.uniform(1e-12, 1, 200), 5e-324, 1e300]:
        assert abs(T.scalar_math("log64", x) - np.log(x)) <= 4e-16 * max(1, abs(np.log(x)))
    for x in [*np.logspace(-37.9, 38, 300), *rng.uniform(0.5, 2, 300), 1.0, 2.0**-126]:
        exact = np.log(np.float64(np.float32(x)))
        assert abs(T.scalar_math("log32", x) - exact) <= 2 * np.spacing(np.float32(abs(exact))) + 2.0**-25 * abs(exact)
    for v in [0.5 * 2.0**-32, 1e-9, 1e-3, 0.5, 1 - 2.0**-24]:
        assert abs(T.scalar_math("log1p64", -v) - np.log1p(-v)) <= 4e-16 * max(abs(np.log1p(-v)), 1e-3 * v)
    for x in [0.0, 1e-8, *rng.uniform(0, 1e5, 300)]:
        sine, cosine = T.scalar_math("sincos", x)
        assert abs(sine - np.sin(x)) < 1e-15 and abs(cosine - np.cos(x)) < 1e-15


def test_every_table_has_every_op() -> None:
    """Each op above runs over every table that the machine has; the count is that of the kernel table's entries."""
    import re

    header = (ROOT / "csrc/kernels/dispatch/kernel_table.h").read_text()
    kernels = set(re.findall(r"^  X\((\w+),", header, re.MULTILINE))
    tested = {
        "quantize_rows",
        "linear_quantized",
        "linear_float",
        "linear_bf16",  # test_bf16_layers.py, as the next
        "round_bf16",
        "embedding",
        "norm",  # test_row_ops.py, as the next
        "rope",
        "activate",
        "add_scaled",
        "scale",
        "gate",
        "conv_step",  # models/test_state_cards.py
        "recurrence_factors",  # test_recurrence.py
        "recurrence_step",
        "kv_write",
        "attention",
        "bound_scores",  # test_picked_attention.py
        "attention_span",
        "attention_merge",
        "max_chunk",
        "probe_fma",
        "probe_bf16",
        "probe_dots",
        "race_candidates",
        "softmax_chunk",
        "token_masses",
        "mass_moments",
        "divergence_chunk",
        "ids_from",  # test_top_candidates.py
        "route",  # test_experts.py
    }
    assert kernels == tested


@pytest.mark.skipif(
    shutil.which("c++") is None or not (ROOT / "csrc").is_dir(), reason="no compiler, or the sources are not beside the tests"
)
@pytest.mark.skipif("avx_vnni" in _core.system_info()["tables"], reason="the other tests of this file run the kernels themselves")
@pytest.mark.skipif("avx512" not in _core.system_info()["tables"], reason="what stands for AVX-VNNI is a form of AVX-512")
def test_avx_vnni_by_the_form_of_avx512(tmp_path: Path) -> None:
    """Few machines have AVX-VNNI alone: its kernels, built for AVX-512's form of the one instruction, give the reference's bits."""
    cpu = "csrc/kernels/cpu"
    vnni = ["-mavx2", "-mfma", "-mf16c", "-mbmi2", "-mavx512vl", "-mavx512vnni"]
    sources = {
        f"{cpu}/avx_vnni/kernels.cc": vnni,
        f"{cpu}/reference/linear.cc": [],
        f"{cpu}/reference/quantize_rows.cc": [],
        "tests/native/vnni_form.cc": [],
    }
    objects = []
    for source, flags in sources.items():
        objects.append(str(tmp_path / f"{len(objects)}.o"))
        command = [
            "c++",
            "-std=c++20",
            "-O2",
            "-ffp-contract=off",
            "-Wall",
            *flags,
            f"-I{ROOT / 'csrc'}",
            "-c",
            str(ROOT / source),
            "-o",
            objects[-1],
        ]
        subprocess.run(command, check=True)
    subprocess.run(["c++", *objects, "-o", str(tmp_path / "vnni_form")], check=True)
    assert subprocess.run([str(tmp_path / "vnni_form")], capture_output=True, text=True, check=False).stdout == "108000 equal\n"
