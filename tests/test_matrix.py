"""Every sampling feature beside every other in one batch, under pressure, against each request alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmi import LLM, Outputs, SamplingParams, TokenContext
from llmi.testing import assert_same_tokens


def stateful(context: TokenContext, logits: Any) -> None:
    """A processor with memory: bans what it saw drawn three steps ago."""
    seen = context.state.setdefault("seen", [])
    seen.append(int(context.token_ids[-1]))
    if len(seen) > 3:
        logits[seen[-3]] = -np.inf


def own_sampler(context: TokenContext, law: Any) -> int:
    return int(np.argsort(-law, kind="stable")[len(context.token_ids) % 3])


FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "filters": {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "bias": {"logit_bias": {5: 3.0, 6: -float("inf")}},
    "allowed": {"allowed_token_ids": list(range(40, 90))},
    "bad_words": {"bad_words": ["ab", "c", "de f"]},
    "min_tokens": {"min_tokens": 10, "ignore_eos": False, "stop_token_ids": [7, 8, 9]},
    "stop": {"stop": ["a", "\n", "zz"], "ignore_eos": False},
    "stop_ids": {"stop_token_ids": list(range(100, 140))},
    "n": {"n": 3, "temperature": 1.2},
    "logprobs": {"logprobs": 5},
    "prompt_logprobs": {"prompt_logprobs": 2, "top_p": 0.8},
    "processor": {"logits_processors": [stateful], "n": 2},
    "sampler": {"sampler": own_sampler},
    "criterion": {"stopping_criteria": [lambda context: len(context.token_ids) % 19 == 0 and "nineteen"]},
    "no_text": {"detokenize": False},
}


@pytest.fixture(scope="module")
def crowded(tiny_path: Callable[..., Path]) -> Any:
    """An engine with little memory, small chunks and few seats."""
    path = tiny_path("gemma3")
    with LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=160) as probe:
        memory = probe._page_bytes * 24
    with LLM(path, kv_cache_memory_bytes=memory, max_model_len=110, max_num_batched_tokens=24, max_num_seqs=12) as llm:
        yield llm


@pytest.fixture(scope="module")
def roomy(tiny_path: Callable[..., Path]) -> Any:
    with LLM(tiny_path("gemma3"), kv_cache_memory_bytes=1 << 24, max_model_len=256) as llm:
        yield llm


def request(name: str, seed: int) -> tuple[list[int], SamplingParams]:
    rng = np.random.default_rng(seed)
    prompt = rng.integers(1, 257, size=int(rng.integers(1, 60))).tolist()
    base = {"temperature": 1.0, "max_tokens": 48, "seed": seed, "ignore_eos": True, "logprobs": 1}
    return prompt, SamplingParams(**{**base, **FEATURES[name]})


def test_all_features_in_one_batch(crowded: LLM, roomy: LLM) -> None:
    requests = [request(name, 17 * i + 1) for i, name in enumerate([*FEATURES, *FEATURES])]
    before = crowded.get_metrics()
    together = crowded.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    for (prompt, params), output in zip(requests, together, strict=True):
        assert_same_tokens(Outputs([output]), roomy.generate(prompt, params))
    after = crowded.get_metrics()
    assert after["num_preemptions"] - before["num_preemptions"] >= 5, "too little pressure to have tested anything"
    assert after["num_copies_on_write"] > before["num_copies_on_write"]
    assert after["num_window_blocks_returned"] > before["num_window_blocks_returned"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(sorted(FEATURES)), st.integers(0, 1000)), min_size=1, max_size=16))
def test_random_batches(crowded: LLM, roomy: LLM, chosen: list[tuple[str, int]]) -> None:
    requests = [request(name, seed) for name, seed in chosen]
    together = crowded.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    for (prompt, params), output in zip(requests, together, strict=True):
        assert_same_tokens(Outputs([output]), roomy.generate(prompt, params))
