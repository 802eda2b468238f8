"""Steps that are launched before the tokens of the step before are known: the CPU's tokens, whatever ends, comes or goes meanwhile."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import llmi
from bits import assert_same_bits
from features import expect_short_answers
from llmi import LLM, NonFiniteLogitsError, SamplingParams, SpeculativeConfig
from llmi.testing import assert_same_tokens
from test_invariance import make_prompts

PLAIN = SamplingParams(temperature=0.9, top_p=0.95, top_k=50, min_p=0.001, max_tokens=40, seed=5, ignore_eos=True)
pytestmark = pytest.mark.usefixtures("device")


@contextmanager
def over_and_over(meddle: Callable[[int], None]) -> Iterator[None]:
    """Another thread calls meddle(0), meddle(1), .. meanwhile; what it raises is raised here."""
    done = threading.Event()
    calls = itertools.takewhile(lambda _: not done.is_set(), itertools.count())
    with ThreadPoolExecutor(1) as pool:
        meddling = pool.submit(lambda: [meddle(k) for k in calls])
        try:
            yield
        finally:
            done.set()
        meddling.result()


def counts(llm: LLM) -> tuple[int, int]:
    """Steps, and those of them that were launched ahead."""
    metrics = llm.get_metrics()
    assert metrics["audit"] == ""
    return metrics["num_steps"], metrics["num_steps_ahead"]


@pytest.mark.parametrize("seats", [40, 5])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_ends_of_all_kinds(tiny_path: Callable[..., Path], architecture: str, seats: int) -> None:
    """By length, by token, by text, of one sample among several; what follows in the step ahead is not looked at."""
    model = tiny_path(architecture)
    prompts = make_prompts(257, 24, 300)
    params = [
        PLAIN.replace(
            seed=i,
            temperature=0.0 if i % 5 == 0 else 0.9,
            max_tokens=1 + 7 * i % 60,
            n=3 if i % 8 == 2 else 1,
            min_tokens=i % 4,
            stop=["e", "ab"] if i % 4 == 1 else [],
            stop_token_ids=list(range(40 * (i % 6), 40 * (i % 6) + 9)),
            logit_bias={7 + i: 1.5},
            repetition_penalty=1.3 if i % 3 == 1 else 1.0,
            frequency_penalty=0.4 if i % 6 == 1 else 0.0,
            presence_penalty=-0.3 if i % 9 == 1 else 0.0,
        )
        for i in range(24)
    ]
    engine: dict[str, Any] = {"max_num_batched_tokens": 300, "max_num_seqs": seats, "kv_cache_memory_bytes": 1 << 24}
    with LLM(model, **engine) as cpu, LLM(model, device="cuda", **engine) as llm:
        expected = cpu.generate(prompts, params)
        reasons = {sample.finish_reason for output in expected for sample in output.outputs}
        assert {"stop", "length"} <= reasons
        for _ in range(2):
            assert_same_tokens(llm.generate(prompts, params), expected)
            llm.reset_prefix_cache()
        steps, ahead = counts(llm)
        assert ahead > steps * (0.5 if seats == 40 else 0.3), (ahead, steps)
        assert counts(cpu)[1] == 0
        assert steps <= 2.1 * counts(cpu)[0], "one that waits joins a step after another has left"


def test_preemption(tiny_path: Callable[..., Path]) -> None:
    """A pool that is too small for those that run: steps go ahead while there is room."""
    prompts = make_prompts(257, 12, 129)
    params = [PLAIN.replace(seed=i, max_tokens=120) for i in range(12)]
    engine: dict[str, Any] = {"max_model_len": 256, "max_num_batched_tokens": 300}
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 24, **engine) as cpu:
        expected = cpu.generate(prompts, params)
        pool = 700 * cpu.model_info.kv_bytes_per_token
    with LLM(tiny_path(), device="cuda", kv_cache_memory_bytes=pool, **engine) as llm:
        expect_short_answers(llm)
        assert_same_tokens(llm.generate(prompts, params), expected)
        steps, ahead = counts(llm)
        assert llm.get_metrics()["num_preemptions"] > 3
        assert ahead > 0.3 * steps, (ahead, steps)


def test_who_waits_is_admitted(tiny_path: Callable[..., Path]) -> None:
    """One that waits for the prefix that another is computing joins a step later, and so does one that comes while others run."""
    prompt = list(range(3, 250))
    params = PLAIN.replace(max_tokens=60)
    with LLM(tiny_path(), device="cuda", kv_cache_memory_bytes=1 << 24) as llm:
        together = llm.generate([prompt, prompt], [params, params.replace(seed=6)])
        assert together[1].num_cached_tokens > 200
        assert counts(llm)[0] < 70
        long = llm.stream([5, 6, 7], params.replace(max_tokens=2000))
        next(long)
        before = counts(llm)[0]
        llm.generate([9], params.replace(max_tokens=10))
        assert counts(llm)[0] - before < 300
        long.close()


def test_prompts_in_pieces(tiny_path: Callable[..., Path]) -> None:
    """A sequence whose prompt is not computed yet is part of each step."""
    with LLM(tiny_path(), device="cuda", kv_cache_memory_bytes=1 << 24, max_num_batched_tokens=32) as llm:
        long = llm.stream([5, 6, 7], PLAIN.replace(max_tokens=2000))
        next(long)
        before = counts(llm)[0]
        llm.generate(list(range(3, 250)), PLAIN.replace(max_tokens=10))
        assert counts(llm)[0] - before < 500
        long.close()


def test_room_that_others_leave(tiny_path: Callable[..., Path]) -> None:
    """Nobody left and nobody came, but a sequence of the lab gave its pages back."""
    with LLM(tiny_path(), device="cuda", kv_cache_memory_bytes=1 << 19, max_model_len=1300) as llm:
        room = (1 << 19) // llm.model_info.kv_bytes_per_token
        held = llm.sequence((np.arange(room * 2 // 3) % 250 + 3).tolist())
        held.extend([5])
        running = llm.stream([5, 6, 7], PLAIN.replace(max_tokens=600))
        next(running)
        prompt = (np.arange(room // 2) % 249 + 4).tolist()
        waiting = threading.Thread(target=lambda: llm.generate(prompt, PLAIN.replace(max_tokens=3), use_tqdm=False))
        waiting.start()
        while (metrics := llm.get_metrics())["num_waiting"] == 0:
            assert metrics["num_running"] > 0
        held.close()
        steps = counts(llm)[0]
        waiting.join()
        assert counts(llm)[0] - steps < 100
        running.close()


def test_more_rows_than_one_draw(tiny_path: Callable[..., Path]) -> None:
    """The head and the draws go in lots then, and steps one by one until few are left."""
    prompts = [[3 + i % 250, 7] for i in range(300)]
    params = [PLAIN.replace(seed=i, max_tokens=3 if i < 290 else 9) for i in range(300)]
    engine: dict[str, Any] = {"max_num_seqs": 512, "max_model_len": 64, "kv_cache_memory_bytes": 1 << 24}
    with LLM(tiny_path(), **engine) as cpu, LLM(tiny_path(), device="cuda", **engine) as llm:
        assert_same_tokens(llm.generate(prompts, params), cpu.generate(prompts, params))
        assert 3 < counts(llm)[1] < counts(llm)[0] - 2


def test_what_needs_the_tokens_waits_for_them(tiny_path: Callable[..., Path]) -> None:
    """Hooks, drafts and all that the host must see: one such request, and the steps that it is in go one by one."""
    prompts = [[5, 6, 7, 8] * 9, [9, 4] * 12, [3]]
    params = PLAIN.replace(max_tokens=24)

    def same(context: Any, logits: Any) -> Any:
        return logits

    class Nothing(llmi.BatchLogitsProcessor):
        def apply(self, contexts: Any, logits: Any) -> None:
            pass

    cases: list[tuple[bool, SamplingParams, dict[str, Any], dict[str, Any]]] = [
        (True, params, {}, {}),
        (True, params.replace(min_tokens=4, allowed_token_ids=list(range(99)), logit_bias={5: 2.0}), {}, {}),
        (False, params.replace(bad_words=["ab"]), {}, {}),
        (True, params.replace(repetition_penalty=1.6, temperature=0.0), {}, {}),
        (True, params.replace(frequency_penalty=-2.0, temperature=1.5, max_tokens=80), {}, {}),
        (True, params.replace(presence_penalty=0.9, repetition_penalty=0.7), {}, {}),
        (False, params.replace(logprobs=1), {}, {}),
        (False, params.replace(logits_processors=[same]), {}, {}),
        (False, params, {"speculative_config": SpeculativeConfig(llmi.PromptLookup(), 4)}, {}),
        (False, params, {}, {"scheduling_policy": "static"}),
        (False, params, {}, {"batch_processors": [Nothing()]}),
    ]
    for goes, mixed, options, engine in cases:
        arguments = {"kv_cache_memory_bytes": 1 << 22, **engine}
        with LLM(tiny_path(), **arguments) as cpu, LLM(tiny_path(), device="cuda", **arguments) as llm:
            assert_same_tokens(llm.generate(prompts, [params, mixed, params], **options), cpu.generate(prompts, [params, mixed, params]))
            steps, ahead = counts(llm)
            assert (ahead >= steps - 2) if goes else (ahead == 0), (mixed, options, engine, ahead, steps)


def test_steps_by_hand(tiny_path: Callable[..., Path]) -> None:
    """`step()` computes one step: what is queued before it is in it."""
    with LLM(tiny_path(), device="cuda", kv_cache_memory_bytes=1 << 22) as llm:
        llm.enqueue([[5, 6]], PLAIN)
        llm.step()
        llm.step()
        llm.enqueue([[7]], PLAIN)
        assert [len(output.outputs[0].token_ids) for output in llm.step()] == [3, 1]
        assert len(llm.wait_for_completion()) == 2
        assert counts(llm)[1] == 0


def test_others_between_steps(tiny_path: Callable[..., Path]) -> None:
    """The lab, aborts, arrivals and a forgotten prefix cache, while sequences run ahead."""
    prompts = make_prompts(257, 8, 100)
    params = [PLAIN.replace(seed=i, max_tokens=120) for i in range(8)]
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 24) as cpu, LLM(tiny_path(), device="cuda", kv_cache_memory_bytes=1 << 24) as llm:
        expected = cpu.generate(prompts, params)
        there = cpu.sequence(prompts[3]).extend([5, 6])

        def meddle(k: int) -> None:
            sequence = llm.sequence(prompts[3])
            assert_same_bits(sequence.extend([5, 6]), there)
            sequence.close()
            llm.reset_prefix_cache()
            stream = llm.stream([7 + k % 200, 8], PLAIN.replace(max_tokens=50))
            next(stream)
            stream.close()

        with over_and_over(meddle):
            for _ in range(2):
                assert_same_tokens(llm.generate(prompts, params, use_tqdm=False), expected)
        steps, ahead = counts(llm)
        assert ahead > 50, (ahead, steps)
        assert_same_tokens(llm.generate(prompts, params, use_tqdm=False), expected)


def test_logits_that_turn_bad(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    """The request fails that met them, with the CPU's message; the step ahead of it is nobody's."""
    source = tiny_path("llama", tie_word_embeddings=False)
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with LLM(source, kv_cache_memory_bytes=1 << 22) as llm:
        greedy = llm.generate([[3, 4]], PLAIN.replace(temperature=0))[0].outputs[0].token_ids
    bad = greedy[20]
    weights = load_file(tmp_path / "model.safetensors")
    name = next(key for key in weights if key.endswith("embed_tokens.weight"))
    weights[name] = weights[name].copy()
    weights[name][bad] = np.nan
    save_file(weights, tmp_path / "model.safetensors")
    params = [PLAIN.replace(temperature=0), PLAIN.replace(allowed_token_ids=[9, 10])]

    def what_came(llm: LLM) -> tuple[Any, ...]:
        outputs = llm.generate([[3, 4], [9]], params, on_error="return", use_tqdm=False)
        assert isinstance(outputs[0].error, NonFiniteLogitsError)
        return str(outputs[0].error), outputs[0].outputs[0].token_ids, outputs[1].outputs[0].token_ids

    with LLM(tmp_path, kv_cache_memory_bytes=1 << 22) as cpu, LLM(tmp_path, device="cuda", kv_cache_memory_bytes=1 << 22) as llm:
        expected = what_came(cpu)
        assert what_came(llm) == expected
        assert counts(llm)[1] > 20
        # The lab's hidden states come between the row's and the host's look at it.
        with over_and_over(lambda _: llm.sequence([5]).close()):
            for _ in range(20):
                assert what_came(llm) == expected
