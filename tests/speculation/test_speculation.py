"""Speculation changes nothing but the speed: tokens and log-probabilities with drafts equal those without, bit for bit.

`PYTHONPATH=tests/support python tests/speculation/test_speculation.py --full` runs the whole matrix: every sampling feature x every drafter x batch sizes, over
100,000 tokens and more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from features import DRAFTED, FEATURES, crowded_llm, expect_short_answers, make_request
from llmi import LLM, DraftContext, Drafter, Outputs, SamplingParams, SpeculativeConfig, TokenTree, _core
from llmi.testing import assert_same_tokens, tiny_model

BATCHES = (1, 5, 16)


class Replay(Drafter):
    """Proposes what was recorded, with seeded errors: known acceptance, known rejection."""

    def __init__(self, recorded: Outputs, *, error_rate: float = 0.25, tree: bool = False) -> None:
        self.known = {(tuple(out.prompt_token_ids), out.seed, c.index): c.token_ids for out in recorded for c in out.outputs}
        self.error_rate = error_rate
        self.tree = tree

    def propose(self, context: DraftContext) -> Any:
        ids = context.token_ids.tolist()
        done = len(ids) - context.prompt_len
        future = self.known[(tuple(ids[: context.prompt_len]), context.sampling_params.seed, context.index)][done:]
        rng = np.random.default_rng([len(ids), context.index])
        chain = [int((t + 1 + rng.integers(255)) % 257) if rng.random() < self.error_rate else t for t in future]
        most = context.num_speculative_tokens
        if not self.tree:
            return chain[:most]
        # The truth hides behind wrong siblings, so that accepted nodes move far.
        wrong = [[int(t) for t in rng.choice(257, 3)] for _ in range(2)]
        return TokenTree.from_paths([wrong[0], chain[:1] + wrong[1][:1], chain], max_nodes=most)


def drafters(recorded: Outputs, draft_llm: LLM) -> dict[str, Any]:
    return {
        "replay": SpeculativeConfig(Replay(recorded), 4),
        "tree": SpeculativeConfig(Replay(recorded, tree=True), 9),
        "lookup": SpeculativeConfig(llmi.PromptLookup(), 5),
        "model": SpeculativeConfig(llmi.DraftModel(draft_llm), 3),
        "greedy_model": SpeculativeConfig(llmi.DraftModel(draft_llm, draft_sample_method="greedy"), 2),
        "union": SpeculativeConfig([llmi.PromptLookup(prompt_lookup_max=2), Replay(recorded, error_rate=0.5)], 6),
        "function": lambda context: context.token_ids[: min(2, context.num_speculative_tokens)],
        "auto": SpeculativeConfig(Replay(recorded)),
        "auto_lookup": SpeculativeConfig(llmi.PromptLookup()),
        "recycling": SpeculativeConfig(llmi.TokenRecycling(), 5),
        "lookahead": SpeculativeConfig(llmi.Lookahead(2, 3), 9),
        "tables": SpeculativeConfig([llmi.CorpusDrafter([out.token_ids for out in recorded]), llmi.PromptLookup()]),
    }


def count(outputs: Outputs) -> tuple[int, int, int]:
    """Tokens, drafted, accepted."""
    metrics = [c.spec_decode_metrics for out in outputs for c in out.outputs]
    return (
        sum(len(c.token_ids) for out in outputs for c in out.outputs),
        sum(m.num_draft_tokens for m in metrics if m),
        sum(m.num_accepted_tokens for m in metrics if m),
    )


def check_cell(llm: LLM, requests: Any, plain: Outputs, config: Any, batch: int, *, replayed: bool) -> int:
    """One cell of the matrix; returns its tokens."""
    outputs = Outputs()
    for begin in range(0, len(requests), batch):
        part = requests[begin : begin + batch]
        outputs += llm.generate([p for p, _ in part], [q for _, q in part], speculative_config=config, use_tqdm=False)
    assert_same_tokens(outputs, plain)
    tokens, drafted, accepted = count(outputs)
    if replayed:
        assert accepted >= 0.3 * tokens, f"{accepted} of {tokens} tokens came from drafts"
        assert drafted - accepted >= 0.1 * drafted, f"{drafted - accepted} of {drafted} drafts were rejected"
    return tokens


@pytest.fixture(scope="module")
def crowded(tiny_path: Callable[..., Path]) -> Any:
    """Windows, small chunks, little memory: rows of drafts meet window edges, preemption and recomputation."""
    with crowded_llm(tiny_path("gemma3"), 60, max_model_len=140, max_num_batched_tokens=48) as llm:
        yield llm


@pytest.fixture(scope="module")
def draft_llm(tiny_path: Callable[..., Path]) -> Any:
    with LLM(tiny_path("llama", seed=5), kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        yield llm


@pytest.mark.parametrize("feature", sorted(DRAFTED))
def test_matrix(crowded: LLM, draft_llm: LLM, feature: str) -> None:
    """Each feature with each drafter; batch sizes by turns."""
    requests = [make_request(feature, 31 * i + 7) for i in range(6)]
    plain = crowded.generate([p for p, _ in requests], [q for _, q in requests])
    for i, (name, config) in enumerate(drafters(plain, draft_llm).items()):
        ends_early = feature in ("stop", "stop_ids", "min_tokens", "criterion")
        check_cell(crowded, requests, plain, config, (1, 5, 6)[i % 3], replayed=name in ("replay", "tree") and not ends_early)


def test_drafters_side_by_side(crowded: LLM, draft_llm: LLM) -> None:
    """In one batch: others, and none."""
    names = [*FEATURES]
    requests = [make_request(name, 13 * i + 3) for i, name in enumerate(names)]
    prompts, params = [p for p, _ in requests], [q for _, q in requests]
    plain = crowded.generate(prompts, params)
    available = [None, *drafters(plain, draft_llm).values()]
    mixed = [available[i % len(available)] if name in DRAFTED else None for i, name in enumerate(names)]
    assert_same_tokens(crowded.generate(prompts, params, speculative_config=mixed), plain)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_trees_across_a_span_edge(tiny_path: Callable[..., Path], architecture: str) -> None:
    """Chains and trees whose rows lie on both sides of position 256, a window's edge and block edges."""
    rng = np.random.default_rng(2)
    prompts = [rng.integers(1, 257, size=size).tolist() for size in (236, 247, 250, 253, 255)]
    params = SamplingParams(max_tokens=40, seed=4, ignore_eos=True, logprobs=2, temperature=0.9)
    with LLM(tiny_path(architecture), kv_cache_memory_bytes=1 << 24, max_model_len=512) as llm:
        plain = llm.generate(prompts, params)
        for tree in (False, True):
            for nodes in (3, 12, 40):
                config = SpeculativeConfig(Replay(plain, tree=tree, error_rate=0.2), nodes)
                check_cell(llm, [(p, params) for p in prompts], plain, config, 5, replayed=not tree or nodes == 12)


