"""The best tokens of a row, which a beam search extends: ranks, ties, log-probabilities, and the same bits everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from bits import assert_same_bits
from llmi import _core

T = _core.testing
NONE = -1  # the token of a missing candidate


def log_softmax(rows: np.ndarray) -> np.ndarray:
    return rows - np.array([T.log_sum_exp("reference", row) for row in rows], np.float32)[:, None]


def ranked(values: np.ndarray, logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The definition: by value, logit, id."""
    shape = (len(values), count)
    best, their_logits, tokens = np.full(shape, -np.inf, np.float32), np.full(shape, -np.inf, np.float32), np.full(shape, NONE, np.int32)
    for row in range(len(values)):
        order = np.lexsort((np.arange(values.shape[1]), -logits[row], -values[row]))[:count]
        order = order[values[row][order] > -np.inf]
        best[row, : len(order)], their_logits[row, : len(order)], tokens[row, : len(order)] = values[row][order], logits[row][order], order
    return best, their_logits, tokens


def check(table: str, logits: np.ndarray, count: int, values: np.ndarray | None = None) -> None:
    expected = ranked(log_softmax(logits) if values is None else values, logits, count)
    *ours, tokens = T.top_candidates(table, logits, count, values)
    for made, wanted in zip(ours, expected[:2], strict=True):
        assert_same_bits(made, wanted, masked="there are fewer candidates", equal_rows="there are ties")
    assert np.array_equal(tokens, expected[2])


@pytest.mark.parametrize("size", [5, 700, 4096, 5003, 49152])
def test_top_candidates(table: str, size: int) -> None:
    rng = np.random.default_rng(size)
    logits = rng.normal(0, 4, (4, size)).astype(np.float32)
    logits[1] = np.sort(logits[1])  # every piece of the row is better than the last
    logits[2] = rng.integers(-3, 4, size)  # many ties
    logits[3, size // 3 :] = -np.inf
    for count in (1, 8, 64, 1500):
        check(table, logits, count)


def test_values_of_their_own(table: str) -> None:
    """Equal values rank by logit, then by id; values of -inf are no candidates, whatever the logit."""
    rng = np.random.default_rng(7)
    logits = rng.integers(-20, 20, (3, 3000)).astype(np.float32)
    values = rng.integers(-4, 0, (3, 3000)).astype(np.float32)
    values[1, :2990] = -np.inf
    values[2] = -1.0
    for count in (2, 33, 700):
        check(table, logits, count, values)
    logits[0, 17] = -np.inf  # a processor may raise what the model had excluded
    check(table, logits, 3000 // 2, values)


def test_two_logits_with_one_log_probability(table: str) -> None:
    """Beside a large sum, logits that differ in their last bits have one log-probability: the larger logit is first, though its id is
    not."""
    logits = np.full((1, 4096), 3.0, np.float32)
    logits[0, [100, 200, 300]] = np.float32(1e-3), np.nextafter(np.float32(1e-3), np.float32(1)), np.float32(-40)
    logits[0, :100] = -np.inf
    logits[0, 301:] = -np.inf
    logits[0, 101:200] = -np.inf
    logits[0, 201:300] = -np.inf
    logits[0, 4000] = 12.0
    values, their_logits, tokens = T.top_candidates(table, logits, 4)
    assert tokens[0].tolist() == [4000, 200, 100, 300]
    assert values[0, 1] == values[0, 2] and their_logits[0, 1] > their_logits[0, 2]


def test_rows_without_candidates(table: str) -> None:
    logits = np.zeros((4, 100), np.float32)
    logits[0, 50], logits[1, 99], logits[2] = np.nan, np.inf, -np.inf
    values, their_logits, tokens = T.top_candidates(table, logits, 3)
    assert (tokens[:3] == NONE).all() and tokens[3].tolist() == [0, 1, 2]
    assert (values[:3] == -np.inf).all() and (their_logits[:3] == -np.inf).all()
    fine = np.zeros((4, 100), np.float32)
    assert (T.top_candidates(table, fine, 3, logits)[2][:3] == NONE).all()


def test_bad_counts() -> None:
    for count in (0, 2049):
        with pytest.raises(_core.CoreError, match="count"):
            T.top_candidates("reference", np.zeros((1, 10), np.float32), count)
