"""Beam search in the core: the choice of candidates against NumPy, and searches that wait, are preempted and run in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from features import DEVICES, expect_short_answers, stateful
from llmi import LLM, BeamSearchParams, SamplingParams, _core

pytestmark = pytest.mark.skipif(not hasattr(_core, "testing"), reason="this build has no testing submodule")
ENDS = [0, 7, 19]


def ranked(values: Any, logits: Any, totals: list[float], sums: list[float], count: int) -> list[tuple[float, int, int]]:
    """By score, rank of the beam, logit (the larger first), token id."""
    found = []
    for rank, row in enumerate(values):
        for token in np.flatnonzero(row > -np.inf):
            score = sums[rank] + float(np.float32(row[token] - np.float32(totals[rank])))
            found.append((-score, rank, -float(logits[rank, token]), int(token)))
    return [(-score, rank, token) for score, rank, _, token in sorted(found)[:count]]


@pytest.mark.parametrize("vocab_size", [5, 64, 65, 1000, 5000])
def test_candidates_equal_numpy(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    for case, count in itertools.product(range(8), (1, 3, 12, 48)):
        width = 1 + case % 4
        logits = rng.normal(size=(width, vocab_size)).astype(np.float32)
        if case % 2:
            logits = np.round(logits * 2) / np.float32(2)  # ties
        values = logits.copy() if case < 3 else rng.normal(size=logits.shape).astype(np.float32)
        if case >= 5:
            values = np.round(values)
            values[rng.random(size=values.shape) < 0.3] = -np.inf
        # Beside a large sum, different log-probabilities give one score.
        sums = (
            [0.0] * width if case % 3 == 0 else [-1e9 if case == 4 else -4.0] * width if case % 3 == 1 else rng.normal(size=width).tolist()
        )
        totals = [0.0] * width if case >= 3 else [float(np.float32(5 + i)) for i in range(width)]
        chosen = _core.testing.beam_candidates(values, logits, totals, sums, count, None)
        assert chosen == ranked(values, logits, totals, sums, count), (case, count)


def test_a_tie_of_scores_goes_to_the_larger_logit() -> None:
    """Two logits that round to one log-probability, and log-probabilities that a large sum rounds to one score."""
    logits = np.full((1, 100), -30, np.float32)
    logits[0, 70], logits[0, 40] = np.float32(1.0), np.nextafter(np.float32(1.0), np.float32(0))
    assert np.float32(logits[0, 70] - 20) == np.float32(logits[0, 40] - 20)
    assert [token for _, _, token in _core.testing.beam_candidates(logits, logits, [20.0], [0.0], 2, None)] == [70, 40]
    scored = logits.copy()
    scored[0, 40] = 1.5
    assert [token for _, _, token in _core.testing.beam_candidates(scored, logits, [0.0], [-1e17], 1, None)] == [70]
    assert [token for _, _, token in _core.testing.beam_candidates(scored, logits, [0.0], [-1.0], 1, None)] == [40]


def test_drawn_candidates_equal_numpy() -> None:
    rng = np.random.default_rng(1)
    math = _core.testing.scalar_math
    for vocab_size, count, seed in itertools.product((20, 5000), (2, 9), range(4)):
        values = rng.normal(scale=3, size=(2, vocab_size)).astype(np.float32)
        values[rng.random(size=values.shape) < 0.2] = -np.inf
        sums, keys = [-1.5, -2.0], []
        for rank, token in itertools.product(range(2), range(vocab_size)):
            if values[rank, token] == -np.inf:
                continue
            word = _core.testing.philox([token // 4, 30 + seed, rank, 5], seed)[token % 4]
            v = min((float(word) + 0.5) * 2.0**-32, 1 - 2.0**-24)
            race = float(math("log64", -math("log1p64", -v))) - float(values[rank, token])
            keys.append((sums[rank] - race, sums[rank] + float(values[rank, token]), rank, token))
        expected = sorted(sorted(keys, reverse=True)[:count], key=lambda entry: -entry[1])
        chosen = _core.testing.beam_candidates(values, values, [0.0, 0.0], sums, count, (seed, 30 + seed))
        assert chosen == [(score, rank, token) for _, score, rank, token in expected]


def test_finished_hypotheses_tie_by_step_and_rank() -> None:
    found = [(-1.0, 3, 1), (-2.0, 1, 0), (-1.0, 2, 5), (-1.0, 3, 0), (-3.0, 1, 1), (-0.5, 9, 4)]
    for order in itertools.permutations(found):
        assert _core.testing.best_finished(order, 4) == [(-0.5, 9, 4), (-1.0, 2, 5), (-1.0, 3, 0), (-1.0, 3, 1)]


# --- searches


@pytest.fixture(scope="module")
def path(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path("llama", vocab_size=48, num_layers=2)


def crowd() -> tuple[list[list[int]], list[Any]]:
    """Long searches of every width beside samplings; half of them with a processor that remembers."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 48, size=int(rng.integers(1, 12))).tolist() for _ in range(9)]
    params: list[Any] = []
    for i in range(len(prompts)):
        hooks = [stateful] if i % 2 else []
        if i % 4 == 3:
            params.append(SamplingParams(n=2, max_tokens=34, seed=i, ignore_eos=True, logits_processors=hooks))
            continue
        kind: dict[str, Any] = {2: {"num_beam_groups": 2, "diversity_penalty": 0.7}, 4: {"do_sample": True, "seed": 3}}.get(i, {})
        width = 4 if i == 2 else 1 + i % 5
        params.append(
            BeamSearchParams(
                beam_width=width,
                max_tokens=34,
                early_stopping="never",
                length_penalty=2.0,
                eos_token_id=ENDS,
                logits_processors=hooks,
                **kind,
            )
        )
    return prompts, params