def test_preemption_and_shared_blocks_meet_drafts(tiny_path: Callable[..., Path]) -> None:
    path = tiny_path()
    requests = [make_request("n" if i % 2 else "penalties", i, longest=90, max_tokens=60) for i in range(40)]
    prompts, params = [p for p, _ in requests], [q for _, q in requests]
    with LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=256) as roomy:
        plain = roomy.generate(prompts, params)
        memory = roomy._page_bytes * 30
    with LLM(path, kv_cache_memory_bytes=memory, max_model_len=200) as llm:
        config = SpeculativeConfig(Replay(plain, tree=True), 9)
        for begin in (0, 20):
            expect_short_answers(llm)
            got = llm.generate(prompts[begin : begin + 20], params[begin : begin + 20], speculative_config=config)
            assert_same_tokens(got, llmi.Outputs(plain[begin : begin + 20]))
        stats = llm.get_metrics()
        assert stats["num_preemptions"] >= 10
        assert stats["num_copies_on_write"] >= 10


def test_static_policy_and_streams(tiny_path: Callable[..., Path]) -> None:
    requests = [make_request("temperature", i) for i in range(6)]
    prompts, params = [p for p, _ in requests], [q for _, q in requests]
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 23, max_model_len=256, scheduling_policy="static") as llm:
        plain = llm.generate(prompts, params)
        config = SpeculativeConfig(Replay(plain), 4)
        assert_same_tokens(llm.generate(prompts, params, speculative_config=config), plain)
        with llm.stream(prompts[0], params[0], speculative_config=config) as stream:
            text = "".join(chunk.text for chunk in stream)
        assert text == plain[0].text
        llm.enqueue(prompts, params[0], speculative_config=config)
        assert [out.finished for out in llm.wait_for_completion()] == [True] * 6


