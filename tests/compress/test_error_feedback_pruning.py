"""SparseGPT and repair: zeros are where they must be, and what is left loses less by the products of what the matrices read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_model import encode, metadata_of, tensors_of
from llmi import LLM, _core
from llmi.compress import Calibration, calibrate, drop_layers, prune
from llmi.compress.calibration import own_windows
from llmi.compress.least_squares import mean_square, products, solve, times
from llmi.compress.replaying import replay_file
from llmi.models.files import open_model
from llmi.testing import tiny_model

RNG = np.random.default_rng(9)
TEXTS = [RNG.integers(1, 200, 300).tolist() for _ in range(2)]
NAME = "blk.0.ffn_down.weight"
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model(path=tmp_path_factory.mktemp("source") / "model", vocab_size=300, hidden_size=64, num_layers=4)
    path = folder.parent / "source.gguf"
    path.write_bytes(encode(metadata_of(folder), tensors_of(folder)))
    return path


@pytest.fixture(scope="module")
def calibration(source: Path) -> Calibration:
    return calibrate(source, texts=TEXTS, gram=True)


def values_of(path: Path, name: str = NAME) -> Array:
    values: Array = _core.tensor_values(open_model(path).core, "", name).astype(np.float64)
    return values


def test_products_and_least_squares() -> None:
    first, second = (RNG.standard_normal((150, count)).astype(np.float32) for count in (70, 33))
    assert np.abs(products(first, second) - first.astype(np.float64).T @ second).max() < 1e-4
    assert np.abs(times(first.T, second) - first.astype(np.float64).T @ second).max() < 1e-4
    squares = products(first, first)
    damping = 0.1 * mean_square(squares)
    want = np.linalg.solve(squares + damping * np.eye(70), products(first, second)).T
    assert np.abs(solve(products(second, first), squares, damping, "x") - want).max() < 1e-5


@pytest.mark.parametrize("how", [{"sparsity": 0.5}, {"sparsity": 0.3}, {"pattern": "2:4"}, {"pattern": "4:8"}])
def test_feedback_loses_less_than_the_same_share_without(source: Path, calibration: Calibration, tmp_path: Path, how: Any) -> None:
    gram, losses = calibration.gram(NAME).astype(np.float64), []
    for method in ("wanda", "sparsegpt"):
        path = tmp_path / f"{method}.gguf"
        prune(source, path, method=method, calibration=calibration, **how)
        error = values_of(source) - values_of(path)
        losses.append(float(np.einsum("ri,ij,rj->", error, gram, error)))
        gone = values_of(path) == 0
        if "pattern" in how:
            kept, size = map(int, how["pattern"].split(":"))
            assert (gone.reshape(-1, size).sum(axis=1) == size - kept).all()
        else:
            assert (gone.sum(axis=1) == int(how["sparsity"] * gone.shape[1])).all()
    assert losses[1] < 0.95 * losses[0]


def test_what_is_left_of_a_row_is_the_least_squares_fit(source: Path, tmp_path: Path) -> None:
    """Where the last column alone may make up for the first ones, it is the best that it can be."""
    gram = np.array([[1.0, 0.5], [0.5, 2.0]], np.float32)
    upper, pivots = _core.factor_products(gram, [0, 1], 0.0)
    values = np.array([[3.0, 1.0]], np.float32)
    targets = values.copy()
    _core.feed_pruned(values, targets, upper, 0, np.array([[False, True]]))
    assert targets.tolist() == [[0.0, 1.0 + 3.0 * 0.5 / 2.0]] and pivots[0] == 1.0 - 0.25 / 2.0


@pytest.mark.parametrize("layers", [[3], [1, 3]])
def test_repaired_layers_cost_less(source: Path, tmp_path: Path, layers: list[int]) -> None:
    drop_layers(source, tmp_path / "a.gguf", layers=layers)
    sums = calibrate(source, tokens=1500)
    report = drop_layers(source, tmp_path / "b.gguf", layers=layers, repair=True, calibration=sums)
    made = [name for name, how in report.remarks.items() if how.startswith("stands in")]
    assert made == [f"blk.{layer - 1 - place}.ffn_down.weight" for place, layer in enumerate(layers)]

    def lost(name: str) -> float:
        """Of the stream behind the last layer, over the rows' own size."""
        with LLM(source, kv_cache_memory_bytes=1 << 24) as base, LLM(tmp_path / name, kv_cache_memory_bytes=1 << 24) as made:
            text = own_windows(base, 1500, 0)
            rows = [np.concatenate([each[-1] for each in llm.hidden_states(text)]).astype(np.float64) for llm in (base, made)]
        return float((((rows[0] - rows[1]) ** 2).sum(axis=1) / (rows[0] ** 2).sum(axis=1)).mean())

    assert lost("b.gguf") < 0.9 * lost("a.gguf")


def test_bytes_are_equal_on_any_threads_and_instruction_set(
    source: Path, calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration.save(tmp_path / "c.imatrix")
    prune(source, tmp_path / "a.gguf", sparsity=0.5, method="sparsegpt", calibration=tmp_path / "c.imatrix")
    drop_layers(source, tmp_path / "b.gguf", layers=[2], repair=True, calibration=calibrate(source, tokens=300))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setenv("LLMI_ISA", "reference")
    assert replay_file(tmp_path / "a.gguf", source)[0]
    assert replay_file(tmp_path / "b.gguf", source)[0]
