"""How long drafts are: the rule, what it learns of drafters and of kinds of drafts, and what it must not do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, DraftContext, Drafter, Outputs, SamplingParams, SpeculativeConfig, _core
from test_speculation import Replay

Costs = list[tuple[int, float]]


def choose(num_drafts: int, num_accepted: int, costs: Costs, draft_seconds: float, max_length: int, **more: Any) -> int:
    """The length chosen beside a step of one row and one token, after drafts of 10 tokens of one kind."""
    seen = [(0, True)] * num_accepted + [(0, False)] * (num_accepted < 10)
    expected = more.pop("expected_acceptance", 0.5)
    nodes = _core.testing.choose_nodes(
        list(range(-1, 31)),
        [(0, -1)] * 32,
        [expected],
        costs,
        seen * num_drafts,
        expected_tokens=1.0,
        num_rows=1,
        draft_seconds_per_token=draft_seconds,
        max_length=max_length,
        **more,
    )[0]
    return len(nodes)


def test_what_a_drafter_promises_decides_the_first_try(tiny: LLM) -> None:
    costs = [(1, 10.0), (2, 10.5), (4, 12.0)]
    tries = [
        choose(number, accepted, costs, 5.0, 4, expected_acceptance=expected)
        for number, accepted, expected in ((0, 0, 0.5), (0, 0, 0.8), (1, 0, 0.8), (8, 0, 0.8), (8, 3, 0.5))
    ]
    assert tries[0] == 0 and tries[1] > 0, "a token for half a step's price pays if most are accepted"
    assert tries[2] > 0 and tries[3] == 0, "one miss is no proof; eight are"
    assert tries[4] > 0

    class Boaster(llmi.Drafter):
        expected_acceptance = 1.5

        def propose(self, context: llmi.DraftContext) -> list[int]:
            return []

    with pytest.raises(llmi.InvalidParamsError, match=r"Boaster.expected_acceptance must lie in \[0, 1\], not 1.5"):
        tiny.generate([1], max_tokens=2, speculative_config=Boaster())


def test_length_rule() -> None:
    """More acceptance drafts more; dear rows draft less; nothing to gain drafts nothing."""
    flat = [(1, 1.0), (32, 1.05)]  # rows ride free
    steep = [(1, 1.0), (2, 2.0), (32, 32.0)]  # each row costs as much as the first
    assert choose(10, 10, flat, 0.0, 16) == 16
    assert choose(10, 0, flat, 0.0, 16) <= 4
    assert choose(10, 10, steep, 0.0, 16) == 0
    assert choose(10, 5, flat, 0.0, 16) < choose(10, 9, flat, 0.0, 16) or choose(10, 5, flat, 0.0, 16) == 16
    assert choose(10, 10, flat, 10.0, 16) == 0  # a drafter slower than the model
    assert choose(10, 10, flat, 0.0, 3) == 3
    dear = [(1, 1.0), (2, 1.1), (32, 9.0)]
    assert 0 < choose(10, 3, dear, 0.0, 16) < choose(10, 9, dear, 0.0, 16) < 16
    assert choose(10, 3, dear, 0.0, 16, drafted_ratio=5.0) == 0, "drafted steps were seen to take longer than the curve says"
    # A draft model reads the prompt first: worth it over 100 tokens that come 8 a step, not over the last three.
    assert choose(10, 10, flat, 0.0, 16, start_seconds=5.0, remaining_tokens=100) == 16
    assert choose(10, 10, flat, 0.0, 16, start_seconds=5.0, remaining_tokens=3) == 0


def test_auto_learns_what_a_start_costs(tiny_path: Callable[..., Path]) -> None:
    """A drafter that was seen to read each prompt slowly is not begun for an answer of three tokens, however good it is."""
    begun: list[str] = []

    class Reader(Drafter):
        def __init__(self, recorded: Outputs) -> None:
            self.replay = Replay(recorded, error_rate=0.0)

        def propose(self, context: DraftContext) -> Any:
            if context.state is None:
                context.state = True
                begun.append(context.request_id)
                time.sleep(0.5)
            return self.replay.propose(context)

    long, short = SamplingParams(max_tokens=100, seed=1, ignore_eos=True), SamplingParams(max_tokens=3, seed=1, ignore_eos=True)
    prompts = [[i + 1, 2] for i in range(3)]
    with LLM(tiny_path(num_layers=4), kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        plain = {params.max_tokens: llm.generate(prompts, params) for params in (long, short)}
        reader = Reader(plain[100])
        assert llm.generate(prompts, long, speculative_config=SpeculativeConfig(reader, 3)) == plain[100]
        assert len(begun) == 3, "a fixed length drafts whatever it costs"
        for prompt, expected in zip(prompts, plain[3], strict=True):
            assert llm.generate(prompt, short, speculative_config=reader)[0] == expected
        assert len(begun) == 3, "a start that two tokens cannot pay for"


def test_prices() -> None:
    price = _core.testing.price
    assert price([]) == 0 and price([2.0]) == 2.0
    assert price([1.0, 100.0]) == pytest.approx(1.2), "one slow call"
    assert price([1.0] + [5.0] * 30) == pytest.approx(5.0, rel=0.01), "a drafter that has become slow"
    assert price([1.0] + [0.2] * 30) == pytest.approx(0.2, rel=0.01)
    assert price([1.0] + [None] * 700) == pytest.approx(0.5, rel=0.01), "some time it is tried again"


def test_one_slow_call_does_not_end_drafting(tiny_path: Callable[..., Path]) -> None:
    """A good drafter that stalls once, for as long as a hundred steps, is asked again in the same answer and in later ones.

    The engine measures what rows and first drafts cost. On a busy machine it may find them too dear before the stall comes, and asks no
    more: then a new engine measures anew. An engine that a stall keeps from drafting fails however often it is tried.
    """
    calls: list[str] = []

    class Stalls(Drafter):
        expected_acceptance = 0.8

        def __init__(self, recorded: Outputs) -> None:
            self.replay = Replay(recorded, error_rate=0.0)

        def propose(self, context: DraftContext) -> Any:
            calls.append(context.request_id)
            if len(calls) == 6:
                time.sleep(0.5)
            return self.replay.propose(context)

    params = SamplingParams(max_tokens=200, seed=1, ignore_eos=True)
    prompts = [[i + 1, 2] for i in range(3)]
    for _ in range(8):
        calls.clear()
        with LLM(tiny_path(num_layers=16, hidden_size=512), kv_cache_memory_bytes=1 << 25, max_model_len=256) as llm:
            plain = llm.generate(prompts, params)
            drafter = Stalls(plain)
            for prompt, expected in zip(prompts, plain, strict=True):
                assert llm.generate(prompt, params, speculative_config=drafter)[0] == expected
        counts = [calls.count(name) for name in set(calls)]
        if len(counts) == 3 and min(counts) > 8:
            return
    raise AssertionError(counts)


def test_auto_does_not_draft_in_vain(tiny_path: Callable[..., Path]) -> None:
    """Where nothing is accepted and each row costs, drafting stops."""
    calls = []

    class Never(Drafter):
        def propose(self, context: DraftContext) -> Any:
            calls.append(context.num_speculative_tokens)
            return [int(context.token_ids[-1])] * context.num_speculative_tokens

    class Policy:
        def choose(self, acceptance: Any, cost_curve: Any, num_running: int) -> int:
            assert acceptance.shape == (32,) and cost_curve.shape == (32,) and num_running == 1
            return 3 if acceptance[0] > 0.3 else 0

    assert choose(30, 0, [(1, 1.0), (2, 1.3), (32, 9.0)], 0.0, 16, num_rests=0) == 0
    assert choose(30, 0, [(1, 1.0), (2, 1.3), (32, 9.0)], 0.0, 16, num_rests=300) > 0, "some time it is tried again: a dear row later"
    assert choose(30, 0, [(1, 1.0), (2, 1.1), (32, 9.0)], 0.0, 16, num_rests=100) > 0, "a cheap one sooner"
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=256) as llm:
        params = SamplingParams(max_tokens=60, temperature=3.0, seed=1, ignore_eos=True)
        plain = llm.generate([1, 2], params)
        assert llm.generate([1, 2], params, speculative_config=SpeculativeConfig(Never(), Policy())) == plain
        assert 0 < len(calls) < 12, calls


def test_lookups_tell_how_much_matches() -> None:
    def kinds(ids: list[int], num_tokens: int = 1) -> list[int]:
        return _core.testing.lookup_kinds(1, 3, ids, num_tokens)

    assert kinds([1, 2, 3]) == [], "nothing found"
    for match, kind in ((1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (8, 4), (9, 5), (20, 5)):
        text = list(range(100, 100 + match))
        assert kinds([7, *text, 8, 9, *text]) == [kind], match
    assert kinds([1, 2, 1, 2, 1, 2]) == [3], "it ends where the text begins"
    assert kinds([7, 100, 8, 9, 100], 5) == [1, 2, 3, 3, 4], "drafted tokens lengthen the match of those behind them"


def test_auto_tells_kinds_of_drafts_apart(tiny: LLM) -> None:
    """Passages of the prompt word for word, between tokens that match one token and never go on alike: only the first are drafted far."""
    rng = np.random.default_rng(3)
    prompt = rng.permutation(np.arange(1, 241)).tolist()
    seen, script = set(itertools.pairwise(prompt)), prompt[-1:]
    for passage in range(4):
        while len(script) % 80 < 20:
            token = int(rng.integers(1, 241))
            if (script[-1], token) not in seen:
                seen.add((script[-1], token))
                script.append(token)
        script += prompt[passage * 60 : passage * 60 + 60]
    script = script[1:]

    def follow(context: llmi.TokenContext, logits: Any) -> None:
        logits[script[len(context.token_ids) - len(prompt)]] = 1e4

    params = SamplingParams(temperature=0, max_tokens=len(script), ignore_eos=True, logits_processors=[follow])
    out = tiny.generate([prompt], params, speculative_config=llmi.PromptLookup())[0]
    assert out.token_ids == script
    metrics = out.outputs[0].spec_decode_metrics
    assert metrics is not None
    assert metrics.num_accepted_tokens > 150, metrics
    assert metrics.acceptance_rate is not None and metrics.acceptance_rate > 0.5, "0.35 where all drafts count as one kind, 0.67 else"
    assert out == tiny.generate([prompt], params)[0]
