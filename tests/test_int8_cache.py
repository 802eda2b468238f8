"""The int8 KV cache: the promise holds in it, drafts and trees move in it, and it is what it says in reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from features import make_request
from llmi import LLM, Capture, SamplingParams, SpeculativeConfig
from llmi.testing import assert_same_tokens
from test_invariance import COUNTS, make_params, make_prompts, run, tight_pool
from test_speculation import Replay, count


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_no_configuration_moves_a_bit(tiny_path: Callable[..., Path], architecture: str) -> None:
    model = tiny_path(architecture)
    prompts, params = make_prompts(257, 20, 300), make_params(20, 40)
    counts = dict.fromkeys(COUNTS, 0)
    solo = run(model, prompts, params, 1, counts, kv_cache_memory_bytes=1 << 24, kv_cache_dtype="int8")
    for chunk, block, threads in ((33, 16, 2), (100, 32, 1), (64, 16, 1)):
        engine: dict[str, Any] = {
            "kv_cache_dtype": "int8", "max_num_batched_tokens": chunk, "block_size": block, "num_threads": threads, "max_model_len": 370,
        }  # fmt: skip
        memory = tight_pool(model, 300, 40, engine)
        assert_same_tokens(run(model, prompts, params, 20, counts, kv_cache_memory_bytes=memory, **engine), solo)
    assert counts["num_preemptions"] > 5 and counts["num_copies_on_write"] > 5, counts


@pytest.mark.parametrize("feature", ["temperature", "penalties"])
def test_drafts_and_trees(tiny_path: Callable[..., Path], feature: str) -> None:
    """Committed paths of trees move with their scales."""
    with LLM(tiny_path("gemma3"), kv_cache_dtype="int8", kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        requests = [make_request(feature, 31 * i + 7) for i in range(6)]
        prompts, params = [p for p, _ in requests], [q for _, q in requests]
        plain = llm.generate(prompts, params)
        for config in (SpeculativeConfig(Replay(plain, tree=True), 9), SpeculativeConfig(Replay(plain), 4)):
            outputs = llm.generate(prompts, params, speculative_config=config)
            assert_same_tokens(outputs, plain)
            tokens, drafted, accepted = count(outputs)
            assert accepted >= 0.3 * tokens and drafted > accepted


def test_prefixes_are_shared(tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path(), kv_cache_dtype="int8", kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        prompt, params = list(range(3, 103)), SamplingParams(temperature=0.7, seed=5, max_tokens=20, logprobs=1, ignore_eos=True)
        first = llm.generate(prompt, params)
        second = llm.generate(prompt, params)
        assert second[0].num_cached_tokens == 99
        assert_same_tokens(second, first)


def test_close_to_float16_and_not_the_same(tiny_path: Callable[..., Path]) -> None:
    rows = {}
    weights = {}
    for kv_cache_dtype in ("float16", "int8"):
        with (
            LLM(tiny_path(), kv_cache_dtype=kv_cache_dtype, kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm,
            llm.sequence(list(range(3, 60)), capture=Capture(attention=(1,))) as sequence,
        ):
            rows[kv_cache_dtype] = np.array(sequence.logits)
            weights[kv_cache_dtype] = np.array(sequence.attention[1])
    difference = np.abs(rows["int8"] - rows["float16"]).max()
    assert 0 < difference < 0.05 * np.abs(rows["float16"]).max()
    assert 0 < np.abs(weights["int8"] - weights["float16"]).max() < 0.02


def test_capacity_and_names(tiny_path: Callable[..., Path]) -> None:
    """A head of d values takes d + d / 8 bytes; reports and the numerics id say so."""
    info, pages = {}, {}
    for kv_cache_dtype in ("float16", "int8"):
        with LLM(tiny_path(), kv_cache_dtype=kv_cache_dtype, kv_cache_memory_bytes=1 << 22, max_model_len=256) as llm:
            info[kv_cache_dtype] = llm.model_info
            pages[kv_cache_dtype] = llm.memory_report().num_blocks
    head_dim = llmi._core.load_config(str(tiny_path()))["head_dim"]
    assert info["int8"].kv_bytes_per_token * 2 * head_dim == info["float16"].kv_bytes_per_token * (head_dim + head_dim // 8)
    assert pages["int8"] == (1 << 22) // (16 * info["int8"].kv_bytes_per_token)
    assert "-kv:i8-" in info["int8"].numerics_id and "-kv:f16-" in info["float16"].numerics_id
    with pytest.raises(llmi.InvalidParamsError, match=r"kv_cache_dtype must be one of auto, float16, float32, int8, not 'fp8'"):
        LLM(tiny_path(), kv_cache_dtype="fp8")


def test_a_number_that_is_not_finite_is_not_lost() -> None:
    """Of K or V: it makes the scale NaN, so the rows that see it are NaN, and those before it are not."""
    ones = np.ones((20, 16), np.float32)
    for bad in (np.nan, np.inf):
        for name in ("k", "v"):
            kv = {"k": ones.copy(), "v": ones.copy()}
            kv[name][10, 3] = bad
            out = llmi._core.testing.attention("", ones, kv["k"], kv["v"], 1, 1, kv_dtype="int8")
            assert np.isfinite(out[:10]).all() and np.isnan(out[10:]).all()


def test_outputs_replay(smollm_path: Path) -> None:
    """A receipt names the cache's type, and a replay uses it."""
    with LLM(smollm_path, kv_cache_dtype="int8", kv_cache_memory_bytes=1 << 24) as llm:
        receipt = llm.generate("The capital of", SamplingParams(temperature=1.0, seed=3, max_tokens=12))[0].receipt()
    assert receipt.fields["kv_cache_dtype"] == "int8"
    assert llmi.replay(receipt)
