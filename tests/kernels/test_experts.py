"""The steps of a layer with experts: the router beside NumPy in float64, the groups of rows beside single linear layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmi import _core
from quantization import random_blocks

T = _core.testing
Array = np.ndarray[Any, Any]


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def ranked(values: Array) -> Array:
    """Places by value, descending, then by number."""
    return np.lexsort((np.arange(len(values)), -values))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    result: Array = e / e.sum()
    return result


def mixed(logits: Array, threshold: float) -> tuple[Array, Array]:
    """The sparse mixer's two experts, one after the other."""
    taken, weights = [], []
    for _ in range(2):
        left = np.where(np.isin(np.arange(len(logits)), taken), -np.inf, logits)
        best = ranked(left)[0]
        near = (left[best] - logits) / np.maximum(np.abs(logits), left[best]) <= threshold
        weights.append(softmax(np.where(near, left, -np.inf))[best])
        taken.append(best)
    order = np.argsort(taken)
    return np.array(taken)[order], np.array(weights)[order]


def routed(logits: Array, used: int, **fields: Any) -> tuple[Array, Array]:
    """What route.h says, of one row in float64."""
    x = logits.astype(np.float64)
    score = fields.get("score", "softmax")
    if score == "sparse_mixer":
        return mixed(x, fields["mixer_threshold"])
    scores = {"softmax": lambda: softmax(x), "sigmoid": lambda: 1 / (1 + np.exp(-x)), "softmax_chosen": lambda: x}[score]()
    keys = scores + fields.get("choice_bias", 0.0)
    groups = keys.reshape(fields.get("num_groups", 1), -1)
    best = np.sort(groups, -1)[:, -(2 if fields.get("group_score") == "top2" else 1) :].sum(-1)
    stays = np.isin(np.arange(len(groups)), ranked(best)[: fields.get("used_groups", 1)])
    keys = np.where(stays[:, None], groups, -np.inf).ravel()
    chosen = np.sort(ranked(keys)[:used])
    weights = softmax(x[chosen]) if score == "softmax_chosen" else scores[chosen]
    if fields.get("renormalise"):
        weights = weights / (max(weights.sum(), fields.get("least_sum", 0.0)) + fields.get("sum_epsilon", 0.0))
    return chosen, weights * fields.get("factor", 1.0)


BIAS = rand(24, seed=5, scale=0.2)
ROUTERS: dict[str, dict[str, Any]] = {
    "softmax": {"num_used": 4},
    "renormalised": {"num_used": 4, "renormalise": True, "factor": 2.5},
    "chosen": {"num_used": 3, "score": "softmax_chosen"},
    "sigmoid": {"num_used": 8, "score": "sigmoid", "renormalise": True, "sum_epsilon": 1e-6},
    "biased": {"num_used": 4, "choice_bias": BIAS, "renormalise": True, "least_sum": 0.9},
    "groups": {"num_used": 3, "num_groups": 6, "used_groups": 2},
    "groups of two": {
        "num_used": 6,
        "score": "sigmoid",
        "choice_bias": BIAS,
        "num_groups": 4,
        "used_groups": 2,
        "group_score": "top2",
        "renormalise": True,
    },
    "groups of one": {"num_used": 3, "num_groups": 24, "used_groups": 5, "group_score": "top2"},
    "mixer": {"num_used": 2, "score": "sparse_mixer", "mixer_threshold": 0.5},
    "all": {"num_used": 24},
}


@pytest.mark.parametrize("name", ROUTERS)
def test_route(table: str, name: str) -> None:
    fields, logits = ROUTERS[name], rand(50, 24, scale=2.0)
    experts, weights = T.route(table, logits, **fields)
    assert all(
        one.tobytes() == other.tobytes() for one, other in zip((experts, weights), T.route("reference", logits, **fields), strict=True)
    )
    used = fields["num_used"]
    for row, (own_experts, own_weights) in enumerate(zip(experts.reshape(50, used), weights.reshape(50, used), strict=True)):
        wanted = routed(logits[row], used, **{key: value for key, value in fields.items() if key != "num_used"})
        assert own_experts.tolist() == wanted[0].tolist()
        assert np.allclose(own_weights, wanted[1], rtol=2e-6)


