"""LLM.record_steps: a scheduler without a model makes the same choices on the recording, and says where it does not."""

from __future__ import annotations

import collections
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, BeamSearchParams, InvalidParamsError, SamplingParams
from llmi.cli.commands import main
from llmi.engine.args import RequestInfo
from llmi.simulation.recording import replay

DRAFTS: list[dict[str, Any] | None] = [
    None,
    {"method": "ngram", "num_speculative_tokens": 3},
    {"method": "ngram", "num_speculative_tokens": 4, "verification": "rejection"},
]


class LongestFirst:
    """A policy of the user's own."""

    def key(self, request: RequestInfo, _now_s: float) -> tuple[float, ...]:
        return (-request.num_prompt_tokens, request.num_preemptions)


def drawn_params(draw: random.Random) -> SamplingParams:
    drawn: dict[str, Any] = {"max_tokens": draw.randrange(1, 50), "temperature": draw.choice([0, 1]), "n": draw.choice([1, 1, 3])}
    drawn["seed"] = draw.randrange(99)
    if draw.random() < 0.1:  # two sequences a sample
        drawn |= {"n": 1, "guidance_scale": 1.5, "negative_prompt_ids": [5] * draw.randrange(1, 30)}
    return SamplingParams(**drawn)


def record(path: Path, model: Path, seed: int) -> dict[str, float]:
    """A random run: chunks, shared beginnings, a pool that is too small, several samples, drafts, guidance, requests that end early."""
    draw = random.Random(seed)
    options: dict[str, Any] = {
        "scheduling_policy": draw.choice(["fcfs", "fcfs", "priority", "static", "prefill_first", "longest_prefix", LongestFirst()]),
        "max_num_seqs": draw.choice([3, 6, 16]),
        "max_num_batched_tokens": draw.choice([24, 64, 256]),
        "speculative_config": DRAFTS[seed % 3],
        "kv_cache_memory_bytes": draw.choice([80_000, 120_000, 1 << 20]),
        "enable_prefix_caching": draw.random() < 0.8,
        "max_model_len": 160,
        "num_threads": 1,
    }
    beginnings = [[draw.randrange(3, 250) for _ in range(48)] for _ in range(2)]
    with LLM(model, **options) as llm, llm.record_steps(path):
        for _ in range(3):
            prompts = [
                (draw.choice(beginnings) if draw.random() < 0.6 else []) + [draw.randrange(3, 9) for _ in range(draw.randrange(1, 50))]
                for _ in range(draw.randrange(2, 9))
            ]
            llm.generate(prompts, [drawn_params(draw) for _ in prompts], use_tqdm=False)
            if draw.random() < 0.5 and options["scheduling_policy"] != "static":
                llm.beam_search(prompts[:1], BeamSearchParams(beam_width=3, max_tokens=12), use_tqdm=False)
        stats = llm.get_metrics()
    return {
        name: float(stats[name]) for name in ("num_preemptions", "num_prefix_hit_tokens", "num_copies_on_write", "num_finished_requests")
    }


def test_recorded_runs_are_chosen_again(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    met: collections.Counter[str] = collections.Counter()
    for seed in range(20):
        stats = record(tmp_path / "steps.jsonl", tiny_path("gemma3" if seed % 2 else "llama"), seed)
        found = replay(tmp_path / "steps.jsonl")
        assert found.difference == "" and found.num_steps >= 10 and found.num_arrivals == stats["num_finished_requests"], seed
        met.update(stats)
        text = (tmp_path / "steps.jsonl").read_text()
        met.update({name: text.count(f'["{name}"') for name in ("fork", "keep", "pair", "key", "reserve")})
    assert all(met.values()), met


def test_sequences_that_stream(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    """They give blocks back, which the recording's pools must do, too."""
    sees = {"method": "streaming", "sinks": 20, "window": 40}
    path = tmp_path / "steps.jsonl"
    prompts = [[5, *range(3, 3 + length)] for length in (90, 30, 2, 120, 8, 60, 61, 62)]
    with LLM(tiny_path(), kv_cache_memory_bytes=100_000, max_num_batched_tokens=40, max_model_len=200) as llm, llm.record_steps(path):
        params = [SamplingParams(max_tokens=50, ignore_eos=True, n=1 + index % 2, sparse_attention=sees) for index in range(8)]
        llm.generate(prompts, params, use_tqdm=False)
        llm.generate(prompts[:2], [BeamSearchParams(beam_width=3, max_tokens=40, sparse_attention=sees)] * 2, use_tqdm=False)
        assert llm.get_metrics()["num_window_blocks_returned"] > 20
    assert replay(path).difference == ""


@pytest.fixture(scope="module")
def recorded(tiny_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "steps.jsonl"
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 20, max_num_batched_tokens=40, max_num_seqs=4) as llm, llm.record_steps(path):
        llm.generate([[5] * length for length in (90, 30, 2, 70, 8)], SamplingParams(max_tokens=6), use_tqdm=False)
    return path


def test_the_command(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(recorded), "--replay"]) == 0
    assert capsys.readouterr().out.startswith("equal: ")
    first, *lines = (json.loads(line) for line in recorded.read_text().splitlines())
    steps = [line for line in lines if "step" in line]
    assert first["format"] == "llmi-steps-1" and sum("arrival" in line for line in lines) == 5
    ends = [step["start_s"] + step["seconds"] for step in steps]
    assert all(step["seconds"] > 0 and end <= after["start_s"] + 1e-9 for step, end, after in zip(steps, ends, steps[1:], strict=False))
    chosen = [next(event[1] for event in step["events"] if event[0] == "schedule") for step in steps]
    assert [step["rows"] for step in steps] == [sum(piece[1] for piece in pieces) for pieces in chosen]
    assert [step["step"] for step in steps] == list(range(len(steps))) and len(steps) >= 8


@pytest.mark.parametrize(
    "option, value", [("max_num_seqs", 3), ("max_num_batched_tokens", 41), ("num_pages", 9), ("scheduling_policy", "static")]
)
def test_another_scheduler_is_told_apart(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: object
) -> None:
    """A change of what the scheduler does shows at the first step that differs, not as an error."""
    header, rest = recorded.read_text().split("\n", 1)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({**json.loads(header), option: value}) + "\n" + rest)
    assert main(["simulate", str(other), "--replay"]) == 1
    assert re.search(r"other.jsonl:\d+, event \d+, schedule: .* recorded .* the scheduler here", capsys.readouterr().out)


