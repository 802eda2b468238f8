"""`quantize` within a number of bytes: the choice, the measure, the judge, receipts, and budgets that cannot be."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_model import encode, metadata_of, tensors_of
from llmi import InvalidParamsError
from llmi.cli.commands import main
from llmi.cli.quantize import parse_bytes
from llmi.compress import budget, quantize
from llmi.compress.budget import Option, assign, hull
from llmi.compress.gguf_file import GgufSource
from llmi.compress.made_files import Source
from llmi.compress.replaying import replay_file
from llmi.testing import tiny_model

RNG = np.random.default_rng(4)


def test_the_hull_has_falling_gains() -> None:
    options = [
        Option("a", 10, 9.0),
        Option("b", 20, 8.0),
        Option("c", 30, 1.0),
        Option("d", 30, 2.0),
        Option("e", 40, 1.5),
        Option("f", 50, 0.0),
    ]
    assert [option.type for option in hull(options)] == ["a", "c", "f"]
    assert [option.type for option in hull([Option("a", 10, 0.0), Option("b", 20, 0.0)])] == ["a"]


def test_a_choice_is_the_best_there_is() -> None:
    """Where every step has one size, the greedy choice is the least sum of all that fit."""
    for _ in range(30):
        options = {}
        for name in "abcd":
            gains = sorted(RNG.random(3).tolist(), reverse=True)
            costs = [5.0 - sum(gains[:step]) for step in range(4)]
            options[name] = [Option(str(step), 100 + 10 * step, cost) for step, cost in enumerate(costs)]
        room = 400 + int(RNG.integers(0, 13)) * 10
        found = assign(options, room)
        best = min(
            sum(option.cost for option in chosen)
            for chosen in itertools.product(*options.values())
            if sum(option.bytes for option in chosen) <= room
        )
        assert sum(options[name][int(kind)].cost for name, kind in found.items()) == pytest.approx(best)
    with pytest.raises(InvalidParamsError, match="400 bytes in their smallest types, 1 more than the 399"):
        assign(options, 399)


def test_a_step_that_does_not_fit_leaves_room_for_others() -> None:
    options = {"a": [Option("0", 10, 9.0), Option("1", 60, 0.0)], "b": [Option("0", 10, 1.0), Option("1", 15, 0.9)]}
    assert assign(options, 30) == {"a": "0", "b": "1"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama, of which one matrix matters more than the others."""
    folder = tmp_path_factory.mktemp("source")
    model = tiny_model(path=folder / "model", vocab_size=300, num_layers=1, hidden_size=64)
    tensors = tensors_of(model)
    tensors["blk.0.ffn_down.weight"] = tensors["blk.0.ffn_down.weight"] * np.float32(8)
    path = folder / "source.gguf"
    path.write_bytes(encode({**metadata_of(model), "general.file_type": 0}, tensors))
    return path


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_AUDIT", "0")  # caches of half the memory are long to audit
    monkeypatch.setattr(budget, "_WINDOW", 32)
    monkeypatch.setattr(budget, "_PER_TENSOR", 96)


def room_of(source: Path, kind: str, tmp_path: Path) -> int:
    """Bytes of a file in which all matrices have this type, and of a receipt's rules."""
    path = tmp_path / f"{kind}.gguf"
    quantize(source, path, type=kind, tensors={"token_embd*": kind})
    return path.stat().st_size + 5000


def test_bytes_go_where_they_win_most(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MIXTURES", {})
    bytes_of = room_of(source, "Q4_1", tmp_path)
    report = quantize(source, tmp_path / "a.gguf", budget_bytes=bytes_of, tensors={"*attn_k*": "Q8_0"})
    assert report.bytes == (tmp_path / "a.gguf").stat().st_size <= bytes_of
    types = {tensor.name: tensor.type for tensor in GgufSource(tmp_path / "a.gguf").tensors}
    assert types["blk.0.attn_k.weight"] == 8 and report.tensors["blk.0.ffn_down.weight"] in ("Q5_0", "Q8_0")
    assert len(set(report.tensors.values())) > 1
    assert report.remarks["types by budget"].startswith("KL 0.") and not list(tmp_path.glob(".*"))
    assert replay_file(tmp_path / "a.gguf", source)[0]


@pytest.mark.parametrize("better", ["chosen.gguf", "plain.gguf"])
def test_the_whole_is_judged(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, better: str) -> None:
    monkeypatch.setattr(budget.Bench, "judge", lambda _, path: 0.1 if path.name == better else 0.1 + (path.name == "chosen.gguf"))
    monkeypatch.setattr(budget.Bench, "cost", lambda *_: 1.0)
    report = quantize(source, tmp_path / "a.gguf", budget_bytes=room_of(source, "Q8_0", tmp_path))
    if better == "chosen.gguf":
        assert "not worse" in report.remarks["types by budget"]  # equal figures: the plain one is taken
    assert ("was taken" in report.remarks["types by budget"]) == (GgufSource(tmp_path / "a.gguf").entries["general.file_type"][4] != 0)
    assert replay_file(tmp_path / "a.gguf", source)[0]


def test_a_matrix_is_measured_alone(source: Path, tmp_path: Path) -> None:
    opened = Source(source)
    with budget._opened(opened, ["blk.0.ffn_down.weight", "blk.0.attn_q.weight"], tmp_path) as bench:
        values = {name: opened.values(name) for name in opened.tensors}
        down = values["blk.0.ffn_down.weight"]
        assert bench.cost("blk.0.ffn_down.weight", down) == 0
        assert bench.cost("blk.0.ffn_down.weight", down * np.float32(0.5)) > 1e-4
        assert bench.cost("blk.0.attn_q.weight", values["blk.0.attn_q.weight"]) == 0  # the first one is whole again
        assert not {tuple(window) for window in bench.judging} & {tuple(window) for window in bench._measuring}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"budget_bytes": 0}, "budget_bytes must be"),
        ({"budget_bytes": 1000}, "what is not quantised"),
        ({"budget_bytes": 1 << 20, "type": "Q4_0"}, "leave type and like out"),
        ({"budget_bytes": 1 << 20, "like": "Q4_K_M"}, "leave type and like out"),
        ({"budget_bytes": 1 << 20, "method": "kl"}, "for study"),
        ({"budget_bytes": 40_000}, "in their smallest types"),
    ],
)
def test_budgets_that_cannot_be(source: Path, tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidParamsError, match=says):
        quantize(source, tmp_path / "a.gguf", **settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "want"), [("80MB", 80_000_000), ("1.5GB", 1_500_000_000), ("75MiB", 75 << 20), ("900", 900), ("2k", 2000)]
)
def test_bytes_of_the_command(text: str, want: int) -> None:
    assert parse_bytes(text) == want


@pytest.mark.parametrize("text", ["", "MB", "-3", "8 XB", "8iB", "1e9", "nan"])
def test_no_bytes(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InvalidParamsError, match="--budget must be bytes"):
        parse_bytes(text)
    assert main(["quantize", "no.gguf", str(tmp_path / "a.gguf"), f"--budget={text}"]) != 0
    assert "--budget" in capsys.readouterr().err
