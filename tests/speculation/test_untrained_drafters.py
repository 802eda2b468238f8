"""Drafters without training: tables, what the target said before, and their union as "auto". Lossless, and deaf to other requests."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from features import crowded_llm, expect_short_answers
from llmi import LLM, Outputs, SamplingParams, SpeculativeConfig, _core
from llmi.testing import assert_lossless, assert_same_tokens

LENGTHS: dict[str, int] = {"corpus": 3, "recycling": 6, "lookahead": 20, "union": 5}


def made(name: str, vocab_size: int = 257) -> Any:
    """A drafter of this name, new: what it has learnt is not shared."""
    rng = np.random.default_rng(4)
    texts = [rng.integers(0, min(vocab_size, 40), size=200).tolist() for _ in range(4)]
    table = llmi.CorpusDrafter(texts, max_bytes=4000)
    return {
        "corpus": table,
        "recycling": llmi.TokenRecycling(),
        "lookahead": llmi.Lookahead(window=3, ngram_size=3),
        "union": [table, llmi.PromptLookup()],
    }[name]


def config(name: str, verification: str, auto: bool = False, vocab_size: int = 257) -> SpeculativeConfig:
    return SpeculativeConfig(made(name, vocab_size), "auto" if auto else LENGTHS[name], verification)


@pytest.mark.parametrize("auto", [False, True], ids=["fixed", "auto"])
@pytest.mark.parametrize("name", LENGTHS)
def test_coupled_tokens_are_those_of_plain_decoding(tiny: LLM, name: str, auto: bool) -> None:
    assert_lossless(config(name, "coupled", auto), tiny, num_tokens=200)


@pytest.mark.parametrize("verification", ["rejection", "block"])
@pytest.mark.parametrize("name", LENGTHS)
def test_draws_follow_the_exact_law(small: LLM, name: str, verification: str) -> None:
    """With chains for "block", and lengths chosen by node for the union."""
    if verification == "block" and name == "union":
        choice = SpeculativeConfig(made(name, 16), "auto", verification)
    else:
        choice = SpeculativeConfig(made(name, 16), "auto" if name == "union" else min(LENGTHS[name], 4), verification)
    assert_lossless(choice, small, num_tokens=150)


Run = tuple[list[int], tuple[int, int, int]]  # tokens; drafts, tokens drafted, tokens accepted


def runs(outputs: Outputs) -> list[Run]:
    found = []
    for out in outputs:
        for entry in out.outputs:
            m = entry.spec_decode_metrics
            assert m is not None
            found.append((list(entry.token_ids), (m.num_drafts, m.num_draft_tokens, m.num_accepted_tokens)))
    return found


@pytest.mark.parametrize("verification", ["rejection", "block"])
@pytest.mark.parametrize(("name", "auto"), [*itertools.product(LENGTHS, [False]), ("union", True), ("recycling", True), ("corpus", True)])
def test_nothing_that_others_did_reaches_a_draft(tiny_path: Callable[..., Path], name: str, auto: bool, verification: str) -> None:
    """Alone on a new engine; after other requests with the same drafter; after a prefix hit; among others under preemption."""
    rng = np.random.default_rng(1)
    prompts = [(rng.integers(1, 40, size=6).tolist() * 6)[: int(rng.integers(18, 33))] for _ in range(8)]
    params = [
        SamplingParams(max_tokens=40, seed=i, ignore_eos=True, temperature=(0.0, 0.3, 1.0)[i % 3], top_k=12, n=1 + (i == 4))
        for i in range(8)
    ]
    with LLM(tiny_path("llama"), kv_cache_memory_bytes=1 << 23, max_model_len=160) as llm:
        alone: list[Run] = []
        for prompt, entry in zip(prompts, params, strict=True):
            llm.reset_prefix_cache()
            alone += runs(llm.generate(prompt, entry, speculative_config=config(name, verification, auto)))
        shared = config(name, verification, auto)
        llm.generate([prompt[:9] for prompt in prompts], params[::-1], speculative_config=shared)
        coupled = dataclasses.replace(shared, verification="coupled")  # under which the engine learns for all requests
        for prompt, entry in zip(prompts, params, strict=True):
            llm.generate(prompt, entry, speculative_config=coupled)
        assert runs(llm.generate(prompts, params, speculative_config=shared)) == alone, "after others"
        again = llm.generate(prompts, params, speculative_config=shared)
        assert runs(again) == alone and sum(out.num_cached_tokens or 0 for out in again) > 100, "after hits"
    with crowded_llm(tiny_path("llama"), 24, max_model_len=140, max_num_batched_tokens=48) as crowded:
        expect_short_answers(crowded)
        before = crowded.get_metrics()["num_preemptions"]
        assert runs(crowded.generate(prompts, params, speculative_config=shared)) == alone, "under pressure"
        assert crowded.get_metrics()["num_preemptions"] > before
    assert sum(drafted for _, (_, drafted, _) in alone) > 0


@pytest.mark.parametrize("name", LENGTHS)
def test_emulated_device(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    prompts = [[5, 6, 7, 5, 6, 7, 5], [9, 9, 9, 3]]
    params = [SamplingParams(max_tokens=24, seed=2, ignore_eos=True, temperature=t) for t in (0.0, 0.7)]
    with (
        LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=128) as host,
        LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=128, device="cuda") as device,
    ):
        plain = device.generate(prompts, params)
        assert_same_tokens(device.generate(prompts, params, speculative_config=config(name, "coupled")), plain)
        judged = [runs(llm.generate(prompts, params, speculative_config=config(name, "rejection"))) for llm in (host, device)]
        assert judged[0] == judged[1]


def test_recycling_shares_what_it_learns_where_it_may(tiny: LLM) -> None:
    """Coupled: a second request of the same text is drafted from what the first has shown. Rejection: it begins anew."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, seed=0)
    plain = tiny.generate([[1, 2, 3]], params)
    for verification, learns in (("coupled", True), ("rejection", False)):
        drafter = SpeculativeConfig(llmi.TokenRecycling(), 4, verification)
        first, second = (runs(tiny.generate([[1, 2, 3]], params, speculative_config=drafter))[0] for _ in range(2))
        assert first[0] == second[0] == plain[0].token_ids
        assert (second[1][2] > first[1][2]) == learns
        assert second == first or learns
    assert tiny.memory_report().drafter_bytes > 0


