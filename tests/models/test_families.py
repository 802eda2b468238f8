"""Tiny models of transformers' families: llmi's logits beside transformers' in float64."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import LLM
from tiny_families import EXPERTS, FAMILIES, NUM_TOKENS, STATES, TOKENS, Family, make

pytestmark = pytest.mark.parity
Array = np.ndarray[Any, Any]
ALLOWED = 1e-4  # between log-probabilities, as in test_parity.py


def log_softmax(logits: Array) -> Array:
    """In float64."""
    rows = logits.astype(np.float64)
    result: Array = rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True)
    return result


def own_logits(path: Path) -> Array:
    """llmi's of TOKENS, [NUM_TOKENS, vocab_size]: the first token alone, then the rest as one piece."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the tokenizer's class, which asks for tokens that bytes do not have
        llm = LLM(path, dtype="float32", kv_cache_memory_bytes=1 << 24, max_model_len=NUM_TOKENS + 1, num_threads=1)
    with llm:
        sequence = llm.sequence(TOKENS[:1])
        first = sequence.logits.copy()
        return np.concatenate([np.atleast_2d(first), sequence.extend(TOKENS[1:])])


def distances(logits: Array, family: Family) -> tuple[float, float, float]:
    """From float64: of labels and top 20, of whole rows, and of transformers' own fp32 in whole rows."""
    exact, own = log_softmax(family.float64), log_softmax(logits)
    ids = np.concatenate([np.argsort(-exact, axis=-1)[:, :20], np.array([*TOKENS[1:], TOKENS[-1]])[:, None]], axis=-1)
    shown = float(np.abs(np.take_along_axis(own, ids, -1) - np.take_along_axis(exact, ids, -1)).max())
    return shown, float(np.abs(own - exact).max()), float(np.abs(log_softmax(family.fp32) - exact).max())


def assert_near(logits: Array, family: Family) -> None:
    """Labels and top 20 within ALLOWED of float64, or whole rows within twice transformers' own fp32."""
    shown, own, theirs = distances(logits, family)
    print(f"{family.path.name}: label and top 20 {shown:.1e}, whole rows {own:.1e}, transformers' fp32 {theirs:.1e}")
    assert shown <= ALLOWED or own <= 2 * theirs


@pytest.mark.parametrize("name", [*FAMILIES, *EXPERTS, *STATES])
def test_logits_of_the_family(name: str, families: Path) -> None:
    family = make(name, families)
    assert_near(own_logits(family.path), family)


@pytest.mark.parametrize("position", ["rope", None])
def test_granite_4_without_experts(position: str | None, families: Path) -> None:
    """Its dense sizes have the class of the hybrid ones."""
    family = make("granitemoehybrid", families, num_local_experts=0, position_embedding_type=position)
    assert_near(own_logits(family.path), family)