def bits(output: llmi.RequestOutput) -> list[tuple[Any, ...]]:
    assert output.error is None, output.error
    return [(c.token_ids, c.text, c.score, c.cumulative_logprob, c.beam_indices, c.finish_reason) for c in output.outputs]


@pytest.fixture(scope="module")
def alone(path: Path) -> list[Any]:
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128) as llm:
        return [bits(llm.generate([prompt], params)[0]) for prompt, params in zip(*crowd(), strict=True)]


def test_crowds_change_no_bits(path: Path, alone: list[Any]) -> None:
    """Few pages, few tokens a step, so that beams of a search run in different steps and lose their pages while they idle."""
    preempted = 0
    with LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=128) as llm:
        page = llm._page_bytes
    for pages, budget, policy, prefixes in [
        (300, 2, "fcfs", True),
        (17, 24, "fcfs", True),
        (17, 7, "fcfs", False),
        (17, 9, "fcfs", True),
        (20, 9, "fcfs", True),
        (17, 7, "prefill_first", True),
        (20, 2, "shortest_remaining", False),
        (18, 64, "static", True),
    ]:
        with LLM(
            path,
            kv_cache_memory_bytes=pages * page,
            max_model_len=128,
            max_num_batched_tokens=budget,
            max_num_seqs=12,
            scheduling_policy=policy,
            enable_prefix_caching=prefixes,
        ) as llm:
            expect_short_answers(llm)
            assert [bits(output) for output in llm.generate(*crowd())] == alone, (pages, budget, policy)
            preempted += int(llm.get_metrics()["num_preemptions"])
    assert preempted > 10


def test_idle_beams_give_their_pages(path: Path) -> None:
    """Beams that share little, in steps that have room for some of a search's beams: pages run out while others of them idle."""
    prompts = [[5, 11, 3], [17, 4, 9, 2], [8, 30]]
    shared: dict[str, Any] = {"num_beam_groups": 5, "diversity_penalty": 3.0, "early_stopping": "never", "length_penalty": 2.0}
    params = [
        BeamSearchParams(beam_width=5, max_tokens=45, eos_token_id=[0], logits_processors=[stateful] if i else [], **shared)
        for i in range(3)
    ]
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=128) as llm:
        expected = [bits(llm.generate([prompt], own)[0]) for prompt, own in zip(prompts, params, strict=True)]
        page = llm._page_bytes
    preempted = 0
    for pages, budget, prefixes in [(18, 8, False), (18, 9, True), (20, 8, True), (21, 9, False), (24, 8, True)]:
        with LLM(
            path,
            kv_cache_memory_bytes=pages * page,
            max_model_len=128,
            max_num_batched_tokens=budget,
            max_num_seqs=16,
            enable_prefix_caching=prefixes,
        ) as llm:
            expect_short_answers(llm)
            assert [bits(output) for output in llm.generate(prompts, params)] == expected, (pages, budget)
            preempted += int(llm.get_metrics()["num_preemptions"])
    assert preempted > 20


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_devices_give_the_same_bits(path: Path, alone: list[Any], device: str) -> None:
    with LLM(path, device="cuda", kv_cache_memory_bytes=1 << 22, max_model_len=128) as llm:
        assert [bits(output) for output in llm.generate(*crowd())] == alone


def mixed(mix: int, token: int) -> int:
    return (mix * 31 + token) % 9973


def remembering(context: Any, row: Any) -> None:
    """Bans two tokens by all that it has seen of this path."""
    context.state["mix"] = mixed(context.state.get("mix", 0), int(context.token_ids[-1]))
    row[[context.state["mix"] % 48, context.state["mix"] % 41]] = -np.inf


def reading(context: Any, row: Any) -> None:
    """The same without a memory."""
    mix = 0
    for token in context.token_ids[context.prompt_len - 1 :].tolist():
        mix = mixed(mix, token)
    row[[mix % 48, mix % 41]] = -np.inf


def test_each_beam_has_its_own_state(path: Path) -> None:
    with LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=128) as llm:
        for width in (2, 5, 12):
            with_memory, without = (
                bits(llm.generate([[5, 11, 3, 17]], BeamSearchParams(beam_width=width, max_tokens=20, logits_processors=[hook]))[0])
                for hook in (remembering, reading)
            )
            assert with_memory == without


def test_eos_counts_in_the_length(path: Path) -> None:
    with LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=128) as llm:
        prompt, reasons = [5, 11, 3, 17], set()
        for penalty, prompted in itertools.product((-1.0, 1.0, 0.5), (False, True)):
            params = BeamSearchParams(
                beam_width=6,
                max_tokens=8,
                eos_token_id=ENDS,
                length_penalty=penalty,
                length_includes_prompt=prompted,
                early_stopping="never",
            )
            outputs = llm.generate([prompt], params)[0].outputs
            reasons |= {output.finish_reason for output in outputs}
            for output in outputs:
                ended = output.finish_reason == "stop"
                length = len(prompt) + len(output.token_ids) - ended if prompted else len(output.token_ids)
                assert output.score == pytest.approx(output.cumulative_logprob / length**penalty, rel=1e-12)
        assert reasons == {"stop", "length"}


def test_a_width_beyond_the_pool_is_refused(path: Path) -> None:
    with LLM(path, kv_cache_memory_bytes=1 << 16, max_model_len=64) as llm:
        with pytest.raises(llmi.OutOfMemoryError, match=r"beam_width = 16 needs 2 KV pages for 32 shared prompt tokens and 16 x 2"):
            llm.generate([[3] * 40], BeamSearchParams(beam_width=16, max_tokens=16))
        assert llm.generate([[3] * 40], BeamSearchParams(beam_width=2, max_tokens=16))[0].outputs
