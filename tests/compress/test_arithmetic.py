"""The arithmetic of llmi.compress against its definition, written as loops."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from llmi import InvalidParamsError
from llmi.compress import absmax_quantize, kl_threshold, pool_kv_heads, prune_mask

RNG = np.random.default_rng(5)
NAN = float("nan")


def rounded(value: Fraction) -> int:
    """The nearest whole number, ties to even."""
    return round(value)


@pytest.mark.parametrize("granularity", ["tensor", "channel", 4, 8, 16])
@pytest.mark.parametrize("bits", [2, 3, 5, 8])
def test_absmax(bits: int, granularity: Any) -> None:
    x = RNG.standard_normal((6, 16)).astype(np.float32)
    x[2] = 0
    x[4, :] = np.arange(16) * 0.5  # ties
    most = 2 ** (bits - 1) - 1
    size = {"tensor": 96, "channel": 16}.get(granularity, granularity)
    scales, codes = [], []
    for group in x.reshape(-1, size):
        largest = float(np.abs(group).max())
        scales.append(np.float32(largest / most))
        codes += [rounded(Fraction(most * float(value) / largest)) if largest else 0 for value in group]
    found = absmax_quantize(x, bits=bits, granularity=granularity)
    assert found.codes.dtype == np.int8 and found.scales.dtype == np.float32
    assert found.codes.reshape(-1).tolist() == codes and found.scales.tolist() == scales
    values = [np.float32(code) * scales[index // size] for index, code in enumerate(codes)]
    assert found.dequantize().dtype == np.float32 and found.dequantize().reshape(-1).tolist() == values


def threshold_by_loops(counts: list[int], levels: int) -> int:
    best, chosen = math.inf, 0
    for kept in range(levels, len(counts) + 1):
        law = [float(count) for count in counts[:kept]]
        law[-1] += sum(counts[kept:])
        groups: dict[int, list[int]] = {}
        for index in range(kept):
            groups.setdefault(index * levels // kept, []).append(index)
        spread = [0.0] * kept
        for members in groups.values():
            held = [index for index in members if counts[index]]
            for index in held:
                spread[index] = sum(counts[member] for member in members) / len(held)
        total, others = sum(law), sum(spread)
        divergence = sum(
            p / total * math.log(p / total / max(q / others if others else 0.0, 1e-12)) for p, q in zip(law, spread, strict=True) if p
        )
        if divergence < best - 1e-12:
            best, chosen = divergence, kept
    return chosen


@pytest.mark.parametrize("levels", [1, 4, 7, 16])
def test_the_threshold_of_least_divergence(levels: int) -> None:
    found = set()
    for _ in range(40):
        counts = np.histogram(np.abs(RNG.standard_t(3, 400)), int(RNG.integers(levels, 64)))[0]
        found.add(kl_threshold(counts, num_levels=levels))
        assert kl_threshold(counts, num_levels=levels) == threshold_by_loops(counts.tolist(), levels)
    assert len(found) > 1 or levels == 1
    assert kl_threshold([3, 0, 5, 0, 0, 0, 0, 0], num_levels=3) == 3  # a tie: the fewest
    assert kl_threshold([0, 0, 0, 9], num_levels=2) == 4


def mask_by_loops(w: Any, sparsity: float | None, pattern: tuple[int, int] | None, norms: Any) -> list[list[bool]]:
    rows, columns = w.shape
    score = {(r, c): abs(float(w[r, c])) * (1.0 if norms is None else float(norms[c])) for r in range(rows) for c in range(columns)}
    if pattern is not None:
        kept, size = pattern
        groups = [[(r, c + k) for k in range(size)] for r in range(rows) for c in range(0, columns, size)]
        gone = size - kept
    else:
        assert sparsity is not None
        groups = [list(score)] if norms is None else [[(r, c) for c in range(columns)] for r in range(rows)]
        gone = math.floor(sparsity * len(groups[0]))
    lost = {place for group in groups for place in sorted(group, key=lambda place: (score[place], -place[0], -place[1]))[:gone]}
    return [[(r, c) not in lost for c in range(columns)] for r in range(rows)]


@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("wanted", [0.0, 0.3, 0.5, 0.99, 1.0, "2:4", "4:8", "1:2", "3:4"])
def test_masks(wanted: Any, with_norms: bool) -> None:
    w = RNG.integers(-3, 4, (5, 16)).astype(np.float32)  # ties everywhere
    norms = RNG.integers(0, 3, 16) if with_norms else None
    pattern = wanted if isinstance(wanted, str) else None
    sparsity = None if isinstance(wanted, str) else wanted
    given = None if pattern is None else tuple(map(int, pattern.split(":")))
    found = prune_mask(w, sparsity=sparsity, pattern=pattern, input_norms=norms)
    assert found.dtype == np.bool_
    assert found.tolist() == mask_by_loops(w, sparsity, given, norms)  # type: ignore[arg-type]


def test_heads_become_the_mean_of_neighbours() -> None:
    w = RNG.standard_normal((12, 5)).astype(np.float32)
    found = pool_kv_heads(w, num_kv_heads=6, to=2)
    heads = w.astype(np.float64).reshape(6, 2, 5)
    for head in range(2):
        want = sum(heads[3 * head : 3 * head + 3]) / 3
        assert (found.reshape(2, 2, 5)[head] == want.astype(np.float32)).all()
    assert found.dtype == np.float32 and (pool_kv_heads(w, num_kv_heads=6, to=6) == w).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: absmax_quantize([[1.0]], bits=1), "bits must be an integer in"),
        (lambda: absmax_quantize([[1.0]], bits=9), "bits"),
        (lambda: absmax_quantize([[1.0]], bits=8.0), "bits"),  # type: ignore[arg-type]
        (lambda: absmax_quantize([1.0]), "rows, columns"),
        (lambda: absmax_quantize(np.zeros((0, 4))), "at least one"),
        (lambda: absmax_quantize([[1.0, NAN]]), r"x\[0, 1\] is nan"),
        (lambda: absmax_quantize([[math.inf]]), "finite"),
        (lambda: absmax_quantize([[1e300]]), "beyond"),
        (lambda: absmax_quantize([[1e308]]), "beyond"),
        (lambda: absmax_quantize([["a"]]), "numbers"),
        (lambda: absmax_quantize([[1.0, 2.0, 3.0]], granularity=2), "do not divide"),
        (lambda: absmax_quantize([[1.0]], granularity=0), "granularity"),
        (lambda: absmax_quantize([[1.0]], granularity="row"), "granularity"),
        (lambda: kl_threshold([1, 2], num_levels=3), "fewer than"),
        (lambda: kl_threshold([1, -2, 3], num_levels=2), "negative"),
        (lambda: kl_threshold([0, 0, 0], num_levels=2), "empty"),
        (lambda: kl_threshold([1, NAN, 3], num_levels=2), "nan"),
        (lambda: kl_threshold([1, 2], num_levels=0), "num_levels"),
        (lambda: kl_threshold([[1, 2]], num_levels=1), "num_bins"),
        (lambda: prune_mask([[1.0]]), "one of the two"),
        (lambda: prune_mask([[1.0, 2.0]], sparsity=0.5, pattern="1:2"), "one of the two"),
        (lambda: prune_mask([[1.0]], sparsity=1.01), "a share in"),
        (lambda: prune_mask([[1.0]], sparsity=-0.1), "a share in"),
        (lambda: prune_mask([[1.0]], sparsity=NAN), "a share in"),
        (lambda: prune_mask([[1.0, 2.0, 3.0]], pattern="2:4"), "do not divide"),
        (lambda: prune_mask([[1.0, 2.0]], pattern="3:2"), "N below M"),
        (lambda: prune_mask([[1.0, 2.0]], pattern="2"), "N below M"),
        (lambda: prune_mask([[NAN]], sparsity=0.5), "nan"),
        (lambda: prune_mask([[1.0, 2.0]], sparsity=0.5, input_norms=[1.0]), "2 columns"),
        (lambda: prune_mask([[1.0, 2.0]], sparsity=0.5, input_norms=[1.0, -1.0]), "negative"),
        (lambda: prune_mask([[1.0, 2.0]], sparsity=0.5, input_norms=[1.0, NAN]), "nan"),
        (lambda: pool_kv_heads([[1.0], [2.0]], num_kv_heads=2, to=0), "to must be"),
        (lambda: pool_kv_heads([[1.0], [2.0]], num_kv_heads=2, to=4), "does not divide"),
        (lambda: pool_kv_heads(np.ones((6, 1)), num_kv_heads=6, to=4), "does not divide num_kv_heads"),
        (lambda: pool_kv_heads(np.ones((5, 1)), num_kv_heads=2, to=1), "does not divide the 5 rows"),
    ],
)
def test_what_cannot_be(call: Any, says: str) -> None:
    with pytest.raises(InvalidParamsError, match=says):
        call()
