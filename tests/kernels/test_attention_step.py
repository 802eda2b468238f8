"""attention_step on devices: norms of heads, rotation, cache write, attention, gate and codes have the reference's bits, in one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from features import DEVICES, has_bits_of_its_own
from llmi import _core
from test_attention import KV_DTYPES, TREES, Array, qkv

T = _core.testing

CASES = [  # slots, rows, heads, kv_heads, head_dim, rotary_dim, window, parents
    (1, 1, 1, 1, 16, 16, 0, None),
    (300, 1, 4, 1, 128, 128, 0, None),
    (257, 1, 4, 2, 64, 64, 0, None),  # alone in its span
    (515, 4, 8, 2, 32, 20, 0, None),  # new rows in two spans
    (530, 32, 6, 3, 48, 48, 64, None),
    (40, 32, 2, 2, 16, 2, 9, None),
    (260, 5, 16, 1, 144, 64, 0, None),
    (270, 3, 5, 1, 576, 576, 0, None),
    (20, 20, 7, 1, 272, 272, 0, None),
    (1030, 2, 4, 2, 256, 128, 512, None),
    (250 + 9, 9, 4, 2, 32, 32, 0, TREES[0]),
    (5 + 19, 19, 4, 2, 64, 32, 7, TREES[3]),
    (250 + 32, 32, 3, 1, 32, 32, 0, [(i - 1) // 2 if i % 5 else i - 1 for i in range(32)]),
    (300, 33, 4, 2, 32, 32, 0, None),  # heads in a launch of their own
    (400, 100, 4, 2, 32, 32, 0, None),  # over a bf16 or fp16 cache some groups are taken whole
]


def options_of(case: tuple[Any, ...], which: str, seed: int = 7) -> dict[str, Any]:
    _, rows, heads, _, head_dim, rotary_dim, window, parents = case
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 6.3, (rows, rotary_dim // 2))
    options: dict[str, Any] = {"scale": head_dim**-0.5, "window": window, "parents": parents}
    if which != "plain":
        options |= {"cosine": np.cos(angle).astype(np.float32), "sine": np.sin(angle).astype(np.float32)}
    if which in ("all", "norms"):
        options |= {name: rng.uniform(0.5, 2, head_dim).astype(np.float32) for name in ("query_norm", "key_norm")}
    if which == "all":
        options["factors"] = rng.uniform(1, 2, rows).astype(np.float32)
        options["gate"] = rng.standard_normal((rows, heads if seed % 2 else heads * head_dim)).astype(np.float32)
    if heads * head_dim % 32 == 0:
        options["bits"] = 16 if which == "all" else 8
    return options


def launches(name: str) -> int:
    return sum(count for kernel, count in T.device_work()["kernels"].items() if kernel.partition("<")[0] == name)


@pytest.mark.parametrize("which", ["plain", "rope", "norms", "all"])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_a_step_has_the_bits_of_its_ops(device: str, case: tuple[Any, ...], kv_dtype: str, which: str) -> None:
    slots, rows, heads, kv_heads, head_dim = case[:5]
    given = (*qkv(slots, rows, heads, kv_heads, head_dim), heads, kv_heads)
    options = options_of(case, which, seed=slots) | {"kv_dtype": kv_dtype}
    names = ("HeadsKernel", "QuantizeRowsKernel", "GateKernel", "RopeKernel", "NormKernel", "KvWriteKernel")
    before = {name: launches(name) for name in names}
    out, again, codes = T.attention_step(device, *given, **options)
    seen = {name: launches(name) - before[name] for name in names}
    expected, _, expected_codes = T.attention_step("reference", *given, **options)
    if "gate" not in options:
        assert_same_bits(out, again)  # the cache holds what was seen
    if not has_bits_of_its_own(device, kv_dtype):
        assert_same_bits(out, expected)
        for own, wanted in zip(codes or (), expected_codes or (), strict=True):
            assert own.tobytes() == wanted.tobytes()
    if device == "emulated":
        at_once = rows <= 32
        ends_apart = (heads // kv_heads * head_dim % 32 != 0 and "bits" in options) or (kv_dtype in ("bfloat16", "float16") and rows == 100)
        assert seen["HeadsKernel"] == (not at_once)
        assert seen["QuantizeRowsKernel"] == (ends_apart and "bits" in options) and seen["GateKernel"] == (ends_apart and "gate" in options)
        # The rest is what the test does itself: it fills the cache before, and makes the heads again.
        assert seen["KvWriteKernel"] == (slots > rows) and seen["RopeKernel"] == ("cosine" in options)
        assert seen["NormKernel"] == 2 * ("query_norm" in options)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_queries_are_kept_where_they_are_read_again(kv_dtype: str) -> None:
    case = CASES[3]
    given = (*qkv(*case[:5]), *case[2:4])
    options = options_of(case, "norms") | {"kv_dtype": kv_dtype, "keeps_queries": True}
    before = launches("HeadsKernel")
    out, again, _ = T.attention_step("emulated", *given, **options)
    assert launches("HeadsKernel") == before + 1
    assert_same_bits(out, again)
    assert_same_bits(out, T.attention_step("reference", *given, **options)[0])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_finite_stays_in_its_row(device: str, kv_dtype: str) -> None:
    """In a draft's tree, NaN in K or V of a node reaches those rows alone that see it."""
    case = CASES[10]
    slots, rows, heads, kv_heads, head_dim = case[:5]
    q, k, v = qkv(slots, rows, heads, kv_heads, head_dim)
    options = options_of(case, "rope") | {"kv_dtype": kv_dtype}
    clean = T.attention_step(device, q, k, v, heads, kv_heads, **options)[0].reshape(rows, -1)
    k[slots - rows + 2, 5], v[slots - rows + 6] = np.nan, np.inf
    spoilt: Array = T.attention_step(device, q, k, v, heads, kv_heads, **options)[0].reshape(rows, -1)
    hit = {2, 5, 6, 7, 8}  # the nodes 2 and 6, and those below them
    for row in range(rows):
        if row in hit:
            assert not np.isfinite(spoilt[row]).all(), row
        else:
            assert_same_bits(spoilt[row], clean[row], row)
