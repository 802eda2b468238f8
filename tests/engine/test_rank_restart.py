"""LLM(on_worker_failure="restart"): ranks that die are started again, and every request ends with the tokens of an undisturbed run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import LLM, EngineClosedError, PromptLookup, SpeculativeConfig, WorkerDiedError
from llmi.ranks import workers
from llmi.testing import tiny_model
from rank_threads import RankThreads
from tiny_eagle import tiny_eagle

MODEL: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96}
ARGUMENTS: dict[str, Any] = {"seed": 3, "num_threads": 1, "max_model_len": 256, "kv_cache_memory_bytes": 1 << 22}
PROMPTS = [[5, 9, 2, index, 2, 7, index, 9, 2] for index in range(4)] + [list(range(40, 110))]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "prompt_logprobs": 1, "logprobs": 2},
    "several": {"n": 3, "penalty_last_n": 8, "frequency_penalty": 0.5},
    "guidance": {"guidance_scale": 1.5, "negative_prompt": [7, 7]},
    "hidden layers": {"dola_layers": "high", "temperature": 0},
    "beams": {"beam_width": 3, "max_tokens": 8, "seed": None},
    "contrast": {"penalty_alpha": 0.6, "top_k": 4, "temperature": None, "max_tokens": 8},
    "structured": {"structured_outputs": {"regex": "[ab]{12}"}, "max_tokens": 14},
    "drafts": {"speculative_config": SpeculativeConfig(PromptLookup(), 3), "temperature": 0},
    **{
        name: {"speculative_config": SpeculativeConfig(PromptLookup(), 3, verification=name), "temperature": 0.3}
        for name in ("rejection", "block")
    },
}


class Strikes:
    """Processors of each step that change nothing: at these steps, counted from `begin`, they strike."""

    def __init__(self, steps: set[int]) -> None:
        self.steps, self.step, self.count = steps, 0, 0
        self.strike: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self.step = self.count = 0

    def apply(self, contexts: Any, logits: Any) -> None:
        self.step += 1
        if self.step in self.steps:
            self.count += 1
            self.strike()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("ranks"), **MODEL)


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[LLM]:
    with LLM(model, **ARGUMENTS) as llm:
        yield llm


def outputs(llm: LLM, kind: str) -> Any:
    return llm.generate(PROMPTS, **{"max_tokens": 14, "seed": 11, "ignore_eos": True, **KINDS[kind]})


@pytest.mark.parametrize("given", [{}, {"scheduling_policy": "static"}, {"max_num_seqs": 3, "max_num_batched_tokens": 24}], ids=str)
def test_each_kind_goes_on(model: Path, alone: LLM, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are threads; the last one leaves while a step's rows are drawn."""
    monkeypatch.setattr(workers, "Ranks", RankThreads)
    strikes = Strikes({1, 4, 9})
    with LLM(model, **ARGUMENTS, **given, tensor_parallel_size=3, on_worker_failure="restart", batch_processors=[strikes]) as llm:
        strikes.strike = lambda: llm._ranks.last.leave("it was struck")  # type: ignore[union-attr]
        for kind in KINDS:
            strikes.begin()
            assert outputs(llm, kind) == outputs(alone, kind), kind
            assert strikes.count > 1, kind
        hidden = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
        strikes.strike()  # between calls: a head needs no pages
        np.testing.assert_array_equal(llm.head(hidden), alone.head(hidden))
        with llm.sequence(PROMPTS[4]) as mine, alone.sequence(PROMPTS[4]) as other:
            np.testing.assert_array_equal(mine.extend([1, 2]), other.extend([1, 2]))
            strikes.strike()
            with pytest.raises(WorkerDiedError, match="rank 2"):
                mine.extend([3])
            llm.generate([[5]], max_tokens=1)
            np.testing.assert_array_equal(mine.extend([3]), other.extend([3]))


@pytest.mark.parametrize("verification", ["coupled", "rejection", "block"])
def test_a_drafter_with_a_layer(model: Path, alone: LLM, tmp_path: Path, verification: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "Ranks", RankThreads)
    config = {
        "method": "eagle",
        "model": str(tiny_eagle(alone, tmp_path / "heads")),
        "num_speculative_tokens": 3,
        "verification": verification,
    }
    arguments = {**ARGUMENTS, "speculative_config": config}
    strikes = Strikes({2, 5, 8})
    with (
        LLM(model, **arguments) as one,
        LLM(model, **arguments, tensor_parallel_size=2, on_worker_failure="restart", batch_processors=[strikes]) as two,
    ):
        strikes.strike = lambda: two._ranks.last.leave("it was struck")  # type: ignore[union-attr]
        expected = one.generate(PROMPTS, max_tokens=20, seed=2, temperature=0.5, logprobs=1)
        assert two.generate(PROMPTS, max_tokens=20, seed=2, temperature=0.5, logprobs=1) == expected
        assert strikes.count == 3


def test_processes(model: Path, alone: LLM) -> None:
    """The first is killed in a step, the second between two calls; a rank that never comes back ends the engine."""
    strikes = Strikes({3})
    arguments: dict[str, Any] = {**ARGUMENTS, "tensor_parallel_size": 3, "on_worker_failure": "restart"}
    with LLM(model, **arguments, batch_processors=[strikes]) as llm:
        before = [worker.pid for worker in llm.workers()]
        strikes.strike = lambda: os.kill(before[2], signal.SIGKILL)
        assert outputs(llm, "several") == outputs(alone, "several")
        between = [worker.pid for worker in llm.workers()]
        assert between[0] == before[0] and not {*between[1:]} & {*before[1:]} and not any(map(is_there, before[1:]))
        os.kill(between[1], signal.SIGKILL)
        assert outputs(llm, "greedy") == outputs(alone, "greedy")
        after = [worker.pid for worker in llm.workers()]
        assert not {*after[1:]} & {*between[1:]} and all(map(is_there, after))
        llm._ranks._openings[0]["path"] = "/nowhere"  # type: ignore[union-attr]
        os.kill(after[1], signal.SIGKILL)
        (output,) = llm.generate([[5]], max_tokens=1, on_error="return")
        assert isinstance(output.error, WorkerDiedError) and "/nowhere" in str(output.error) and output.error.worker == "rank 1"
        with pytest.raises(EngineClosedError, match="nowhere"):
            llm.generate([[5]], max_tokens=1)
    assert not any(map(is_there, after[1:]))


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