def test_equal_scores_go_by_number() -> None:
    """Of experts, and of groups."""
    logits = np.zeros((1, 24), np.float32)
    assert T.route("", logits, num_used=3)[0].tolist() == [0, 1, 2]
    logits[0, [7, 20]] = 1.0
    assert T.route("", logits, num_used=3)[0].tolist() == [0, 7, 20]
    assert T.route("", logits, num_used=4, num_groups=4, used_groups=2)[0].tolist() == [6, 7, 8, 20]
    logits[0, :] = 0.0
    assert T.route("", logits, num_used=4, num_groups=4, used_groups=1)[0].tolist() == [0, 1, 2, 3]
    assert T.route("", logits, num_used=2, score="sparse_mixer", mixer_threshold=0.1)[0].tolist() == [0, 1]


@pytest.mark.parametrize("name", ["softmax", "chosen", "sigmoid", "mixer"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_has_weights_of_nan(name: str, value: float) -> None:
    """And no other row."""
    fields, logits = ROUTERS[name], rand(3, 24)
    clean = T.route("", logits, **fields)[1].reshape(3, -1)
    logits[1, 5] = value
    experts, weights = (values.reshape(3, -1) for values in T.route("", logits, **fields))
    if not (name == "softmax" and value == -np.inf):  # an expert that has probability 0
        assert np.isnan(weights[1]).all() and experts[1].tolist() == list(range(fields["num_used"]))
    assert weights[::2].tobytes() == clean[::2].tobytes()


@pytest.mark.parametrize(
    "fields",
    [
        {"num_used": 25},
        {"num_used": 0},
        {"num_used": 4, "num_groups": 5},
        {"num_used": 7, "num_groups": 4, "used_groups": 1},
        {"num_used": 2, "num_groups": 2, "used_groups": 3},
        {"num_used": 3, "score": "sparse_mixer"},
    ],
)
def test_what_cannot_be_routed(fields: dict[str, Any]) -> None:
    with pytest.raises(_core.CoreError):
        T.route("", rand(1, 24), **fields)


# 40 rows of an expert are no whole tiles; 130 rows of x are more than are multiplied at once.
@pytest.mark.parametrize(("dtype", "bits"), [("F32", 8), ("BF16", 8), ("Q4_0", 8), ("Q4_0", 16), ("Q6_K", 16)])
@pytest.mark.parametrize(("num_rows", "num_experts", "size"), [(1, 7, 40), (3, 64, 16), (130, 5, 40)])
def test_experts_have_the_bits_of_linear_layers(table: str, dtype: str, bits: int, num_rows: int, num_experts: int, size: int) -> None:
    """Each row alone through each of its experts, added by fma in their order."""
    rng = np.random.default_rng(num_rows)
    data, cols = random_blocks(dtype, num_experts * size, 256), 256
    x, bias = rand(num_rows, cols), rand(num_experts * size, seed=1)
    chosen = np.sort(np.argsort(rng.random((num_rows, num_experts)), -1)[:, :3], -1).astype(np.int32)
    weights = rand(num_rows, 3, seed=2)
    block = len(data) // num_experts
    matrices = [T.PackedMatrix(table, dtype, data[e * block : (e + 1) * block], size, cols) for e in range(num_experts)]
    wanted = np.zeros((num_rows, size), np.float32)
    for row in range(num_rows):
        for expert, weight in zip(chosen[row], weights[row], strict=True):
            part = bias[expert * size : (expert + 1) * size].tolist()
            value = T.linear(table, [matrices[expert]], x[row : row + 1], biases=[part], bits=bits)[0]
            wanted[row] = (np.float64(weight) * value + wanted[row]).astype(np.float32)  # fma: one rounding
    for threads in (1, 3):
        got = T.mix_experts(table, dtype, data, bias, x, chosen, weights, num_experts, num_threads=threads, bits=bits)
        assert got.tobytes() == wanted.tobytes()
    assert T.mix_experts(table, dtype, data, None, x, chosen, weights, num_experts, bits=bits).tobytes() != wanted.tobytes()
