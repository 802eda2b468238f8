"""The scheduler without a model: any mixture of requests ends, within its limits, and nobody starves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmi
from llmi import LLM, SamplingParams, _core
from llmi.testing import assert_same_tokens

POLICIES = ["fcfs", "priority", "shortest_remaining", "longest_prefix", "prefill_first", "static", "custom"]
MAX_OVERTAKEN = 64


def make(policy: str, **kwargs: Any) -> Any:
    defaults = {"windows": [0], "num_pages": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return _core.testing.Scheduler(policy, **{**defaults, **kwargs})


REQUEST = st.tuples(st.integers(1, 120), st.integers(1, 60), st.integers(0, 3), st.integers(0, 4))


@settings(max_examples=150, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    windows=st.sampled_from([[0], [0, 32], [32]]),
    num_pages=st.integers(24, 90),
    max_num_seqs=st.integers(1, 9),
    budget=st.integers(1, 200),
    prompt_budget=st.integers(1, 40),
    with_prefixes=st.booleans(),
    arrivals=st.lists(st.lists(REQUEST, max_size=4), min_size=1, max_size=12),
    cancel_every=st.integers(3, 20),
)
def test_everything_ends_within_its_limits(
    policy: str,
    windows: list[int],
    num_pages: int,
    max_num_seqs: int,
    budget: int,
    prompt_budget: int,
    with_prefixes: bool,
    arrivals: list[list[tuple[int, int, int, int]]],
    cancel_every: int,
) -> None:
    scheduler = make(
        policy, windows=windows, num_pages=num_pages, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, with_prefixes=with_prefixes
    )
    wanted: dict[int, int] = {}
    lengths: dict[int, int] = {}
    decoding: set[int] = set()
    computed: dict[int, int] = {}
    ran: set[int] = set()
    steps, number = 0, 0
    while arrivals or wanted:
        for prompt_len, new_tokens, priority, stem in arrivals.pop(0) if arrivals else []:
            request = scheduler.add([stem] * prompt_len, new_tokens, priority, [float(priority), -float(prompt_len)])
            wanted[request], lengths[request] = new_tokens, prompt_len
            number += 1
            if number % cancel_every == 0:
                scheduler.cancel(request)
                del wanted[request]
        work, ended = scheduler.step(prompt_budget)
        steps += 1
        assert scheduler.audit() == ""
        assert sum(tokens for _, _, tokens in work) <= budget
        assert len(work) <= max_num_seqs and len({request for request, _, _ in work}) == len(work)
        # Those that ran in the step before: one that comes back from preemption with a single token to compute stalls for nobody.
        decodes = [
            request for request, first, tokens in work if tokens == 1 and computed.get(request, 0) == first and request in decoding & ran
        ]
        if decodes and policy != "prefill_first":
            assert sum(tokens for request, _, tokens in work if request not in decoding and tokens > 1) <= prompt_budget
        ran = {request for request, _, _ in work}
        for request, first, tokens in work:
            computed[request] = max(computed.get(request, 0), first + tokens)
            if computed[request] >= lengths[request]:
                decoding.add(request)
        for request in ended:
            del wanted[request]
        assert work or not wanted, "work is left and nothing runs"
        assert steps < 20_000
    for _ in range(3):  # a static batch lets its rows go
        scheduler.step()
    assert scheduler.num_available == num_pages and scheduler.num_running == scheduler.num_waiting == 0


@pytest.mark.parametrize("policy", ["priority", "shortest_remaining", "longest_prefix", "custom"])
def test_nobody_starves(policy: str) -> None:
    """One unwelcome request under an endless stream of welcome ones."""
    scheduler = make(policy, max_num_seqs=1, num_pages=200)
    warm = scheduler.add([5] * 40, 1, 0, [0.0])
    while warm not in scheduler.step()[1]:
        pass
    unwelcome = scheduler.add([9] * 60, 30, 9, [9.0])
    overtaken = 0
    for _ in range(400):
        while scheduler.num_waiting < 3:
            scheduler.add([5] * 20, 1, 0, [0.0])
        work, ended = scheduler.step()
        if any(request == unwelcome for request, _, _ in work):
            break
        overtaken += len(ended)
    assert 1 < overtaken <= MAX_OVERTAKEN + 1


def order_of(policy: str, requests: list[tuple[list[int], int, int, list[float]]], warm: list[int] | None = None) -> list[int]:
    scheduler = make(policy, max_num_seqs=1, num_pages=200, max_num_batched_tokens=400)
    if warm:
        scheduler.add(warm, 1)
        scheduler.step()
    ids = [scheduler.add(*request) for request in requests]
    order = []
    while scheduler.num_running or scheduler.num_waiting:
        order += scheduler.step()[1]
    return [ids.index(request) for request in order]


def test_what_each_policy_prefers() -> None:
    requests = [([1] * 50, 9, 2, [3.0]), ([2] * 10, 2, 1, [1.0]), ([3] * 70, 5, 0, [2.0])]
    assert order_of("fcfs", requests) == [0, 1, 2]
    assert order_of("priority", requests) == [2, 1, 0]
    assert order_of("shortest_remaining", requests) == [1, 0, 2]
    assert order_of("custom", requests) == [1, 2, 0]
    assert order_of("longest_prefix", requests, warm=[3] * 70) == [2, 0, 1]


def test_a_prompt_budget_keeps_decodes_going() -> None:
    scheduler = make("fcfs", max_num_batched_tokens=512, num_pages=200)
    decode = scheduler.add([1] * 8, 100)
    scheduler.step()
    long = scheduler.add([2] * 300, 2)
    chunks = []
    for _ in range(40):
        work, ended = scheduler.step(20)
        assert any(request == decode for request, _, _ in work), "a decode waited"
        chunks += [tokens for request, _, tokens in work if request == long and tokens > 1]
        if long in ended:
            break
    assert chunks == [20] * 15
    alone = make("fcfs", max_num_batched_tokens=512, num_pages=200)
    alone.add([2] * 300, 2)
    assert alone.step(20)[0][0][2] == 300, "nobody to stall: the prompt goes whole"


def test_a_token_is_set_aside_for_each_decode() -> None:
    """Also for decodes behind a prompt of higher precedence, which would take the whole step."""
    scheduler = make("priority", max_num_batched_tokens=32, num_pages=200)
    decode = scheduler.add([1] * 8, 100, 5)
    scheduler.step()
    prompt = scheduler.add([2] * 300, 2, 0)
    for _ in range(5):
        assert {request: tokens for request, _, tokens in scheduler.step()[0]} == {decode: 1, prompt: 31}


def test_waiting_served_ratio_pauses_decodes_for_one_prefill() -> None:
    scheduler = make("fcfs", max_num_batched_tokens=512, num_pages=200, waiting_served_ratio=1.0)
    decode = scheduler.add([1] * 8, 100)
    scheduler.step()
    first = scheduler.add([2] * 100, 3)
    assert [request for request, _, _ in scheduler.step()[0]] == [first], "one waits for one that runs: the decode pauses"
    assert {request for request, _, _ in scheduler.step()[0]} == {decode, first}
    scheduler.add([3] * 100, 3)
    assert decode in {request for request, _, _ in scheduler.step()[0]}, "one waits for two that run: no pause"


def test_a_crowd_waits_rather_than_being_computed_again() -> None:
    """Room for a quarter: as many run as will find room until some end, whatever the first ones had to guess."""
    scheduler = make("fcfs", num_pages=8 * 25, max_num_seqs=32, max_num_batched_tokens=512)
    for i in range(64):
        scheduler.add([i] * 300, 100)
    running = []
    while scheduler.num_running or scheduler.num_waiting:
        scheduler.step()
        running.append(scheduler.num_running)
    assert scheduler.num_recomputed_tokens < 0.03 * 64 * 400
    assert np.mean(running[:-100]) > 7.5, "nearly as many as hold their whole length at once: 8"


def test_answers_that_end_early_make_room_for_more() -> None:
    scheduler = make("fcfs", num_pages=8 * 25, max_num_seqs=32, max_num_batched_tokens=512)
    for _ in range(60):  # each may draw 300, and leaves after 10
        request = scheduler.add([1] * 100, 300)
        for _ in range(10):
            scheduler.step()
        scheduler.cancel(request)
    for i in range(32):
        scheduler.add([2 + i] * 100, 300)
    for _ in range(12):
        scheduler.step()
    assert scheduler.num_running > 20, "8 of 400 tokens would fill the pool"


def test_a_beginning_is_computed_once() -> None:
    """Others that begin alike wait while it is computed, and then find all of it."""
    scheduler = make("fcfs", num_pages=200, max_num_batched_tokens=1000)
    ids = [scheduler.add([1] * 160 + [2 + i] * 40, 4) for i in range(4)]
    assert scheduler.step()[0] == [(ids[0], 0, 200)]
    work, _ = scheduler.step()
    assert work == [(ids[0], 200, 1), *((i, 160, 40) for i in ids[1:])]


def test_prefill_first_stops_decodes() -> None:
    scheduler = make("prefill_first", max_num_batched_tokens=32, num_pages=200)
    decode = scheduler.add([1] * 8, 100)
    scheduler.step()
    scheduler.add([2] * 30, 2)
    work, _ = scheduler.step()
    assert [request for request, _, _ in work] != [decode] and all(tokens > 1 for _, _, tokens in work)


# --- through the engine


def test_a_policy_object(tiny_path: Callable[..., Path]) -> None:
    seen: list[Any] = []

    class Last:
        def key(self, request: llmi.RequestInfo, now_s: float) -> tuple[float, ...]:
            seen.append(request)
            assert now_s >= request.arrival_time_s
            if request.priority == 7:
                raise LookupError("no such tenant")
            return (-request.arrival_time_s, -float(request.num_prompt_tokens))

    prompts = [[i + 1] * (i + 1) for i in range(6)]
    params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=64, max_num_seqs=1, scheduling_policy=Last()) as llm:
        outputs = llm.generate(prompts, params, priority=[0, 0, 7, 0, 0, 0], on_error="return")
        assert isinstance(outputs[2].error, llmi.HookError) and "no such tenant" in str(outputs[2].error)
        finished = sorted((i for i in range(6) if i != 2), key=lambda i: outputs[i].metrics.queue_time_s)
        assert finished[0] in (0, 5) and finished[1:] == sorted(finished[1:], reverse=True)
        assert {request.num_prompt_tokens for request in seen} == {1, 2, 3, 4, 5, 6}
        plain = llm.generate(prompts[3], params)
    assert_same_tokens(llmi.Outputs([outputs[3]]), plain)


def test_waste_stays_small(tiny_path: Callable[..., Path]) -> None:
    """Reserved beside live slots: about half a block a sequence, drafts included."""
    rng = np.random.default_rng(0)
    wasted = []

    def look(context: llmi.TokenContext) -> bool:
        wasted.append(llm.memory_report().wasted_share)
        return False

    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 24, max_model_len=512) as llm:
        prompts = [rng.integers(1, 257, size=int(rng.integers(100, 300))).tolist() for _ in range(16)]
        llm.generate(prompts, max_tokens=60, ignore_eos=True, seed=1, stopping_criteria=[look])
    assert np.mean(wasted) < 0.04
