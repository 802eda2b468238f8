"""Parts of training, each against its definition: loss, optimizer, batches, plan, coupled noise, overlap of texts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from llmi.training import acceptance as acceptance_module
from llmi.training.acceptance import acceptance
from llmi.training.data import Data
from llmi.training.eagle import DISCOUNT, EagleModel, depths_at, places_of
from llmi.training.layer import Roll, Shape
from llmi.training.losses import KEPT, Head, divergence, laws_of
from llmi.training.medusa import MedusaModel
from llmi.training.optimizer import BETAS, EPSILON, LEAST, WARM_UP, AdamW, rate
from llmi.training.packing import ROW_LEN, batches, pack_in_order, parts_of
from llmi.training.plan import steps_in, training_s, turns_for
from llmi.training.text import Text

F64 = NDArray[np.float64]
SHAPE = Shape(16, 24, 2, 1, 8, 100.0, 1e-5)


def text_of(lengths: list[tuple[int, int]], seed: int, vocab_size: int = 40) -> Text:
    rng = np.random.default_rng(seed)
    return Text.of(
        [
            (number, rng.integers(0, vocab_size, prompt).tolist(), rng.integers(0, vocab_size, answer).tolist(), number % 2 == 1)
            for number, (prompt, answer) in enumerate(lengths)
        ]
    )


def data_of(text: Text, seed: int, vocab_size: int = 40) -> Data:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((len(text.token_ids), 16)).astype(np.float16)
    head = Head(rng.standard_normal((vocab_size, 16)).astype(np.float32))
    lengths = np.diff(text.offsets)
    positions = np.arange(len(rows)) - np.repeat(text.offsets[:-1], lengths)
    teaches = positions >= np.repeat(text.prompt_lens, lengths) - 1
    embeddings = rng.standard_normal((vocab_size, 16)).astype(np.float32)
    return Data(
        text,
        rows,
        np.arange(vocab_size, dtype=np.int32),
        head,
        laws_of(head, rows[teaches]),
        np.where(teaches, np.cumsum(teaches) - 1, -1),
        embeddings,
        text.token_ids.astype(np.int64),
        positions,
        np.repeat(text.offsets[1:], lengths),
        1.0,
    )


@pytest.mark.parametrize(("scale", "cap"), [(1.0, 0.0), (0.5, 0.0), (1.0, 3.0), (2.0, 4.0)])
def test_divergence_and_its_gradient(scale: float, cap: float) -> None:
    rng = np.random.default_rng(0)
    head = Head(rng.standard_normal((90, 6)), scale, cap)
    rows, target = rng.standard_normal((5, 6)), rng.standard_normal((5, 6))
    logits = head.logits(target)
    law = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    tokens = np.sort(np.argsort(-law, axis=1)[:, :KEPT], axis=1).astype(np.uint16)
    probs = np.take_along_axis(law, tokens.astype(np.int64), axis=1)

    def defined(moved: F64) -> float:
        own = head.logits(moved)
        draft = np.exp(own) / np.exp(own).sum(axis=1, keepdims=True)
        kept = np.take_along_axis(draft, tokens.astype(np.int64), axis=1)
        rest, own_rest = 1 - probs.sum(axis=1), 1 - kept.sum(axis=1)
        return float(np.sum(probs * np.log(probs / kept)) + np.sum(rest * np.log(rest / own_rest)))

    total, gradient = divergence(head, rows, tokens, probs, 0.25)
    assert total == pytest.approx(defined(rows), rel=1e-9)
    assert divergence(head, target, tokens, probs, 1.0)[0] == pytest.approx(0.0, abs=1e-9)
    for row, column in [(0, 0), (1, 4), (4, 5)]:
        step = np.zeros_like(rows)
        step[row, column] = 1e-6
        difference = 0.25 * (defined(rows + step) - defined(rows - step)) / 2e-6
        assert gradient[row, column] == pytest.approx(difference, rel=1e-6, abs=1e-9)


def test_adamw_is_its_formula() -> None:
    rng = np.random.default_rng(1)
    vector = rng.standard_normal(50).astype(np.float32)
    expected, first, second = vector.astype(np.float64), np.zeros(50), np.zeros(50)
    optimizer = AdamW(vector, decay=0.1)
    for step in range(1, 6):
        gradient = rng.standard_normal(50).astype(np.float32)
        norm = float(np.linalg.norm(gradient))
        cut = gradient.astype(np.float64) / max(1.0, norm)
        first, second = BETAS[0] * first + (1 - BETAS[0]) * cut, BETAS[1] * second + (1 - BETAS[1]) * cut**2
        expected *= 1 - 0.01 * 0.1
        expected -= 0.01 * (first / (1 - BETAS[0] ** step)) / (np.sqrt(second / (1 - BETAS[1] ** step)) + EPSILON)
        assert optimizer.update(gradient, 0.01) == pytest.approx(norm, rel=1e-6)
    np.testing.assert_allclose(vector, expected, rtol=1e-5, atol=1e-6)


def test_the_rate_warms_up_and_falls_to_its_least() -> None:
    rates = [rate(step, 400, 2.0) for step in range(400)]
    assert rates[0] == pytest.approx(2.0 / WARM_UP, rel=1e-3) and np.argmax(rates) == WARM_UP - 1
    assert rates[-1] == pytest.approx(2.0 * LEAST, rel=0.01) and all(np.diff(rates[WARM_UP:]) < 0)


def test_an_epoch_has_each_token_once() -> None:
    text = text_of([(5, 30), (10, 400), (3, 120), (40, 215), (7, 90), (2, 3)], 0)
    parts = parts_of(text.offsets)
    assert (parts[:, 1] - parts[:, 0]).max() <= ROW_LEN
    for source in (pack_in_order(text.offsets), itertools.islice(batches(parts, 3), 4)):
        seen = np.concatenate([tokens[tokens >= 0] for tokens, _ in source])
        counts = np.bincount(seen[: len(text.token_ids) - 5], minlength=len(text.token_ids))
        assert counts[:-5].max() == 1 and counts[-5:].sum() == 0, "the sequence of five tokens is too short"
    assert all((a == b).all() for a, b in zip(next(batches(parts, 3)), next(batches(parts, 3)), strict=True))


def test_places_teach_what_they_can_see() -> None:
    data = data_of(text_of([(4, 9), (6, 5)], 0), 0)
    tokens, _ = next(pack_in_order(data.text.offsets))
    for depth, at in enumerate(places_of(tokens, data, 3)):
        expected = [2 + first for first in range(13 - 3 - depth)] + [13 + 4 + first for first in range(11 - 5 - depth)]
        assert at.tokens.tolist() == expected, "the law after t + 1 + depth is the sequence's, that after t + 1 the answer's"
        assert (tokens.reshape(-1)[at.places] == at.tokens).all()


def test_the_gradient_of_medusa_heads() -> None:
    data = data_of(text_of([(4, 20), (6, 15)], 0), 0)
    tokens, parts = next(pack_in_order(data.text.offsets))
    model = MedusaModel(16)
    rng = np.random.default_rng(4)
    model.vector[:] = rng.standard_normal(len(model.vector)) * 0.1
    gradient = np.empty_like(model.vector)
    model.loss(tokens, parts, data, 1, gradient)
    way = rng.standard_normal(len(model.vector)).astype(np.float32)
    start, losses = model.vector.copy(), []
    for sign in (1, -1):
        model.vector[:] = start + np.float32(sign * 1e-2 / np.linalg.norm(way)) * way
        losses.append(sum(DISCOUNT**depth * loss for depth, loss in enumerate(model.loss(tokens, parts, data, 1, None))))
    assert (losses[0] - losses[1]) / 2e-2 * np.linalg.norm(way) == pytest.approx(float(gradient @ way), rel=0.02)


def test_unrolling_grows() -> None:
    depths = [depths_at(step, 100) for step in range(100)]
    assert depths == sorted(depths) and set(depths) == {1, 2, 3}
    seconds = (1.0, 2.0, 3.0)
    assert training_s(100, seconds) == sum(seconds[depth - 1] for depth in depths)


@pytest.mark.parametrize("seconds", [0.0, 10.0, 700.0, 40000.0])
def test_as_many_steps_as_fit(seconds: float) -> None:
    step_s, row_s = (0.3, 0.5, 0.7), 0.02
    steps = steps_in(seconds, step_s, row_s)
    assert steps == 0 or turns_for(steps) * row_s + training_s(steps, step_s) <= seconds
    assert turns_for(steps + 1) * row_s + training_s(steps + 1, step_s) > seconds


class _Oracle(Roll):
    """Outputs are the true next hidden rows, so a draft has the target's own law."""

    data: Data
    tokens: NDArray[np.int64]

    def forward(self, hidden: F64, embeddings: F64, places: NDArray[np.int64], rows: NDArray[np.int64]) -> F64:
        self.depths.append(None)  # type: ignore[arg-type]
        at = self.tokens.reshape(-1)[places] + len(self.depths)
        return self.data.rows[np.minimum(at, len(self.data.rows) - 1)].astype(np.float32)