def test_metrics(tiny: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=41, ignore_eos=True, seed=0)
    plain = tiny.generate([[5, 6, 7]], params)
    out = tiny.generate([[5, 6, 7]], params, speculative_config=SpeculativeConfig(Replay(plain, error_rate=0), 4))[0]
    metrics = out.outputs[0].spec_decode_metrics
    assert metrics is not None and plain[0].outputs[0].spec_decode_metrics is None
    # One token comes from the prefill; then 8 steps of 4 drafts and their own token.
    assert (metrics.num_drafts, metrics.num_draft_tokens, metrics.num_accepted_tokens) == (8, 32, 32)
    assert metrics.num_accepted_tokens_per_pos == [8, 8, 8, 8]
    assert (metrics.acceptance_rate, metrics.mean_acceptance_length) == (1.0, 5.0)
    assert metrics.drafter == "Replay" and metrics.verification == "coupled" and metrics.lossless
    assert metrics.draft_time_s > 0 and metrics.verify_time_s > 0
    # Tokens of an accepted run come at once.
    gaps = out.metrics.inter_token_latencies_s
    assert len(gaps) == 40 and np.count_nonzero(gaps == 0) == 32


# --- the parts


def test_prompt_lookup_takes_the_longest_then_the_latest(tiny: LLM) -> None:
    #      1 2 3 9 | 1 2 3 8 | 2 3 7 | 1 2 3 -> the 3-gram's latest continuation is 8, not 7 (2-gram, later)
    prompt = [1, 2, 3, 9, 1, 2, 3, 8, 2, 3, 7, 1, 2, 3]

    def watch(ids: list[int]) -> list[int]:
        return list(_core.testing.prompt_lookup(1, 4, ids, 5))

    assert watch(prompt) == [8, 2, 3, 7, 1]
    assert watch([4, 5, 6]) == []
    assert watch([4, 5, 6, 4]) == [5, 6, 4, 5, 6]  # a period goes on
    assert watch([7, 7]) == [7, 7, 7, 7, 7]
    assert watch([3]) == []
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids = rng.integers(0, 4, size=int(rng.integers(1, 40))).tolist()
        assert watch(ids) == brute_force_lookup(ids, 1, 4, 5)


def brute_force_lookup(ids: list[int], shortest: int, longest: int, most: int) -> list[int]:
    for n in range(longest, shortest - 1, -1):
        for end in range(len(ids) - 1, n - 1, -1):
            if n < len(ids) and ids[end - n : end] == ids[len(ids) - n :]:
                return [ids[end + i % (len(ids) - end)] for i in range(most)]
    return []


def test_merged_drafts_hold_every_path() -> None:
    """A union's tree has each draft's paths, earlier drafts first, shared beginnings once, cut to what fits."""
    merge = _core.testing.merge_drafts
    assert merge([([1, 2], []), ([7, 8], [])], 9) == ([1, 2, 7, 8], [-1, 0, -1, 2])
    assert merge([([1, 2], []), ([1, 3, 4], [])], 9) == ([1, 2, 3, 4], [-1, 0, 0, 2])
    assert merge([([1, 2], []), ([1, 2, 5], [])], 9) == ([1, 2, 5], [])
    assert merge([([1, 2], []), ([7, 8], [])], 3) == ([1, 2, 7], [-1, 0, -1])
    rng = np.random.default_rng(4)

    def paths(ids: list[int], parents: list[int]) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for i, token in enumerate(ids):
            parent = parents[i] if parents else i - 1
            found.append((*(found[parent] if parent >= 0 else ()), token))
        return found

    for _ in range(200):
        drafts = []
        for _ in range(int(rng.integers(1, 4))):
            size = int(rng.integers(1, 6))
            drafts.append((rng.integers(0, 3, size).tolist(), [int(rng.integers(-1, i)) if i else -1 for i in range(size)]))
        wanted = list(dict.fromkeys(path for draft in drafts for path in paths(*draft)))
        assert paths(*merge(drafts, 99)) == wanted
        assert set(paths(*merge(drafts, 4))) <= set(wanted)


