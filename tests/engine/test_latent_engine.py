"""Engines of models with latent attention: every request has the bits of a lone run, in any company, with any cache and on any device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from features import one_by_one, there
from llmi import LLM, Capture, PromptLookup, SamplingParams, SpeculativeConfig, TokenTree
from llmi.ranks import workers
from llmi.testing import assert_same_tokens
from rank_threads import RankThreads
from test_expert_engine import COMPANIES, OPTIONS, check_forks, requests
from tiny_families import make

pytestmark = pytest.mark.parity
PROMPTS, PARAMS = requests()
TOKENS = [(7 * i + 3) % 257 for i in range(40)]


@pytest.fixture(scope="module")
def path(families: Path) -> Path:
    return make("deepseek_v2", families, kv_lora_rank=64).path


@pytest.fixture(scope="module")
def roomy(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_cache_memory_bytes=1 << 24, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(roomy: LLM) -> Any:
    return one_by_one(roomy, PROMPTS, PARAMS, use_tqdm=False)


@pytest.mark.parametrize("company", [name for name in COMPANIES if name != "few pages"])
def test_a_request_has_the_bits_of_a_lone_run(path: Path, alone: Any, company: str) -> None:
    """In a batch, in pieces, behind known beginnings and behind drafts: tokens and log-probabilities."""
    with COMPANIES[company](path) as llm:
        for config in (None, None, SpeculativeConfig(PromptLookup(), 7)):
            together = llm.generate(PROMPTS, PARAMS, speculative_config=config, use_tqdm=False)
            assert_same_tokens(together, alone)
            for one, other in zip(together, alone, strict=True):
                assert one.outputs[0].logprobs == other.outputs[0].logprobs


def test_preempted_requests(path: Path, roomy: LLM) -> None:
    """Twelve answers of four pages each, and eight pages."""
    prompts = [prompt[:5] for prompt in PROMPTS[:12]]
    params = [SamplingParams(max_tokens=60, ignore_eos=True, temperature=i % 3 / 2, seed=i, logprobs=2) for i in range(12)]
    lone = one_by_one(roomy, prompts, params, use_tqdm=False)
    with COMPANIES["few pages"](path) as llm:
        assert_same_tokens(llm.generate(prompts, params, use_tqdm=False), lone)
        assert llm._engine.stats()["num_preemptions"] > 0


def test_judged_drafts_do_not_depend_on_the_batch(path: Path, roomy: LLM) -> None:
    config = SpeculativeConfig(PromptLookup(), "auto", "rejection")
    lone = one_by_one(roomy, PROMPTS, PARAMS, speculative_config=config, use_tqdm=False)
    with COMPANIES["pieces of 7"](path) as llm:
        assert_same_tokens(llm.generate(PROMPTS, PARAMS, speculative_config=config, use_tqdm=False), lone)


def test_on_an_emulated_device(path: Path, alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(path, kv_cache_memory_bytes=1 << 24, **OPTIONS, **there(monkeypatch, "emulated")) as llm:
        together = llm.generate(PROMPTS[:6], PARAMS[:6], use_tqdm=False)
        assert_same_tokens(together, type(together)(alone[:6]))
        assert llm._engine.stats()["num_graph_replays"] > 0


def test_forks_and_rollbacks(roomy: LLM) -> None:
    check_forks(roomy, TOKENS)


@pytest.mark.parametrize("kv_cache_dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_other_caches(path: Path, kv_cache_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, in pieces and on the emulated device: the same bits, near those of an fp32 cache."""
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 1 << 22}

    def ends(**more: Any) -> Any:
        with LLM(path, **options, **more) as llm:
            sequence = llm.sequence(TOKENS[:5])
            sequence.extend(TOKENS[5:])
            return np.asarray(llm.sequence(TOKENS).logits), np.asarray(sequence.logits)

    whole, by_steps = ends(kv_cache_dtype=kv_cache_dtype, max_num_batched_tokens=7)
    assert np.atleast_2d(whole)[-1].tobytes() == np.atleast_2d(by_steps)[-1].tobytes()
    there_whole, _ = ends(kv_cache_dtype=kv_cache_dtype, **there(monkeypatch, "emulated"))
    assert there_whole.tobytes() == whole.tobytes()
    near, _ = ends(kv_cache_dtype="float32")
    assert np.abs(near - whole).max() < {"float32": 1e-9, "bfloat16": 0.3, "int8": 0.5, "fp8": 2.0}[kv_cache_dtype]


@pytest.mark.parametrize("split", [None, [0.6, 0.02, 0.38]])
def test_on_several_ranks(path: Path, alone: Any, split: list[float] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads are split, the latent's pages are whole on each that has some; the second of three unequal ranks has none."""
    monkeypatch.setattr(workers, "Ranks", RankThreads)
    ranks: dict[str, Any] = {"tensor_parallel_size": 3, "tensor_split": split, "kv_cache_memory_bytes": 1 << 22}
    with LLM(path, **ranks, **OPTIONS) as llm:
        for config in (None, SpeculativeConfig(PromptLookup(), 7)):
            together = llm.generate(PROMPTS, PARAMS, speculative_config=config, use_tqdm=False)
            assert_same_tokens(together, alone)
            for one, other in zip(together, alone, strict=True):
                assert one.outputs[0].logprobs == other.outputs[0].logprobs
        heads = [worker.query_heads for worker in llm.workers()]
    assert len(heads) == 3 and (0 in heads) is (split is not None)


@pytest.mark.parametrize("name", ["one rank", "three ranks"])
def test_attention_weights(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of transformers, whose keys of all heads are made; the same bits at once, step by step and along the path of a tree."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), output_attentions=True).attentions
    capture = Capture(attention=range(1, len(expected) + 1))
    monkeypatch.setattr(workers, "Ranks", RankThreads)
    count = 1 if name == "one rank" else 3
    options: dict[str, Any] = {"dtype": "float32", "kv_cache_dtype": "float32", "tensor_parallel_size": count}
    with LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=64, **options) as llm:
        sequence = llm.sequence(TOKENS[:1], capture=capture)
        sequence.extend(TOKENS[1:])
        stepped = llm.sequence(TOKENS[:39], capture=capture)
        stepped.extend(TOKENS[39:])
        drafted = llm.sequence(TOKENS[:37], capture=capture)
        drafted.extend(TokenTree([TOKENS[37], 5, TOKENS[38], TOKENS[39]], [-1, 0, 0, 2]))
        drafted.commit([0, 2, 3])
        assert sorted(sequence.attention) == list(range(1, len(expected) + 1))
        for layer, weights in sequence.attention.items():
            reference = expected[layer - 1][0].numpy().transpose(1, 0, 2)[1:]
            assert weights.shape == reference.shape
            assert np.abs(weights - reference).max() < 2e-5
            assert_same_bits(stepped.attention[layer][0], weights[-1])
            assert_same_bits(drafted.attention[layer][-1], weights[-1])