@pytest.mark.parametrize(
    "old, new, words",
    [
        ('"format": "llmi-steps-1"', '"format": "x"', ":1: the first line"),
        ('"num_pages": ', '"number": ', "lacks num_pages"),
        ('"num_pages": ', '"num_pages": -', "no size of a pool"),
        ('"block_size": 16', '"block_size": "16"', "another type"),
        ('["add",0]', '["add",77]', ":2, event .*, add: the sequence holds no cache"),
        ('["add",0]', '["add",0],["add",0]', "queued already"),
        ('["add",0]', '["free",0],["add",0]', "holds no cache"),
        ('["add",0]', '["jump",0]', "no such event"),
        ('["add",0]', '["add"]', ":2, event"),
        ('["add",0]', '["other"],["add",0]', "only requests are replayed"),
        ('["add",0]', '["keep",0,500000,1],["add",0]', "more tokens than are reserved"),
        ('["add",0]', '["set",0,{"num_tokens":1000000}],["add",0]', "counts that no engine gives"),
        ('["add",0]', '["set",0,{"colour":1}],["add",0]', "no such field"),
        ('["add",0]', '["add",0],["free",0]', "the sequence is queued"),
        ('["add",0]', '["reserve",0,-5,0,0,1],["add",0]', "no number of slots"),
        ('["add",0]', '["pair",0,0],["add",0]', "no such pair"),
        ('{"arrival":0', '{"arrival":0,', ":2: "),
        ('"events":[', '"events":7,"x":[', "events is a list"),
    ],
)
def test_files_that_are_refused(recorded: Path, tmp_path: Path, old: str, new: str, words: str) -> None:
    text = recorded.read_text()
    assert old in text
    (tmp_path / "bad.jsonl").write_text(text.replace(old, new, 1))
    with pytest.raises(InvalidParamsError, match=words):
        replay(tmp_path / "bad.jsonl")


def test_files_that_end_early(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.jsonl").write_bytes(recorded.read_bytes()[:-5])
    with pytest.raises(InvalidParamsError, match="no whole JSON object"):
        replay(tmp_path / "cut.jsonl")
    with pytest.raises(InvalidParamsError, match="cannot be read"):
        replay(tmp_path / "none.jsonl")


def test_what_is_not_recorded(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    keeps = LLM(tiny_path(), kv_cache_memory_bytes=1 << 20, prefix_cache_dir=tmp_path / "blocks")
    with keeps, pytest.raises(InvalidParamsError, match="prefix_cache_dir"), keeps.record_steps(tmp_path / "x"):
        pass
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 20) as llm:
        with pytest.raises(InvalidParamsError, match="cannot be written"), llm.record_steps(tmp_path):
            pass
        with llm.record_steps(tmp_path / "a"), pytest.raises(InvalidParamsError, match="under way"), llm.record_steps(tmp_path / "b"):
            pass
        ids = llm.enqueue([[5, 6, 7]], SamplingParams(max_tokens=200))
        with pytest.raises(InvalidParamsError, match="begin before them"), llm.record_steps(tmp_path / "c"):
            pass
        llm.abort(ids)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 206))
def test_more_recorded_runs(tiny_path: Callable[..., Path], tmp_path: Path, seed: int) -> None:
    record(tmp_path / "steps.jsonl", tiny_path("gemma3" if seed % 2 else "llama"), seed)
    assert replay(tmp_path / "steps.jsonl").difference == ""
