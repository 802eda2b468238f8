"""python benchmarks/ship.py: the same files again, at most 4 MB, from text apart from the test prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import llmi
from llmi.models.safetensors_file import read_safetensors
from llmi.training import plan, text
from llmi.training.text import Text

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="the benchmarks are not beside the tests")
sys.path.insert(0, str(BENCHMARKS))
if BENCHMARKS.is_dir():
    import ship


@pytest.mark.slow
def test_the_script_gives_the_same_files_again(
    tiny_path: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ship, "GROUP", 12)
    monkeypatch.setattr(text, "MAX_ANSWER", 24)
    model = tiny_path("llama", num_layers=2, vocab_size=200)
    command = ["--model", str(model), "--answer-tokens", "600"]
    receipts = []
    for name in ("a", "b"):
        steps = ["--steps", str(receipts[0]["steps"])] if receipts else ["--minutes", "0.06"]
        assert ship.main([str(tmp_path / name), *command, *steps]) == 0
        receipts.append(json.loads((tmp_path / name / "receipt.json").read_text()))
    assert (
        receipts[0] == receipts[1]
        and receipts[0]["bytes"] <= ship.MOST_BYTES
        and set(receipts[0]["files"]) == {"eagle.safetensors", "corpus.safetensors"}
    )
    tensors, metadata = read_safetensors(tmp_path / "a" / "eagle.safetensors")
    assert tensors["fc.weight.q4_0"].shape == (64, 128 // 32 * 18) and json.loads(metadata["config"])["hidden_size"] == 64
    assert llmi.CorpusDrafter.load(tmp_path / "a" / "corpus.safetensors").num_entries > 0
    assert plan.GROUP == 48 and "answers" in capsys.readouterr().out


def test_text_with_a_run_of_a_test_prompt_is_left_out() -> None:
    prompt = list(range(50, 70))
    sequences = [
        (0, [1, 2], [3, *prompt[:7], 4], False),
        (1, [1, *prompt[4:12]], [3], True),
        (2, [9], [8, 7], False),
        (3, [1], prompt[12:], True),
    ]
    kept = ship.apart(Text.of(sequences), ship.Overlap([prompt]))
    assert kept.turns_of.tolist() == [0, 2] and kept.warm.tolist() == [False, False] and kept.prompt_lens.tolist() == [2, 1]
    np.testing.assert_array_equal(kept.sequence(1), [9, 8, 7])
