"""States in a device's memory: the CPU's bits in any company, behind known beginnings, preemption, drafts, forks and rollbacks, in steps
that are played and that run ahead of their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from features import DEVICES, WHOLE_GRIDS, one_by_one, there
from llmi import LLM, PromptLookup, SamplingParams, SpeculativeConfig, TokenTree
from llmi.testing import assert_same_tokens
from test_recurrent_cards import made
from test_state_engine import OPTIONS, TOKENS, bits, broken_model, requests

pytestmark = pytest.mark.parity
COMPANIES: dict[str, dict[str, Any]] = {
    "snapshots": {"kv_cache_memory_bytes": 1 << 25, "state_snapshot_interval": 16},
    "pieces of 7": {"kv_cache_memory_bytes": 1 << 25, "max_num_batched_tokens": 7},
}


CASES = [("lfm2", "snapshots"), ("qwen3_5_text", "pieces of 7"), ("granite", "snapshots")]
CASES += [(name, other) for name, company in CASES for other in COMPANIES if other != company] if WHOLE_GRIDS else []


@pytest.fixture(autouse=True, scope="module")
def audited() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMI_AUDIT", "1")
        yield


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "company"), CASES)
def test_a_request_has_the_bits_of_the_cpu(name: str, company: str, device: str, families: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, params = (part[:8] for part in requests())
    path, sizes = made(name, families).path, OPTIONS if name != "granite" else {"max_model_len": 160}
    with LLM(path, **sizes, kv_cache_memory_bytes=1 << 25, enable_prefix_caching=False) as llm:
        alone: Any = one_by_one(llm, prompts, params, use_tqdm=False)
    with LLM(path, **sizes, **COMPANIES[company], **there(monkeypatch, device)) as llm:
        for config in (None, SpeculativeConfig(PromptLookup(), 5)):
            together = llm.generate(prompts, params, speculative_config=config, use_tqdm=False)
            assert_same_tokens(together, alone)
            assert [output.outputs[0].logprobs for output in together] == [output.outputs[0].logprobs for output in alone]
        greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        drawn = llm.generate(prompts, greedy, use_tqdm=False)
        stats = llm._engine.stats()
    assert stats["num_graph_replays"] > 0 and stats["num_device_draws"] > 0
    assert stats["num_steps_ahead"] > 0 or company != "snapshots"
    with LLM(path, **sizes, kv_cache_memory_bytes=1 << 25) as llm:
        assert_same_tokens(drawn, llm.generate(prompts, greedy, use_tqdm=False))


@pytest.mark.parametrize(("name", "memory"), [("lfm2", 3 << 17), ("qwen3_5_text", 1 << 21)])
def test_samples_that_are_preempted(name: str, memory: int, families: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 sequences over six slots. What a preempted one had is computed again: no state goes to the host."""
    path, prompts = made(name, families).path, [[5, 6, 7 + last] * 3 for last in range(6)]
    params = SamplingParams(n=4, temperature=1.0, seed=2, max_tokens=20, ignore_eos=True)
    with LLM(path, kv_cache_memory_bytes=1 << 25, **OPTIONS) as llm:
        expected = llm.generate(prompts, params, use_tqdm=False)
    with LLM(path, kv_cache_memory_bytes=memory, **OPTIONS, **there(monkeypatch, "emulated")) as llm:
        assert_same_tokens(llm.generate(prompts, params, use_tqdm=False), expected)
        stats = llm._engine.stats()
    assert stats["num_preemptions"] > 0 and stats["num_restored_tokens"] == 0


@pytest.fixture(scope="module")
def engines(families: Path) -> Iterator[tuple[LLM, LLM]]:
    """On the CPU and on the emulated device."""
    path = made("qwen3_5_text", families).path
    options = OPTIONS | {"kv_cache_memory_bytes": 1 << 25}
    with pytest.MonkeyPatch.context() as patch, LLM(path, **options) as here, LLM(path, **options, **there(patch, "emulated")) as llm:
        yield here, llm


@pytest.mark.parametrize("back", [1, 32, 100])
def test_forks_and_rollbacks(engines: tuple[LLM, LLM], back: int) -> None:
    seen = []
    for llm in engines:
        sequence = llm.sequence(TOKENS[:13])
        for begin in range(13, 117, 26):
            sequence.extend(TOKENS[begin : begin + 26])
        fork = sequence.fork()
        for part in (sequence, fork):
            part.extend([9] * 5)
            part.rollback(5 + back)
        for part in (fork, sequence):
            part.extend(TOKENS[len(part.token_ids) : 117])
            seen.append(bits(part))
    assert len(set(seen)) == 1


def test_trees(engines: tuple[LLM, LLM]) -> None:
    """Nodes whose parents are not the rows before them, two and three levels deep; then the tokens of one path."""
    parents = [-1, 0, -1, 2, 2, 4, 3, 0]
    seen = []
    for llm in engines:
        sequence = llm.sequence(TOKENS[:40])
        sequence.logits  # noqa: B018 (computes them)
        rows = [np.asarray(row).tobytes() for row in sequence.extend(TokenTree(TOKENS[100:108], parents))]
        sequence.commit([2, 4, 5])
        sequence.extend(TOKENS[40:60])
        seen.append([*rows, bits(sequence)])
    assert seen[0] == seen[1]


def test_a_state_that_is_not_finite_leaves_no_snapshot(families: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, prompt = broken_model(families, tmp_path), [5, 258, *TOKENS[:40]]
    params = SamplingParams(temperature=0, max_tokens=8, allowed_token_ids=list(range(1, 257)))
    options: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 25, "dtype": "float32", "max_model_len": 128}
    with LLM(path, **options) as llm:
        clean = llm.generate([TOKENS[:30]], params, use_tqdm=False)
    with LLM(path, **options, **there(monkeypatch, "emulated")) as llm:
        for _ in range(2):
            mixed = llm.generate([TOKENS[:30], prompt], params, use_tqdm=False, on_error="return")
            assert isinstance(mixed[1].error, llmi.NonFiniteLogitsError)
            assert_same_tokens(type(clean)(mixed[:1]), clean)
        assert llm.memory_report().num_snapshots == 1


def test_a_step_that_ran_ahead_is_dropped(families: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request draws the token that breaks it; the step that was launched meanwhile must not have changed the others' states."""
    path = broken_model(families, tmp_path)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, allowed_token_ids=list(range(1, 257)))
    options: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 25, "dtype": "float32", "max_model_len": 128}
    with LLM(path, **options) as llm:
        clean = llm.generate([TOKENS[:30], TOKENS[:9]], params, use_tqdm=False)
    with LLM(path, **options, **there(monkeypatch, "emulated")) as llm:
        breaking = params.replace(allowed_token_ids=[258])
        mixed = llm.generate([TOKENS[:30], TOKENS[:20], TOKENS[:9]], [params, breaking, params], use_tqdm=False, on_error="return")
        assert isinstance(mixed[1].error, llmi.NonFiniteLogitsError)
        assert_same_tokens(type(clean)([mixed[0], mixed[2]]), clean)
        assert llm._engine.stats()["num_steps_ahead"] > 10