def test_drafters_do_not_pile_up(tiny: LLM) -> None:
    for _ in range(200):
        tiny.generate([[1, 1, 1]], max_tokens=3, seed=1, speculative_config=llmi.PromptLookup())
    assert len(tiny._speculation._built) <= 64


def test_tokentree() -> None:
    tree = TokenTree.from_paths([[1, 2, 3], [1, 2, 4], [5]], max_nodes=4)
    assert tree.token_ids.tolist() == [1, 2, 3, 4] and tree.parents.tolist() == [-1, 0, 1, 1]
    assert TokenTree([7, 8]).parents.tolist() == [-1, 0]
    with pytest.raises(llmi.InvalidParamsError, match="parents"):
        TokenTree([7, 8], [-1])


def test_observe(tiny: LLM) -> None:
    seen: list[tuple[int, int, Any]] = []

    class Watching(Replay):
        def observe(self, context: DraftContext, num_accepted: int, target_logprobs: Any) -> None:
            seen.append((len(context.token_ids), num_accepted, target_logprobs))

    params = SamplingParams(max_tokens=30, seed=5, temperature=0.8, ignore_eos=True, logprobs=0)
    plain = tiny.generate([[5, 6, 7]], params)
    out = tiny.generate([[5, 6, 7]], params, speculative_config=SpeculativeConfig(Watching(plain), 4))
    assert out == plain
    metrics, logprobs = out[0].outputs[0].spec_decode_metrics, plain[0].outputs[0].logprobs
    assert metrics is not None and logprobs is not None
    assert len(seen) == metrics.num_drafts and sum(accepted for _, accepted, _ in seen) == metrics.num_accepted_tokens
    for length, accepted, row in seen:
        for i in range(accepted):
            entry = logprobs[length - 3 + i][plain[0].token_ids[length - 3 + i]]
            assert row[i] == np.float32(entry.processed_logprob)
        assert np.isnan(row[accepted + 1 :]).all()

    class Broken(Watching):
        def observe(self, context: DraftContext, num_accepted: int, target_logprobs: Any) -> None:
            raise OverflowError("too much")

    configs = [SpeculativeConfig(Broken(plain), 4), None]
    outputs = tiny.generate([[5, 6, 7], [5, 6, 7]], params, speculative_config=configs, on_error="return")
    assert isinstance(outputs[0].error, llmi.DraftError) and "too much" in str(outputs[0].error)
    assert outputs[1] == plain[0] and tiny.get_metrics()["num_running"] == 0


# --- bad input ends one request


def raises(context: DraftContext) -> Any:
    raise KeyError("my bug")


