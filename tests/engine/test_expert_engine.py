"""Engines of models with experts: every request has the bits of a lone run, in any company and on any device; counts of what was used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import llmi
from features import crowded_llm, expect_short_answers, mixed_params, one_by_one, there
from llmi import LLM, PromptLookup, SamplingParams, SpeculativeConfig
from llmi.testing import assert_same_tokens
from tiny_families import make

pytestmark = pytest.mark.parity
NUM_REQUESTS = 24
OPTIONS: dict[str, Any] = {"quantization": "q8_0", "max_model_len": 128}


def requests() -> tuple[list[list[int]], list[SamplingParams]]:
    rng = np.random.default_rng(5)
    prompts = [(rng.integers(1, 257, size=2 + i % 9).tolist() * 4)[: 3 + i % 30] for i in range(NUM_REQUESTS)]
    return prompts, mixed_params(NUM_REQUESTS)


@pytest.fixture(scope="module")
def path(families: Path) -> Path:
    return make("mixtral", families).path


@pytest.fixture(scope="module")
def roomy(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_cache_memory_bytes=1 << 24, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(roomy: LLM) -> Any:
    return one_by_one(roomy, *requests(), use_tqdm=False)


COMPANIES: dict[str, Callable[[Path], LLM]] = {
    "roomy": lambda path: LLM(path, kv_cache_memory_bytes=1 << 24, **OPTIONS),
    "pieces of 7": lambda path: LLM(path, kv_cache_memory_bytes=1 << 24, max_num_batched_tokens=7, **OPTIONS),
    "no prefix cache": lambda path: LLM(path, kv_cache_memory_bytes=1 << 24, enable_prefix_caching=False, num_threads=1, **OPTIONS),
    "few pages": lambda path: crowded_llm(path, 8, **OPTIONS),
}


@pytest.mark.parametrize("company", COMPANIES)
def test_a_request_has_the_bits_of_a_lone_run(path: Path, alone: Any, company: str) -> None:
    """In a batch, in pieces, behind known beginnings, preempted, and behind drafts: tokens and log-probabilities."""
    prompts, params = requests()
    with COMPANIES[company](path) as llm:
        if company == "few pages":
            expect_short_answers(llm)
        for config in (None, None, SpeculativeConfig(PromptLookup(), 7), SpeculativeConfig(PromptLookup(), "auto")):
            together = llm.generate(prompts, params, speculative_config=config, use_tqdm=False)
            assert_same_tokens(together, alone)
            for one, other in zip(together, alone, strict=True):
                assert one.outputs[0].logprobs == other.outputs[0].logprobs
        assert company != "few pages" or llm._engine.stats()["num_preemptions"] > 0


@pytest.mark.parametrize("verification", ["rejection", "typical"])
@pytest.mark.parametrize("length", [5, "auto"])
def test_judged_drafts_do_not_depend_on_the_batch(path: Path, roomy: LLM, verification: str, length: Any) -> None:
    """Lengths come of a table that the spec fixes."""
    prompts, params = requests()
    config = SpeculativeConfig(PromptLookup(), length, verification)
    lone = one_by_one(roomy, prompts, params, speculative_config=config, use_tqdm=False)
    with COMPANIES["pieces of 7"](path) as llm:
        assert_same_tokens(llm.generate(prompts, params, speculative_config=config, use_tqdm=False), lone)


def test_on_an_emulated_device(path: Path, alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded steps, too, whose experts are others than those of the recording."""
    prompts, params = requests()
    with LLM(path, kv_cache_memory_bytes=1 << 24, **OPTIONS, **there(monkeypatch, "emulated")) as llm:
        together = llm.generate(prompts[:8], params[:8], use_tqdm=False)
        assert_same_tokens(together, type(together)(alone[:8]))
        assert llm._engine.stats()["num_graph_replays"] > 0
        with pytest.raises(llmi.InvalidParamsError, match="on the CPU alone"):
            llm.expert_use()


def check_forks(roomy: LLM, tokens: list[int]) -> None:
    """A fork that went another way and back has the bits of a sequence at once."""
    whole = roomy.sequence(tokens)
    by_steps = roomy.sequence(tokens[:13])
    fork = by_steps.fork()
    fork.extend(tokens[:9])
    fork.rollback(9)
    for sequence in (by_steps, fork):
        for begin in range(13, 40, 9):
            sequence.extend(tokens[begin : begin + 9])
        assert np.asarray(sequence.logits).tobytes() == np.asarray(whole.logits).tobytes()


def test_forks_and_rollbacks(roomy: LLM) -> None:
    check_forks(roomy, [(7 * i + 3) % 257 for i in range(40)])


def test_use(path: Path) -> None:
    """Counts by layer and expert, and by pairs of layers; they follow the router's own choice."""
    tokens = [(7 * i + 3) % 257 for i in range(40)]
    with LLM(path, kv_cache_memory_bytes=1 << 22, dtype="float32", max_model_len=64) as llm:
        before = llm.expert_use()
        assert [int(layer.sum()) for layer in before.counts] == [0] * 4 and before.reads == [0] * 4
        llm.sequence(tokens).logits  # noqa: B018 (computes them)
        use = llm.expert_use()
    assert [int(layer.sum()) for layer in use.counts] == [2 * len(tokens)] * 4
    assert [both.shape for both in use.pairs] == [(0, 0), (8, 8), (8, 8), (8, 8)]
    assert [int(both.sum()) for both in use.pairs[1:]] == [4 * len(tokens)] * 3
    for layer, both in enumerate(use.pairs[1:], 1):
        assert (both.sum(0) == 2 * use.counts[layer]).all() and (both.sum(1) == 2 * use.counts[layer - 1]).all()
    assert all(0 < reads <= 8 for reads in use.reads)
    assert [int((layer > 0).sum()) for layer in use.counts] == use.reads


def test_use_of_layers_without_experts(families: Path) -> None:
    with LLM(make("qwen2_moe", families).path, kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm:
        llm.sequence([1, 2, 3])
        use = llm.expert_use()
    assert [len(layer) for layer in use.counts] == [8, 0, 8, 8]
    assert [both.shape for both in use.pairs] == [(0, 0), (0, 0), (0, 0), (8, 8)]


def test_scores_of_nan_end_their_request_alone(path: Path, tmp_path: Path, alone: Any) -> None:
    """A token whose embedding is not finite makes its router's scores NaN."""
    for file in path.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(path / "model.safetensors")
    tensors["model.embed_tokens.weight"][258, 3] = np.inf
    save_file(tensors, tmp_path / "model.safetensors")
    prompts, params = requests()
    with LLM(tmp_path, kv_cache_memory_bytes=1 << 24, dtype="float32", max_model_len=128) as llm:
        clean = llm.generate(prompts[:6], params[:6], use_tqdm=False)
        mixed = llm.generate(
            [*prompts[:3], [5, 258, 6], *prompts[3:6]], [*params[:3], params[0], *params[3:6]], use_tqdm=False, on_error="return"
        )
    assert isinstance(mixed[3].error, llmi.NonFiniteLogitsError)
    assert_same_tokens(type(clean)([*mixed[:3], *mixed[4:]]), clean)
