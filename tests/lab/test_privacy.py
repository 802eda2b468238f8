"""integrations.privacy: a split model is the model, shares tell nothing alone, and whoever asks can solve for the weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from llmi import LLM, InvalidParamsError, UnsupportedModelError
from llmi.errors import MissingExtraError
from llmi.integrations.privacy import CkksClient, CkksServer, SplitModel, TwoServers, fixed_point, in_the_clear, recover_matrix

IDS = [5, 9, 2, 7, 1]
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path(num_layers=2), kv_cache_memory_bytes=1 << 23, dtype="float32") as llm:
        yield llm


def test_a_split_model_is_the_model(llm: LLM) -> None:
    with llm.sequence(IDS) as sequence:
        expected = np.asarray(sequence.logits).reshape(-1, 257)[-1]
    asked: list[str] = []
    clear = in_the_clear(llm)
    model = SplitModel(llm, lambda name, rows: (asked.append(name), clear(name, rows))[1])
    assert np.allclose(model.extend(IDS), expected, atol=1e-4)
    assert len(asked) == len(set(asked)) == 2 * 7
    model.reset()
    model.extend(IDS[:3])
    assert np.allclose(model.extend(IDS[3:]), expected, atol=1e-4)
    model.reset()
    model.multiply = TwoServers(llm.weights.__getitem__, seed=1)
    assert np.allclose(model.extend(IDS), expected, atol=2e-3)


def test_a_share_alone_tells_nothing() -> None:
    """The first share is the same whatever the value; the second is the same whatever the value for another first one."""
    zeros, others = fixed_point(np.zeros((3, 4))), fixed_point(np.full((3, 4), -2.5))
    first, second = TwoServers({}.__getitem__, seed=3).split(zeros), TwoServers({}.__getitem__, seed=3).split(others)
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first.sum(0, dtype=np.uint64), zeros)
    assert np.array_equal(second.sum(0, dtype=np.uint64).view(np.int64), np.full((3, 4), -5 << 19))


def test_products_that_shares_cannot_hold_are_refused() -> None:
    servers = TwoServers({"w": np.full((2, 3), 1e4)}.__getitem__)
    assert np.allclose(servers("w", np.full((1, 3), -2.0)), -6e4)
    for rows in (np.full((1, 3), 1e4), np.full((1, 3), np.nan)):
        with pytest.raises(InvalidParamsError, match="do not fit into shares"):
            servers("w", rows)


def test_whoever_asks_can_solve_for_the_weights(llm: LLM) -> None:
    for multiply in (in_the_clear(llm), TwoServers(llm.weights.__getitem__)):
        assert np.abs(recover_matrix(multiply, QUERY, 64) - llm.weights[QUERY]).max() < 1e-5


def test_other_families_are_refused(tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path("gemma3"), kv_cache_memory_bytes=1 << 23) as llm, pytest.raises(UnsupportedModelError, match="plain Llamas"):
        SplitModel(llm)


def test_without_tenseal_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(MissingExtraError, match="privacy"):
        CkksServer({})


@pytest.mark.slow
def test_ciphertexts() -> None:
    pytest.importorskip("tenseal", reason="the extra `privacy`")
    matrix = np.random.default_rng(0).normal(size=(24, 16))
    client = CkksClient(CkksServer({"w": matrix}).address)
    rows = np.random.default_rng(1).normal(size=(2, 16))
    assert np.abs(client("w", rows) - rows @ matrix.T).max() < 1e-4
    assert client.sent_bytes > 0 and client.received_bytes > 0 and client.key_bytes > 0
    client.close()
