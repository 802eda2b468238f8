"""Every sampling feature beside every other in one batch, under pressure, against each request alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features import ALL_FEATURES, make_request
from llmi import LLM, DraftContext, Outputs, SamplingParams, SpeculativeConfig, TokenContext, log_softmax
from llmi.testing import assert_same_tokens
from test_speculation import Replay


def test_all_features_in_one_batch(crowded: LLM, roomy: LLM) -> None:
    requests = [make_request(name, 17 * i + 1) for i, name in enumerate([*ALL_FEATURES, *ALL_FEATURES])]
    before = crowded.get_metrics()
    together = crowded.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    for (prompt, params), output in zip(requests, together, strict=True):
        assert_same_tokens(Outputs([output]), roomy.generate(prompt, params))
    after = crowded.get_metrics()
    assert after["num_preemptions"] - before["num_preemptions"] >= 5, "too little pressure to have tested anything"
    assert after["num_copies_on_write"] > before["num_copies_on_write"]
    assert after["num_window_blocks_returned"] > before["num_window_blocks_returned"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(sorted(ALL_FEATURES)), st.integers(0, 1000)), min_size=1, max_size=16))
def test_random_batches(crowded: LLM, roomy: LLM, chosen: list[tuple[str, int]]) -> None:
    requests = [make_request(name, seed) for name, seed in chosen]
    together = crowded.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    for (prompt, params), output in zip(requests, together, strict=True):
        assert_same_tokens(Outputs([output]), roomy.generate(prompt, params))


def test_logits_that_nobody_asks_for(roomy: LLM) -> None:
    """Without log-probabilities a batch's rows are processed where they lie: the tokens are those of each request alone with them."""
    requests = [make_request(name, 19 * i + 2) for i, name in enumerate(ALL_FEATURES)]
    requests += [
        (prompt, params.replace(n=3)) for prompt, params in requests if isinstance(params, SamplingParams) and params.temperature > 0
    ]
    silent = [params.replace(logprobs=None, prompt_logprobs=None) for _, params in requests]
    together = roomy.generate([prompt for prompt, _ in requests], silent)
    for (prompt, params), output in zip(requests, together, strict=True):
        expected = roomy.generate(prompt, params)[0]
        assert [c.token_ids for c in output.outputs] == [c.token_ids for c in expected.outputs]


def test_logits_that_are_read_after_the_draw(roomy: LLM) -> None:
    """By log-probabilities and criteria, and the law by drafters that observe: what the model gave, whatever was made of it to draw."""

    def raw(tokens: Any) -> Any:
        with roomy.sequence([int(token) for token in tokens]) as sequence:
            return sequence.logits

    seen: list[tuple[Any, Any]] = []
    observed: list[tuple[Any, int, Any]] = []

    def criterion(context: TokenContext) -> bool:
        seen.append((context.token_ids[:-1].copy(), context.logits.copy()))
        return False

    class Watching(Replay):
        def observe(self, context: DraftContext, num_accepted: int, target_logprobs: Any) -> None:
            observed.append((context.token_ids.tolist(), num_accepted, target_logprobs.copy()))

    silent = make_request("filters", 5)[1].replace(logprobs=None, repetition_penalty=1.3, max_tokens=24)
    for prompts in ([[7, 8, 9], [11, 12, 13]], [[7, 8, 9]]):
        plain = roomy.generate(prompts, silent.replace(logprobs=0))
        laws: dict[int, list[float]] = {}
        for output in plain:
            entries = [entry[token] for entry, token in zip(output.outputs[0].logprobs or [], output.token_ids, strict=True)]
            laws[output.prompt_token_ids[0]] = [entry.processed_logprob for entry in entries]
            for i, token in enumerate(output.token_ids):
                given = raw([*output.prompt_token_ids, *output.token_ids[:i]])
                assert log_softmax(given)[token] == np.float32(entries[i].logprob)
        seen.clear()
        roomy.generate(prompts, silent.replace(stopping_criteria=[criterion]))
        assert len(seen) == 24 * len(prompts)
        assert all(np.array_equal(raw(tokens), logits) for tokens, logits in seen)
        observed.clear()
        roomy.generate(prompts, silent, speculative_config=SpeculativeConfig(Watching(plain), 4))
        assert sum(accepted for _, accepted, _ in observed) > 5 * len(prompts)
        for tokens, accepted, row in observed:
            assert np.array_equal(row[:accepted], np.float32(laws[tokens[0]][len(tokens) - 3 :][:accepted]))
