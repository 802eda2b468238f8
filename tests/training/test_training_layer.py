"""The hand-written backward pass against finite differences, and the forward pass against a walk over single positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from llmi.training.layer import Roll, Shape, angles, grid_of, rotate

F64 = NDArray[np.float64]
SHAPE = Shape(8, 12, 4, 2, 4, 100.0, 1e-5)
PARTS = np.array([[0, 0, 0, 0, 1, 1, 1], [2, 2, 2, 2, 2, 2, 3]])
POSITIONS = np.array([[0, 1, 2, 3, 5, 6, 7], [0, 1, 2, 3, 4, 5, 0]])
GAIN = 3.0
#: Places with an output, depth by depth: each among those of the depth before.
PLACES = [np.array([1, 2, 3, 5, 6, 8, 9, 10, 11, 13]), np.array([1, 2, 5, 8, 9, 10]), np.array([1, 8, 9])]


def weights_of(seed: int) -> dict[str, F64]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) * 0.5 for name, shape in SHAPE.parameters().items()}


def inputs_of(seed: int) -> tuple[F64, list[F64]]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((PARTS.size, 8)), [rng.standard_normal((PARTS.size, 8)) * 0.3 for _ in PLACES]


def run(weights: dict[str, F64], num_depths: int) -> Roll:
    hidden, embeddings = inputs_of(1)
    roll = Roll(SHAPE, weights, grid_of(PARTS, POSITIONS, np.float64), GAIN)
    out = roll.forward(hidden, embeddings[0], PLACES[0], PLACES[0])
    for depth in range(1, num_depths):
        places = PLACES[depth]
        before = np.searchsorted(PLACES[depth - 1], places)
        out = roll.forward(out[before], embeddings[depth][places], places, np.arange(len(places)))
    return roll


def loss_of(roll: Roll, targets: list[F64]) -> float:
    return float(sum(np.sum(at.out * target) for at, target in zip(roll.depths, targets, strict=True)))


@pytest.mark.parametrize("num_depths", [1, 2, 3])
def test_gradients_are_finite_differences(num_depths: int) -> None:
    weights = weights_of(0)
    rng = np.random.default_rng(2)
    targets = [rng.standard_normal((len(places), 8)) for places in PLACES[:num_depths]]
    gradients = {name: np.zeros_like(value) for name, value in weights.items()}
    run(weights, num_depths).backward(targets, gradients)
    step = 1e-6
    for name, value in weights.items():
        for flat in rng.choice(value.size, min(12, value.size), replace=False):
            place = np.unravel_index(flat, value.shape)
            losses = []
            for sign in (1, -1):
                moved = {**weights, name: value.copy()}
                moved[name][place] += sign * step
                losses.append(loss_of(run(moved, num_depths), targets))
            difference = (losses[0] - losses[1]) / (2 * step)
            assert gradients[name][place] == pytest.approx(difference, rel=1e-6, abs=1e-7), (name, place)


def walk(weights: dict[str, F64], place: int, depth: int) -> F64:
    """The layer as an engine runs it: one position after the other, keys kept, then drafted positions behind them."""
    row, column = divmod(place, PARTS.shape[1])
    start = int(np.flatnonzero(PARTS[row] == PARTS[row, column])[0])
    hidden, embeddings = inputs_of(1)
    keys: list[F64] = []
    values: list[F64] = []
    steps = [(row * PARTS.shape[1] + at, 0) for at in range(start, column + 1)] + [(place, at) for at in range(1, depth + 1)]
    out = np.zeros(8)
    for at, number in steps:
        x = weights["fc"] @ np.concatenate([GAIN * embeddings[number][at], hidden[at] if number == 0 else out])
        cos, sin = angles(SHAPE, np.array([POSITIONS.reshape(-1)[at] + number]), np.float64)
        turn: Callable[[F64], F64] = lambda heads, cos=cos, sin=sin: rotate(heads[None], cos, sin)[0]  # noqa: E731
        key_value = (weights["kv"] @ x).reshape(4, 4)
        keys.append(turn(key_value[:2]))
        values.append(key_value[2:])
        context = []
        for head, query in enumerate(turn((weights["q"] @ x).reshape(4, 4))):
            scores = np.array([key[head // 2] @ query for key in keys]) / 2.0
            probs = np.exp(scores - scores.max())
            context.append(sum(p * value[head // 2] for p, value in zip(probs / probs.sum(), values, strict=True)))
        y = x + weights["o"] @ np.concatenate(context)
        z = y / np.sqrt(np.mean(y * y) + SHAPE.rms_norm_eps) * weights["norm"]
        gate, up = np.split(weights["gate_up"] @ z, 2)
        out = y + weights["down"] @ (gate / (1 + np.exp(-gate)) * up)
    return out


def test_the_batch_computes_what_a_walk_over_positions_does() -> None:
    weights = weights_of(3)
    roll = run(weights, 3)
    for depth, at in enumerate(roll.depths):
        for place, out in zip(at.places, at.out, strict=True):
            np.testing.assert_allclose(out, walk(weights, int(place), depth), rtol=1e-10, atol=1e-12)