@pytest.mark.parametrize("right", [True, False])
def test_a_draft_with_the_targets_law_is_always_right(right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At T = 0 since the text is greedy, at T = 1 by the noise that drew it. Another law is right as often as two laws meet under shared
    noise: sum over v of 1 / sum over u of max(p_u / p_v, q_u / q_v)."""
    text = text_of([(4, 150)] * 12, 2)
    data = data_of(text, 2)
    logits = data.head.logits(data.rows.astype(np.float32))
    warm = np.repeat(text.warm, np.diff(text.offsets))[:, None]
    following = np.argmax(logits + warm * np.random.default_rng(3).gumbel(size=logits.shape), axis=1)
    text.token_ids[1:] = following[:-1]
    laws = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    ratios = [np.maximum(after[None] / after[:, None], before[None] / before[:, None]) for after, before in itertools.pairwise(laws)]
    meeting = float(np.mean([np.sum(1 / ratio.sum(axis=1)) for ratio in ratios]))

    def begin(self: EagleModel, tokens: NDArray[np.int64], parts: NDArray[np.int64], of: Data) -> tuple[Roll, F64, F64]:
        roll, hidden, embeddings = original(self, tokens, parts, of)
        roll.__class__ = _Oracle
        roll.data, roll.tokens = of, tokens if right else np.maximum(tokens - 1, -1)  # type: ignore[attr-defined]
        return roll, hidden, embeddings

    original = EagleModel.begin
    monkeypatch.setattr(EagleModel, "begin", begin)
    model = EagleModel(SHAPE, {name: np.zeros(size, np.float32) for name, size in SHAPE.parameters().items()}, 1.0)
    both = acceptance(model, data, text.warm, data.embeddings)
    for counts in both:
        assert counts.tried[0] > 500 and (np.diff(counts.tried) < 0).all()
        expected = 1.0 if right else meeting if counts is both[1] else 1 / 40
        assert abs(counts.rates[0] - expected) <= (0.0 if right else 0.05), counts
        if right:
            assert counts.rates == [1.0] * acceptance_module.DEPTHS and counts.given == counts.rates
