"""Whole engines whose layers are quantised, with activations of 8 and of 16 bits: the promise, and what 16 bits are for.

The compositions are those of the files that test them on float weights; each is run here on a model with matrices of all quantised types.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
import test_matrix
import test_prefix_cache
import test_promise
import test_sequences
import test_shortlist
import test_speculation
from bits import assert_same_bits
from features import DEVICES, WHOLE_GRIDS, crowded_llm, make_request, there
from llmi import LLM, Capture, Outputs, SamplingParams, SelfDraft, SpeculativeConfig, _core
from llmi.testing import assert_same_tokens
from test_invariance import COUNTS, covering_array, make_params, make_prompts, run, tight_pool
from tiny_gguf import mixed_gguf

MODES: dict[int, dict[str, Any]] = {8: {"activation_bits": 8}, 16: {}}
TABLES: list[str] = _core.system_info()["tables"]


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_gguf(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="session")
def weak(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft model for it."""
    return mixed_gguf(tmp_path_factory.mktemp("weak"), num_layers=1, seed=5)


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODES[request.param]


@pytest.fixture(scope="module")
def roomy(mixed: Path, mode: dict[str, Any]) -> Iterator[LLM]:
    with LLM(mixed, kv_cache_memory_bytes=1 << 25, max_model_len=512, **mode) as llm:
        yield llm


@pytest.fixture(scope="module")
def crowded(mixed: Path, mode: dict[str, Any]) -> Iterator[LLM]:
    with crowded_llm(mixed, 36, max_model_len=160, max_num_batched_tokens=48, **mode) as llm:
        yield llm


ENGINES = [(16, "llama", "q8_0"), (8, "gemma3", "q4_0"), *([(8, "llama", "q8_0"), (16, "gemma3", "q4_0")] if WHOLE_GRIDS else [])]


@pytest.mark.parametrize(("mode", "architecture", "quantization"), ENGINES, indirect=["mode"])
def test_no_configuration_moves_a_bit(
    tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any], architecture: str, quantization: str
) -> None:
    """Batches, chunks, blocks, threads, preemption, tables and the device: each pair of values of any two meets once."""
    path, base = tiny_path(architecture), {**mode, "quantization": quantization}
    prompts, params = make_prompts(257, 16, 300), make_params(16, 24)
    counts = dict.fromkeys(COUNTS, 0)
    solo = run(path, prompts, params, 1, counts, kv_cache_memory_bytes=1 << 24, **base)
    tables = [table for table in TABLES if table != "reference"]
    places = [*itertools.islice(itertools.cycle(tables), max(len(tables), 3)), "emulated"]  # as many runs where a machine has one table
    for batch, chunk, block, threads, tight, place in covering_array(
        ((16, 7), (7, 100, 2048), (16, 64), (2, 1), (True, False), range(len(places)))
    ):
        engine = {**base, **there(monkeypatch, places[place]), "max_num_batched_tokens": chunk, "block_size": block, "num_threads": threads}
        engine["max_model_len"] = 340
        memory = tight_pool(path, 300, 24, engine) if tight else 1 << 24
        assert_same_tokens(run(path, prompts, params, batch, counts, kv_cache_memory_bytes=memory, **engine), solo)
    assert counts["num_preemptions"] >= 5 and counts["num_copies_on_write"] >= 20, counts


def test_a_crowd_on_all_types_of_weights(mixed: Path, monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any]) -> None:
    prompts, params = make_prompts(257, 12, 33), make_params(12, 40)
    counts = dict.fromkeys(COUNTS, 0)
    solo = run(mixed, prompts, params, 1, counts, kv_cache_memory_bytes=1 << 24, **mode)
    for table, chunk in [("emulated", 30), *((table, 50) for table in TABLES if table != "reference")]:
        engine = {**mode, **there(monkeypatch, table), "max_num_batched_tokens": chunk, "max_model_len": 80}
        memory = tight_pool(mixed, 33, 40, engine)
        assert_same_tokens(run(mixed, prompts, params, 12, counts, kv_cache_memory_bytes=memory, **engine), solo)
    assert counts["num_preemptions"] >= 3, counts


