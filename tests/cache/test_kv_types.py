"""KV caches of int8, of fp8 and of bf16 pairs: the promise holds in them, drafts and trees move in them, and they are what they say in
reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from decoders import numbers_of
from features import DEVICES, make_request
from llmi import LLM, Capture, SamplingParams, SpeculativeConfig
from llmi.testing import assert_same_tokens
from test_invariance import COUNTS, make_params, make_prompts, run, tight_pool
from test_speculation import Replay, count

KV_TYPES = ["int8", "bfloat16", "fp8"]


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_no_configuration_moves_a_bit(tiny_path: Callable[..., Path], architecture: str, kv_type: str) -> None:
    model = tiny_path(architecture)
    prompts, params = make_prompts(257, 20, 300), make_params(20, 40)
    counts = dict.fromkeys(COUNTS, 0)
    solo = run(model, prompts, params, 1, counts, kv_cache_memory_bytes=1 << 24, kv_cache_dtype=kv_type)
    for chunk, block, threads in ((33, 16, 2), (100, 32, 1), (64, 16, 1)):
        engine: dict[str, Any] = {
            "kv_cache_dtype": kv_type, "max_num_batched_tokens": chunk, "block_size": block, "num_threads": threads, "max_model_len": 370,
        }  # fmt: skip
        memory = tight_pool(model, 300, 40, engine)
        assert_same_tokens(run(model, prompts, params, 20, counts, kv_cache_memory_bytes=memory, **engine), solo)
    assert counts["num_preemptions"] > 5 and counts["num_copies_on_write"] > 5, counts


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("feature", ["temperature", "penalties"])
def test_drafts_and_trees(tiny_path: Callable[..., Path], feature: str, kv_type: str) -> None:
    """Committed paths of trees move with their scales, and out of and into pairs."""
    with LLM(tiny_path("gemma3"), kv_cache_dtype=kv_type, kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        requests = [make_request(feature, 31 * i + 7) for i in range(6)]
        prompts, params = [p for p, _ in requests], [q for _, q in requests]
        plain = llm.generate(prompts, params)
        for config in (SpeculativeConfig(Replay(plain, tree=True), 9), SpeculativeConfig(Replay(plain), 4)):
            outputs = llm.generate(prompts, params, speculative_config=config)
            assert_same_tokens(outputs, plain)
            tokens, drafted, accepted = count(outputs)
            assert accepted >= 0.3 * tokens and drafted > accepted


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_prefixes_are_shared(tiny_path: Callable[..., Path], kv_type: str) -> None:
    with LLM(tiny_path(), kv_cache_dtype=kv_type, kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        prompt, params = list(range(3, 103)), SamplingParams(temperature=0.7, seed=5, max_tokens=20, logprobs=1, ignore_eos=True)
        first = llm.generate(prompt, params)
        second = llm.generate(prompt, params)
        assert second[0].num_cached_tokens == 99
        assert_same_tokens(second, first)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_close_to_float16_and_not_the_same(tiny_path: Callable[..., Path], kv_type: str) -> None:
    rows = {}
    weights = {}
    for kv_cache_dtype in ("float16", kv_type):
        with (
            LLM(tiny_path(), kv_cache_dtype=kv_cache_dtype, kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm,
            llm.sequence(list(range(3, 60)), capture=Capture(attention=(1,))) as sequence,
        ):
            rows[kv_cache_dtype] = np.array(sequence.logits)
            weights[kv_cache_dtype] = np.array(sequence.attention[1])
    difference = np.abs(rows[kv_type] - rows["float16"]).max()
    # e4m3 rounds by a sixteenth of a value at most, the others by 1/254 and less.
    coarse = 5 if kv_type == "fp8" else 1
    assert 0 < difference < coarse * 0.05 * np.abs(rows["float16"]).max()
    assert 0 < np.abs(weights[kv_type] - weights["float16"]).max() < coarse * 0.02


def test_capacity_and_names(tiny_path: Callable[..., Path]) -> None:
    """A head of d values takes d + d / 8 bytes; reports and the numerics id say so."""
    info, pages = {}, {}
    for kv_cache_dtype in ("float16", "int8", "bfloat16", "fp8"):
        with LLM(tiny_path(), kv_cache_dtype=kv_cache_dtype, kv_cache_memory_bytes=1 << 22, max_model_len=256) as llm:
            info[kv_cache_dtype] = llm.model_info
            pages[kv_cache_dtype] = llm.memory_report().num_blocks
    head_dim = numbers_of(tiny_path())["head_dim"]
    assert info["int8"].kv_bytes_per_token * 2 * head_dim == info["float16"].kv_bytes_per_token * (head_dim + head_dim // 8)
    assert info["bfloat16"].kv_bytes_per_token == info["float16"].kv_bytes_per_token and pages["bfloat16"] == pages["float16"]
    assert pages["int8"] == (1 << 22) // (16 * info["int8"].kv_bytes_per_token)
    for name, part in (
        ("int8", "-kv:i8-attn:f32"),
        ("float16", "-kv:f16-attn:f32"),
        ("bfloat16", "-kv:bf16-attn:bf16dot"),
        ("fp8", "-kv:f8-attn:f32"),
    ):
        assert part in info[name].numerics_id
    with pytest.raises(
        llmi.InvalidParamsError, match=r"kv_cache_dtype must be one of auto, float16, bfloat16, float32, int8, fp8, not 'fp4'"
    ):
        LLM(tiny_path(), kv_cache_dtype="fp4")


def test_attention_dtype_names_a_cache(tiny_path: Callable[..., Path]) -> None:
    """attention_dtype="bf16" is the bfloat16 cache; what contradicts it is refused by name."""
    engine: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 22, "max_model_len": 256}
    with LLM(tiny_path(), attention_dtype="bf16", **engine) as named, LLM(tiny_path(), kv_cache_dtype="bfloat16", **engine) as typed:
        assert named.model_info.numerics_id == typed.model_info.numerics_id
        assert_same_tokens(named.generate([[1, 2, 3]], temperature=0), typed.generate([[1, 2, 3]], temperature=0))
    with LLM(tiny_path(), attention_dtype="float32", **engine) as plain:
        assert "-kv:f16-attn:f32" in plain.model_info.numerics_id
    for attention, cache in (("bf16", "int8"), ("float32", "bfloat16")):
        with pytest.raises(
            llmi.UnsupportedCombinationError, match=f"attention_dtype = '{attention}' does not read kv_cache_dtype = '{cache}'"
        ):
            LLM(tiny_path(), attention_dtype=attention, kv_cache_dtype=cache)
    with pytest.raises(llmi.InvalidParamsError, match="attention_dtype must be one of auto, float32, bf16, not 'fp8'"):
        LLM(tiny_path(), attention_dtype="fp8")


@pytest.mark.parametrize("table", ["", *DEVICES])
def test_a_number_that_is_not_finite_is_not_lost(table: str) -> None:
    """Of K or V: rows that see it are not finite, and those before it are; in int8 it makes the scale NaN, and so all that the scale holds
    for."""
    ones = np.ones((20, 16), np.float32)
    nans = np.array([0x7FC00001, 0x7FFFFFFF, 0xFFFFFE01], np.uint32).view(np.float32)  # whose low bits are not zero, as a GPU's are
    for bad in (np.nan, np.inf, *nans):
        for name in ("k", "v"):
            kv = {"k": ones.copy(), "v": ones.copy()}
            kv[name][10, 3] = bad
            for kv_type in (*KV_TYPES, "float32"):
                out = llmi._core.testing.attention(table, ones, kv["k"], kv["v"], 1, 1, kv_dtype=kv_type)
                assert np.isfinite(out[:10]).all() and not np.isfinite(out[10:]).all(axis=1).any()
                assert kv_type != "int8" or np.isnan(out[10:]).all()


@pytest.mark.parametrize("engine", [{"kv_cache_dtype": "int8"}, {"attention_dtype": "bf16"}], ids=str)
@pytest.mark.unsanitized
def test_outputs_replay(smollm_path: Path, engine: dict[str, str]) -> None:
    """A receipt names the cache's type, and a replay uses it."""
    with LLM(smollm_path, kv_cache_memory_bytes=1 << 24, **engine) as llm:  # type: ignore[arg-type]
        receipt = llm.generate("The capital of", SamplingParams(temperature=1.0, seed=3, max_tokens=12))[0].receipt()
    assert receipt.fields["kv_cache_dtype"] == engine.get("kv_cache_dtype", "bfloat16")
    assert llmi.replay(receipt)
