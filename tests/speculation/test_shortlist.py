"""Drafts from a part of the vocabulary: which part, with the bits of the whole, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from llmi import LLM, DraftModel, SamplingParams, SelfDraft, SpeculativeConfig, TokenTree, _core
from llmi.testing import assert_lossless, assert_same_tokens, tiny_model

VOCAB = 1003
LISTED = 320  # the first ids; every byte has one of the first 257


def tiles_of(ids: Any) -> Any:
    """The shortlist is made of tiles of 16 ids."""
    listed = np.zeros(VOCAB + 16, bool)
    for token in ids:
        listed[token // 16 * 16 : token // 16 * 16 + 16] = True
    return listed[:VOCAB]


@pytest.fixture(scope="module")
def path() -> Any:
    return tiny_model(vocab_size=VOCAB, num_layers=3)


@pytest.fixture(scope="module")
def target(path: Any) -> Any:
    with LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=256) as llm:
        yield llm


def restricted(llm: LLM, ids: list[int], more: tuple[int, ...] = ()) -> Any:
    sequence = llm.sequence(ids, seed=1)
    _core.lab_restrict(llm._engine, sequence._core, _core.Shortlist(VOCAB, range(LISTED)), more)
    return sequence


def test_logits_are_those_of_the_whole(target: LLM) -> None:
    prompt, more = [5, 700, 40, 1002], (801,)
    whole = target.sequence(prompt).logits
    listed = tiles_of([*range(LISTED), *prompt, *more])
    with restricted(target, prompt, more) as alone:
        assert_same_bits(alone.logits[listed], whole[listed])
        assert np.isneginf(alone.logits[~listed]).all() and (~listed).sum() > 500

    # Beside one with other tokens, and one without a shortlist: each has its own.
    first, second, free = restricted(target, prompt, more), restricted(target, [5, 600]), target.sequence(prompt)
    rows = llmi.extend({first: [7, 500], second: [8], free: [7, 500]})
    listed = tiles_of([*range(LISTED), *prompt, *more, 7, 500])
    assert_same_bits(rows[first][:, listed], rows[free][:, listed])
    assert np.isneginf(rows[first][:, ~listed]).all() and np.isfinite(rows[free]).all()
    others = tiles_of([*range(LISTED), 5, 600, 8])
    assert np.array_equal(np.isfinite(rows[second][0]), others)

    # Without the free one the head is computed in part; forks and trees have the same ids.
    rows = llmi.extend({first: [9], second: [9]})
    for sequence, seen, tokens in ((first, listed, [*prompt, 7, 500, 9]), (second, others, [5, 600, 8, 9])):
        assert np.array_equal(np.isfinite(rows[sequence][0]), seen)
        assert_same_bits(rows[sequence][0][seen], target.sequence(tokens).logits[seen])
    fork = first.fork()
    assert np.array_equal(np.isfinite(fork.extend(TokenTree([3, 4], [-1, -1]))), np.tile(listed, (2, 1)))
    for sequence in (first, second, free, fork):
        sequence.close()


def test_ids_that_came_later_count(target: LLM) -> None:
    with restricted(target, [5, 6]) as sequence:
        _ = sequence.logits
        sequence.sync([5, 900, 7])
        assert np.array_equal(np.isfinite(sequence.logits), tiles_of([*range(LISTED), 900]))


def test_drafts_change_nothing(target: LLM) -> None:
    drafter = SelfDraft(quantization="q8_0", shortlist=LISTED)
    params = SamplingParams(max_tokens=40, seed=2, ignore_eos=True)
    prompts = [[1, 2, 3], [4], [700, 701]]
    drafted = target.generate(prompts, params, speculative_config=SpeculativeConfig(drafter, 3))
    assert_same_tokens(drafted, target.generate(prompts, params))
    rates = [out.outputs[0].spec_decode_metrics.acceptance_rate for out in drafted]  # type: ignore[union-attr]
    assert 0.05 < np.mean(rates) < 0.75, "random weights draw two in three tokens from ids that are not listed"


class FirstTile(DraftModel):
    """One tile of three: a vocabulary small enough to be enumerated."""

    def _shortlist(self) -> Any:
        return _core.Shortlist(40, [3])


@pytest.mark.parametrize("verification", ["coupled", "rejection", "block"])
def test_the_law_stays(verification: Any) -> None:
    path = tiny_model(vocab_size=40)
    with (
        LLM(path, kv_cache_memory_bytes=1 << 26, max_model_len=256) as small_target,
        LLM(path, quantization="q8_0", kv_cache_memory_bytes=1 << 26, max_model_len=256) as small,
    ):
        config = SpeculativeConfig(FirstTile(small), 3, verification=verification)
        assert_lossless(config, small_target, num_tokens=300)
        drawn = small_target.generate([[1]], seed=1, max_tokens=60, ignore_eos=True, speculative_config=config)[0]
        metrics = drawn.outputs[0].spec_decode_metrics
        assert metrics is not None and metrics.num_accepted_tokens > 3 and max(drawn.token_ids) > 15


class Recorded(DraftModel):
    """Keeps what it proposed to each request."""

    def propose_batch(self, contexts: Any) -> Any:
        drafts = super().propose_batch(contexts)
        for context, draft in zip(contexts, drafts, strict=True):
            self.seen.setdefault(context.request_id, []).append((context.token_ids.tolist(), list(draft.token_ids)))  # type: ignore[union-attr]
        return drafts

    seen: dict[str, list[tuple[list[int], list[int]]]]


def test_drafts_are_a_function_of_the_request(target: LLM, path: Any) -> None:
    prompts = [[1, 2, 3], [4, 999], [700, 701]]
    params = SamplingParams(max_tokens=30, seed=3, ignore_eos=True)

    def drafts(together: bool) -> list[Any]:
        with LLM(path, quantization="q8_0", kv_cache_memory_bytes=1 << 24, max_model_len=256) as small:
            drafter = Recorded(small, shortlist=LISTED)
            drafter.seen = {}
            config = SpeculativeConfig(drafter, 3)
            for batch in [prompts] if together else [[prompt] for prompt in prompts]:
                target.generate(batch, params, speculative_config=config)
            return sorted(drafter.seen.values())

    alone = drafts(False)
    assert drafts(True) == alone
    for request in alone:
        for tokens, draft in request:
            assert tiles_of([*range(LISTED), *tokens])[draft].all()


def test_what_parameters_name_can_be_drafted(target: LLM) -> None:
    config = SpeculativeConfig(SelfDraft(quantization="q8_0", shortlist=LISTED), 3)
    for params in ({"allowed_token_ids": [801, 950]}, {"logit_bias": {801: 100.0}}):
        out = target.generate([[1, 2]], temperature=0, max_tokens=20, ignore_eos=True, speculative_config=config, **params)[0]
        metrics = out.outputs[0].spec_decode_metrics
        assert metrics is not None and metrics.num_accepted_tokens > 10


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_allowed_ids_are_the_shortlist(target: LLM, path: Any, monkeypatch: pytest.MonkeyPatch, verification: Any) -> None:
    """Drafts are those that all ids give."""
    allowed = [7, 40, 700, 1002]
    params = SamplingParams(max_tokens=30, seed=3, ignore_eos=True, allowed_token_ids=allowed)
    sizes: list[tuple[int, int]] = []

    class Measured(Recorded):
        def propose_batch(self, contexts: Any) -> Any:
            drafts = super().propose_batch(contexts)
            for context in contexts:
                (sequence,) = context._sequences.values()
                sizes.append((np.isfinite(sequence.logits).sum(), tiles_of([*allowed, *sequence.token_ids.tolist()]).sum()))
            return drafts

    def drafts() -> list[Any]:
        with LLM(path, quantization="q8_0", kv_cache_memory_bytes=1 << 24, max_model_len=256) as small:
            drafter = Measured(small)
            drafter.seen = {}
            target.generate([[1, 2], [900]], params, speculative_config=SpeculativeConfig(drafter, 3, verification=verification))
            return sorted(drafter.seen.values())

    found = drafts()
    assert all(size <= listed < 110 for size, listed in sizes)
    monkeypatch.setattr(DraftModel, "_shortlist_of", lambda self, context: None)
    sizes.clear()
    assert drafts() == found and all(size == VOCAB for size, _ in sizes)


def test_all_of_the_vocabulary(target: LLM) -> None:
    """None, and a list that would leave out less than half: no shortlist."""
    params = SamplingParams(max_tokens=60, seed=4, ignore_eos=True)
    rates = {}
    for shortlist in (None, VOCAB // 2 + 1, LISTED):
        config = SpeculativeConfig(SelfDraft(quantization="q8_0", shortlist=shortlist), 3)
        out = target.generate([[1, 2]], params, speculative_config=config)[0]
        rates[shortlist] = out.outputs[0].spec_decode_metrics.acceptance_rate  # type: ignore[union-attr]
    assert rates[None] == rates[VOCAB // 2 + 1] > rates[LISTED]
    with pytest.raises(llmi.InvalidParamsError, match=r"shortlist must be None .* or an integer of 1 or more"):
        SelfDraft(quantization="q8_0", shortlist=0)