def test_tables_and_devices_give_the_same_logits(
    mixed: Path, tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any]
) -> None:
    """All rows of a prompt at once, in chunks, and one by one."""
    tokens = np.random.default_rng(4).integers(1, 257, size=70).tolist()
    for path, options in ((mixed, {}), (tiny_path("gemma3"), {"quantization": "q8_0"}), (tiny_path("llama"), {"quantization": "q4_0"})):
        rows = {}
        for table in (*TABLES, *DEVICES):
            engine = {"kv_cache_memory_bytes": 1 << 23, "max_model_len": 128, **options, **mode, **there(monkeypatch, table)}
            with LLM(path, **engine) as llm:
                whole = llm.sequence(tokens[:1]).extend(tokens[1:])
                parts = llm.sequence(tokens[:1])
                cuts = [1, 2, 4, 9, 17, 26, 42, 58, 69, 70]
                apart = np.concatenate([parts.extend(tokens[begin:end]) for begin, end in itertools.pairwise(cuts)])
                assert_same_bits(apart, whole, table)
                rows[table] = whole
        assert len({row.tobytes() for row in rows.values()}) == 1


@pytest.mark.parametrize("feature", ["filters", "penalties", "n"])
def test_drafts_change_nothing(crowded: LLM, weak: Path, mode: dict[str, Any], feature: str) -> None:
    with LLM(weak, kv_cache_memory_bytes=1 << 23, max_model_len=256, **mode) as draft_llm:
        test_speculation.test_matrix(crowded, draft_llm, feature)


def test_all_features_side_by_side(crowded: LLM, roomy: LLM) -> None:
    requests = [make_request(name, 17 * i + 1) for i, name in enumerate([*test_matrix.ALL_FEATURES] * 2)]
    for _, params in requests:  # as wide as this model
        if params.steering is not None:
            params.steering = {layer: np.resize(vector, 256) for layer, vector in params.steering.items()}
    before = crowded.get_metrics()["num_preemptions"]
    together = crowded.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    for (prompt, params), output in zip(requests, together, strict=True):
        assert_same_tokens(Outputs([output]), roomy.generate(prompt, params))
    assert crowded.get_metrics()["num_preemptions"] - before >= 3


@pytest.fixture(scope="module")
def budgets(tiny_path: Callable[..., Path], mode: dict[str, Any]) -> Iterator[dict[str, LLM]]:
    """Engines whose steps have room for 2,048, 16 and 3 tokens, and one with few pages."""
    path = tiny_path("llama", vocab_size=16, num_layers=2)
    options: dict[str, Any] = {"quantization": "q4_0", "max_model_len": 128, **mode}
    with (
        LLM(path, kv_cache_memory_bytes=1 << 23, **options) as roomy,
        LLM(path, kv_cache_memory_bytes=1 << 23, max_num_batched_tokens=16, **options) as small,
        LLM(path, kv_cache_memory_bytes=1 << 23, max_num_batched_tokens=3, enable_prefix_caching=False, **options) as smallest,
        crowded_llm(path, 9, **options) as few,
    ):
        yield {"roomy": roomy, "budget 16": small, "budget 3": smallest, "few pages": few}


@pytest.mark.parametrize("drafter", test_promise.DRAFTERS)
@pytest.mark.parametrize("verification", test_promise.VERIFICATIONS)
def test_verification_of_drafts(budgets: dict[str, LLM], monkeypatch: pytest.MonkeyPatch, verification: str, drafter: str) -> None:
    """Requests alone and together."""
    monkeypatch.setattr(test_promise, "NUM_REQUESTS", 32)
    test_promise.test_tokens_do_not_depend_on_the_batch(budgets, verification, drafter)


def test_the_lab_and_the_prefix_cache(roomy: LLM, mixed: Path, mode: dict[str, Any]) -> None:
    test_sequences.test_all_ways_give_the_same_bits(roomy)
    test_sequences.test_sampling_equals_generation(roomy)
    for prompt_len in (15, 60, 250):
        test_sequences.test_trees_equal_chains(roomy, prompt_len)
    test_sequences.test_rollback_and_sync(roomy)
    with LLM(mixed, kv_cache_memory_bytes=1 << 24, max_model_len=512, **mode) as fresh:
        test_prefix_cache.test_hits_change_nothing_but_the_work(fresh)
        test_prefix_cache.test_prompt_logprobs_with_a_warm_cache(fresh)