BAD = {
    "raises": (raises, "raises raised KeyError: 'my bug'"),
    "out_of_range": (lambda c: [257], r"token id 257 is outside \[0, 257\)"),
    "negative": (lambda c: [-1], "token id -1"),
    "too_many": (lambda c: [1] * (c.num_speculative_tokens + 1), "where at most"),
    "broken_tree": (lambda c: TokenTree([1, 2], [-1, 1]), "broken tree"),
    "equal_siblings": (lambda c: TokenTree([1, 1], [-1, -1]), "stands twice"),
    "floats": (lambda c: [0.5], "flat list of token ids"),
    "text": (lambda c: "abc", "flat list of token ids"),
    "own_engine": (None, "another LLM"),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_drafters_end_their_request_alone(tiny: LLM, name: str) -> None:
    drafter, message = BAD[name]
    if name == "own_engine":
        drafter = lambda context: tiny.generate([1], max_tokens=1)[0].token_ids  # noqa: E731
    prompts = [[i + 1, 2, 3] for i in range(6)]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    plain = tiny.generate(prompts, params)
    configs = [SpeculativeConfig(drafter, 2) if i == 2 else None for i in range(6)]
    outputs = tiny.generate(prompts, params, speculative_config=configs, on_error="return")
    assert outputs[2].outputs[0].finish_reason == "error"
    assert isinstance(outputs[2].error, llmi.DraftError)
    with pytest.raises(llmi.DraftError, match=message):
        raise outputs[2].error
    for i in (0, 1, 3, 4, 5):
        assert outputs[i] == plain[i]
    assert tiny.get_metrics()["num_running"] == 0


@pytest.mark.unsanitized
def test_configs_are_checked(tiny: LLM, smollm_path: Path) -> None:
    with pytest.raises(llmi.InvalidParamsError, match="num_speculative_tokens"):
        SpeculativeConfig(llmi.PromptLookup(), 0)
    with pytest.raises(llmi.InvalidParamsError, match="prompt_lookup"):
        llmi.PromptLookup(1, 2)
    with pytest.raises(llmi.InvalidParamsError, match="a drafter is"):
        tiny.generate([1], speculative_config=7)
    with pytest.raises(llmi.InvalidParamsError, match="no key 'nonsense'"):
        tiny.generate([1], speculative_config={"method": "ngram", "nonsense": 1})
    with pytest.raises(llmi.InvalidParamsError, match="method 'eagle' needs 'model'"):
        tiny.generate([1], speculative_config={"method": "eagle"})
    with pytest.raises(llmi.InvalidParamsError, match="method 'medusa' needs 'model'"):
        tiny.generate([1], speculative_config={"method": "medusa"})
    with pytest.raises(llmi.LlmiError, match="hydra"):
        tiny.generate([1], speculative_config={"method": "hydra"})
    with pytest.raises(llmi.UnsupportedCombinationError, match="draft for itself"):
        tiny.generate([1], speculative_config=llmi.DraftModel(tiny))
    with LLM(smollm_path, kv_cache_memory_bytes=1 << 25) as other, pytest.raises(llmi.UnsupportedCombinationError, match="tokenizer"):
        tiny.generate([1], speculative_config=llmi.DraftModel(other))
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    assert tiny.generate([[1, 1, 1]], max_tokens=5, seed=1, speculative_config=config) == tiny.generate([[1, 1, 1]], max_tokens=5, seed=1)


def test_padded_vocabulary_of_a_draft_model(tiny: LLM, tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path("llama", vocab_size=320, seed=9), kv_cache_memory_bytes=1 << 22, max_model_len=128) as padded:
        params = SamplingParams(max_tokens=30, seed=2, ignore_eos=True)
        assert tiny.generate([[3, 4]], params, speculative_config=SpeculativeConfig(llmi.DraftModel(padded), 3)) == tiny.generate(
            [[3, 4]], params
        )


@pytest.mark.unsanitized
def test_real_model(smollm: LLM, text: str) -> None:
    """On real weights, with the copy-heavy prompts that lookup is for."""
    prompts = [f"Text: {text[i : i + 600]}\nThe same text once more: {text[i : i + 60]}" for i in (0, 3000)]
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, top_p=0.95, max_tokens=40, seed=1, logprobs=1)
        plain = smollm.generate(prompts, params)
        drafted = smollm.generate(prompts, params, speculative_config=SpeculativeConfig(llmi.PromptLookup(), 6))
        assert_same_tokens(drafted, plain)
        assert count(drafted)[2] > 20


def full(arguments: argparse.Namespace) -> int:
    """Every feature x every drafter x every batch size."""
    tokens, cells = 0, 0
    with (
        LLM(tiny_model("gemma3", vocab_size=257, num_layers=3), kv_cache_memory_bytes=1 << 21, max_model_len=320) as llm,
        LLM(tiny_model("llama", vocab_size=257, seed=5), kv_cache_memory_bytes=1 << 24, max_model_len=512) as draft_llm,
    ):
        for feature in sorted(DRAFTED):
            requests = [make_request(feature, 31 * i + 7, longest=250, max_tokens=arguments.max_tokens) for i in range(16)]
            plain = llm.generate([p for p, _ in requests], [q for _, q in requests], use_tqdm=False)
            ends_early = feature in ("stop", "stop_ids", "min_tokens", "criterion")
            for name, config in drafters(plain, draft_llm).items():
                for batch in BATCHES:
                    tokens += check_cell(llm, requests, plain, config, batch, replayed=name in ("replay", "tree") and not ends_early)
                    cells += 1
        stats = llm.get_metrics()
    print(json.dumps({"cells": cells, "tokens": tokens, "num_preemptions": stats["num_preemptions"], "audit": stats["audit"]}))
    return 0 if tokens >= 100_000 else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", required=True)
    parser.add_argument("--max-tokens", type=int, default=64)
    sys.exit(full(parser.parse_args()))