def test_likeliest_tokens() -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 7, 64, 65, 300):
        row = rng.integers(0, 9, size=size).astype(np.float32)
        row[rng.random(size) < 0.1] = -np.inf
        row[rng.random(size) < 0.1] = np.nan
        expected = [int(i) for i in np.lexsort((np.arange(size), -np.nan_to_num(row, nan=-np.inf))) if np.isfinite(row[i])][:8]
        assert _core.testing.likeliest_tokens(row, 8) == expected
    assert _core.testing.likeliest_tokens(row, 0) == []


def test_lookahead_gains_where_a_text_repeats(tiny: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, seed=0)
    plain = tiny.generate([[3, 4, 5, 6] * 4], params)
    for verification in ("coupled", "rejection", "block"):
        outs = tiny.generate([[3, 4, 5, 6] * 4], params, speculative_config=SpeculativeConfig(llmi.Lookahead(), 20, verification))
        assert outs[0].token_ids == plain[0].token_ids
        metrics = outs[0].outputs[0].spec_decode_metrics
        # Block verification takes one chain a step: it drafts 28 tokens here, where the trees of the others have 534.
        assert metrics is not None and metrics.num_accepted_tokens > (2 if verification == "block" else 5), verification


def test_arguments() -> None:
    for arguments in ({"window": 0}, {"window": 33}, {"ngram_size": 1}, {"ngram_size": 9}, {"window": 2.5}):
        with pytest.raises(llmi.InvalidParamsError, match=next(iter(arguments))):
            llmi.Lookahead(**arguments)  # type: ignore[arg-type]
    assert llmi.Lookahead(4, 3) == llmi.Lookahead(4, 3) != llmi.Lookahead(5, 3)
    assert llmi.TokenRecycling() == llmi.TokenRecycling() and repr(llmi.Lookahead()) == "Lookahead(window=5, ngram_size=3)"