def test_receipts(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of one table are met on all others in the same mode, and in no other mode."""
    params = SamplingParams(max_tokens=24, seed=3, temperature=0.9, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    options: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 22, "max_model_len": 128}
    receipts = {}
    for bits, mode in MODES.items():
        with LLM(mixed, **options, **mode, **there(monkeypatch, TABLES[-1])) as llm:
            receipt = llm.generate(list(range(3, 40)), params)[0].receipt()
            assert llmi.replay(receipt, llm)
            assert f"-a:i{bits}" in receipt.fields["numerics_id"]
            receipts[bits] = receipt
    assert receipts[8].fields["logprob_digest"] != receipts[16].fields["logprob_digest"]
    for table in TABLES:
        for bits, mode in MODES.items():
            with LLM(mixed, **options, **mode, **there(monkeypatch, table)) as llm:
                assert llmi.replay(receipts[bits], llm)
                with pytest.raises(llmi.InvalidParamsError, match="numerics id"):
                    llmi.replay(receipts[24 - bits], llm)


def test_drafts_of_the_targets_own_weights(mixed: Path, mode: dict[str, Any]) -> None:
    """Of 8 bits unless asked; of a part of the layers, and of the vocabulary."""
    prompts, params = [[1, 2, 3], [4], [7, 8]], SamplingParams(max_tokens=30, seed=2, ignore_eos=True, logprobs=1)
    options: list[tuple[int, dict[str, Any]]] = [
        (8, {"exit_layer": 1}),
        (8, {"skip_layers": [1], "shortlist": 64}),
        (16, {"skip_layers": [0], "shortlist": 64, "activation_bits": 16}),
    ]
    for bits, option in options:
        drafter = SelfDraft(**option)
        with LLM(mixed, kv_cache_memory_bytes=1 << 23, max_model_len=128, **mode) as llm:
            plain = llm.generate(prompts, params)
            drafted = llm.generate(prompts, params, speculative_config=SpeculativeConfig(drafter, 3))
            assert_same_tokens(drafted, plain)
            assert test_speculation.count(drafted)[1] > 60
            assert f"-a:i{bits}" in drafter.llm.model_info.numerics_id


def test_steps_and_drafts_on_the_device(mixed: Path, monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any]) -> None:
    """Steps of one and of several rows are played as graphs; batches shrink, drafts make rows of one sequence."""
    prompts = [[5, 6, 7, 8] * 6, [9, 9, 4] * 4, [1, 2, 3]]
    params = [SamplingParams(temperature=0.5, max_tokens=10 + 9 * i, seed=i, logprobs=1, ignore_eos=True) for i in range(3)]
    options: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 23, "max_model_len": 128, **mode}
    with LLM(mixed, **options) as cpu, LLM(mixed, **options, **there(monkeypatch, "emulated")) as llm:
        expected = cpu.generate(prompts, params)
        assert_same_tokens(llm.generate(prompts, params), expected)
        assert llm.get_metrics()["num_graph_replays"] > 15
        drafted = llm.generate(prompts, params, speculative_config=SpeculativeConfig(test_speculation.Replay(expected), 9))
        assert_same_tokens(drafted, expected)
        assert test_speculation.count(drafted)[2] > 20


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_part_of_the_vocabulary(
    tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, mode: dict[str, Any], device: str
) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    path = tiny_path(vocab_size=test_shortlist.VOCAB, num_layers=2)
    with LLM(path, quantization="q8_0", device=device, kv_cache_memory_bytes=1 << 23, max_model_len=128, **mode) as llm:
        test_shortlist.test_logits_are_those_of_the_whole(llm)


def test_sixteen_bits_are_near_exact_activations(mixed: Path) -> None:
    """Hidden states of each layer, and logits, of a prompt's rows and of single ones: beside exact activations, a hundredth of what 8 bits
    are off by."""
    tokens = np.random.default_rng(6).integers(1, 257, size=60).tolist()
    engine: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 23, "max_model_len": 128, "kv_cache_dtype": "float32"}
    seen: dict[str, list[Any]] = {}
    for name, mode in (("exact", {"dtype": "float32"}), ("8", MODES[8]), ("16", MODES[16])):
        with LLM(mixed, **engine, **mode) as llm:
            logits, states = [], []
            for steps in ([tokens], [tokens[:30], *([token] for token in tokens[30:])]):
                sequence = llm.sequence(steps[0], capture=Capture(hidden_states=(1, 2)))
                for step in steps[1:]:
                    sequence.extend(step)
                logits.append(np.array(sequence.logits))
                states.append([np.array(array) for array in sequence.hidden_states.values()])
        for whole, single in zip(*states, strict=True):
            assert_same_bits(whole, single)
        seen[name] = [logits[0], *states[0]]
    for exact, coarse, wide in zip(seen["exact"], seen["8"], seen["16"], strict=True):
        off = [float(np.sqrt(np.mean((values - exact) ** 2))) for values in (coarse, wide)]
        assert 0 < off[1] < off[0] / 100, off
