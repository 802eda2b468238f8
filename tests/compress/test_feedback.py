"""Weights of a calibration in `search`, and `gptq`: factors and feedback against NumPy, what they win, files, receipts, refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_model import encode as encode_file
from gguf_model import metadata_of, tensors_of
from llmi import InvalidParamsError, _core
from llmi.cli.commands import main
from llmi.compress import Calibration, calibrate, quantize
from llmi.compress.feedback import Factor, encode_by_feedback, order_of
from llmi.compress.grids import GRIDS, encode_searched
from llmi.compress.replaying import replay_file
from llmi.compress.rounding import Rounding
from llmi.models.files import open_model
from llmi.testing import tiny_model

RNG = np.random.default_rng(6)
F = np.float32
TEXTS = [RNG.integers(1, 200, 400).tolist()]


def products(size: int, rows: int = 300) -> Any:
    x = RNG.standard_normal((rows, size)).astype(F) @ RNG.standard_normal((size, size)).astype(F)
    return x.T @ x


@pytest.mark.parametrize("size", [1, 31, 32, 100])
def test_factors_make_the_products_again(size: int) -> None:
    gram, order = products(size), RNG.permutation(size)
    upper, pivots = _core.factor_products(np.triu(gram) + np.tril(np.full_like(gram, np.nan), -1), order.tolist(), 3.0)
    assert (np.tril(upper, -1) == 0).all() and (np.diag(upper) == 1).all()
    again = upper.astype(np.float64) * pivots @ upper.T.astype(np.float64)
    want = gram[np.ix_(order, order)] + 3.0 * np.eye(size)
    assert np.abs(again - want).max() < 1e-6 * np.abs(want).max()


def test_products_that_cannot_be_factored() -> None:
    for gram in (-np.eye(5, dtype=F), np.full((5, 5), np.nan, F)):
        with pytest.raises(_core.CoreError, match="not positive definite"):
            _core.factor_products(gram, list(range(5)), 0.0)
    for order in ([0, 1, 2, 3, 3], [0, 1], [0, 1, 2, 3, 5]):
        with pytest.raises(_core.CoreError, match="order"):
            _core.factor_products(np.eye(5, dtype=F), order, 0.0)


@pytest.mark.parametrize("levels", [(), (-1.0, -0.25, 0.5, 1.0)])
def test_errors_go_to_the_columns_behind(levels: tuple[float, ...]) -> None:
    values = RNG.standard_normal((5, 70)).astype(F)
    targets = values + F(0.1)
    upper = np.triu(RNG.standard_normal((70, 70)).astype(F), 1) * F(0.2)
    scales, lows = np.abs(RNG.standard_normal(5)).astype(F), RNG.standard_normal(5).astype(F)
    want, codes = targets.copy(), np.empty((5, 8), np.int16)
    for column in range(8, 16):
        scaled = (want[:, column] - lows) * (F(1) / scales)
        if levels:
            codes[:, column - 8] = np.abs(scaled[:, None] - np.array(levels, F)).argmin(axis=1)
            rounded = np.array(levels, F)[codes[:, column - 8]]
        else:
            rounded = np.clip(np.rint(scaled), -2, 3)
            codes[:, column - 8] = rounded
        error = values[:, column] - (scales * rounded + lows)
        want[:, column + 1 :] += error[:, None] * upper[column, column + 1 :]
    found = _core.feed_errors(values, targets, upper, 8, 8, scales, lows, -2, 3, levels)
    assert (found == codes).all() and (targets == want).all()


@pytest.mark.parametrize("name", GRIDS)
def test_feedback_loses_less(name: str) -> None:
    grid, values, gram = GRIDS[name], RNG.standard_normal((48, 512)).astype(F), products(512, 1000)
    order = order_of(np.diag(gram).astype(np.float64), grid)
    assert (np.sort(order) == np.arange(512)).all()
    upper, pivots = _core.factor_products(gram, order.tolist(), 0.1 * float(np.diag(gram).mean()))
    fed = encode_by_feedback(grid, values, Factor(order, upper, pivots.astype(F)))
    losses = []
    for data in (fed, encode_searched(grid, values, np.diag(gram).astype(F)), encode_searched(grid, values)):
        error = values - _core.testing.dequantize_row(name, data, values.size).reshape(values.shape).astype(np.float64)
        losses.append(float(np.einsum("ri,ij,rj->", error, gram, error)))
    assert losses[0] < 0.6 * min(losses[1:])


def test_what_reads_most_comes_first() -> None:
    squares = np.arange(512.0)
    squares[300] = 1e6
    order = order_of(squares, GRIDS["Q6_K"])
    assert order[:17].tolist() == [300, *(place for place in range(303, 287, -1) if place != 300), 511]
    assert order[256:].tolist() == list(range(255, -1, -1))
    assert order_of(np.ones(96), GRIDS["Q4_0"]).tolist() == list(range(96))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model(path=tmp_path_factory.mktemp("source") / "model", vocab_size=300, hidden_size=64)
    path = folder.parent / "source.gguf"
    path.write_bytes(encode_file(metadata_of(folder), tensors_of(folder)))
    return path


@pytest.fixture(scope="module")
def calibration(source: Path) -> Calibration:
    return calibrate(source, texts=TEXTS, gram=True)


def test_files_lose_less(source: Path, calibration: Calibration, tmp_path: Path) -> None:
    def values_of(path: Path) -> Any:
        return _core.tensor_values(open_model(path).core, "", "blk.0.ffn_down.weight").astype(np.float64)

    gram, losses = calibration.gram("blk.0.ffn_down.weight").astype(np.float64), []
    for number, settings in enumerate(({}, {"calibration": calibration}, {"calibration": calibration, "method": "gptq"})):
        path = tmp_path / f"{number}.gguf"
        report = quantize(source, path, type="Q4_0", **settings)
        assert not report.remarks
        error = values_of(source) - values_of(path)
        losses.append(float(np.einsum("ri,ij,rj->", error, gram, error)))
    assert losses[2] < 0.8 * losses[1] < 0.8 * losses[0]


@pytest.mark.parametrize("method", ["search", "gptq"])
def test_bytes_are_equal_on_any_threads(
    source: Path, calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    for name in ("a.gguf", "b.gguf"):
        quantize(source, tmp_path / name, type="Q4_1", method=method, calibration=calibration)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_receipt_finds_its_calibration(source: Path, calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    quantize(source, path, method="gptq", calibration=calibration)
    with pytest.raises(InvalidParamsError, match="--calibration"):
        replay_file(path, source)
    calibration.save(tmp_path / "c.imatrix")
    assert replay_file(path, source, tmp_path / "c.imatrix")[0]
    quantize(source, tmp_path / "b.gguf", method="gptq", calibration=tmp_path / "c.imatrix")
    assert main(["replay", str(tmp_path / "b.gguf"), "-m", str(source)]) == 0  # beside it
    calibrate(source, texts=TEXTS, tokens=300, gram=True).save(tmp_path / "d.imatrix")
    with pytest.raises(InvalidParamsError, match="another calibration"):
        replay_file(path, source, tmp_path / "d.imatrix")


def test_a_calibration_on_own_text_is_made_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    report = quantize(source, path, method="gptq", calibration=calibrate(source, tokens=200, seed=5, gram=True))
    assert "fewer than its" not in str(report)
    monkeypatch.setenv("LLMI_ISA", "reference")
    assert replay_file(path, source)[0]


def test_what_is_made_otherwise_is_said(source: Path, tmp_path: Path) -> None:
    few = calibrate(source, texts=[TEXTS[0][:40]], gram=True)
    report = quantize(source, tmp_path / "a.gguf", method="gptq", calibration=few, tensors={"token_embd*": "Q8_0"})
    assert report.remarks["token_embd.weight"].startswith("by search without weights")
    assert "40 rows, fewer than its 64 columns" in str(report)


def test_what_is_refused(source: Path, calibration: Calibration, tmp_path: Path) -> None:
    out = tmp_path / "a.gguf"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"method": "gptq"}, "needs a calibration with products"),
        ({"method": "gptq", "calibration": calibrate(source, texts=TEXTS)}, "needs a calibration with products"),
        ({"method": "absmax", "calibration": calibration}, "reads none"),
        ({"calibration": tmp_path / "no.imatrix"}, "cannot be read"),
        ({"calibration": calibrate(source.parent / "model", texts=TEXTS)}, "of another model"),
    ]
    for settings, says in cases:
        with pytest.raises(InvalidParamsError, match=says):
            quantize(source, out, **settings)
    other = Calibration({"blk.0.attn_q.weight": (np.ones((1, 32), F), np.ones(1, F))}, {}, {})
    with pytest.raises(InvalidParamsError, match="reads 64 columns, and the calibration is of 32"):
        quantize(source, out, calibration=other)
    assert not out.exists()


def test_experts_are_weighed_each_by_its_own() -> None:
    values, sums = RNG.standard_normal((3, 4, 32)).astype(F), np.abs(RNG.standard_normal((3, 32))).astype(F)
    sums[1] = 0  # never used
    rounding = Rounding("search", Calibration({"x": (sums, np.array([4, 0, 2], F))}, {}, {}))
    kind = GRIDS["Q4_1"]
    data = rounding.bytes_of(kind, "x", values)
    size = len(data) // 3
    assert data[size : 2 * size] == encode_searched(kind, values[1])
    assert data[:size] != encode_searched(kind, values[0])
    assert rounding.remark("x", (32, 4, 3), "Q4_1") is None
