"""Every sampling feature beside every other in one batch, under pressure, against each request alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features import FEATURES, make_request
from llmi import LLM, DraftContext, Outputs, SpeculativeConfig, TokenContext
from llmi.testing import assert_same_tokens
from test_speculation import Replay


def test_all_features_in_one_batch(crowded: LLM, roomy: LLM) -> None:
    requests = [make_request(name, 17 * i + 1) for i, name in enumerate([*FEATURES, *FEATURES])]
    before = crowded.get_metrics()
    together = crowded.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    for (prompt, params), output in zip(requests, together, strict=True):
        assert_same_tokens(Outputs([output]), roomy.generate(prompt, params))
    after = crowded.get_metrics()
    assert after["num_preemptions"] - before["num_preemptions"] >= 5, "too little pressure to have tested anything"
    assert after["num_copies_on_write"] > before["num_copies_on_write"]
    assert after["num_window_blocks_returned"] > before["num_window_blocks_returned"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(sorted(FEATURES)), st.integers(0, 1000)), min_size=1, max_size=16))
def test_random_batches(crowded: LLM, roomy: LLM, chosen: list[tuple[str, int]]) -> None:
    requests = [make_request(name, seed) for name, seed in chosen]
    together = crowded.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    for (prompt, params), output in zip(requests, together, strict=True):
        assert_same_tokens(Outputs([output]), roomy.generate(prompt, params))


def test_logits_that_nobody_asks_for(roomy: LLM) -> None:
    """Without log-probabilities a batch's rows are processed where they lie: the tokens are those of each request alone with them."""
    requests = [make_request(name, 19 * i + 2) for i, name in enumerate(FEATURES)]
    requests += [(prompt, params.replace(n=3)) for prompt, params in requests if params.temperature > 0]
    silent = [params.replace(logprobs=None, prompt_logprobs=None) for _, params in requests]
    together = roomy.generate([prompt for prompt, _ in requests], silent)
    for (prompt, params), output in zip(requests, together, strict=True):
        expected = roomy.generate(prompt, params)[0]
        assert [c.token_ids for c in output.outputs] == [c.token_ids for c in expected.outputs]


def test_logits_that_are_read_after_the_draw(roomy: LLM) -> None:
    """By criteria, and the law by drafters that observe: in a batch as alone."""
    seen: dict[int, list[Any]] = {}

    def criterion(context: TokenContext) -> bool:
        seen.setdefault(int(context.token_ids[0]), []).append(context.logits.copy())
        return False

    class Watching(Replay):
        def observe(self, context: DraftContext, num_accepted: int, target_logprobs: Any) -> None:
            seen.setdefault(int(context.token_ids[0]), []).append(target_logprobs.copy())

    prompts = [[7, 8, 9], [11, 12, 13]]
    params = make_request("filters", 5)[1].replace(logprobs=None, repetition_penalty=1.3)
    plain = roomy.generate(prompts, params)
    for watched, config in ((params.replace(stopping_criteria=[criterion]), None), (params, SpeculativeConfig(Watching(plain), 4))):
        runs = []
        for batches in ([prompts], [[prompt] for prompt in prompts]):
            seen.clear()
            for batch in batches:
                roomy.generate(batch, watched, speculative_config=config)
            runs.append({prompt: np.concatenate(rows) for prompt, rows in seen.items()})
        assert runs[0].keys() == runs[1].keys() == {7, 11}
        for prompt, rows in runs[0].items():
            assert np.array_equal(rows, runs[1][prompt], equal_nan=True)
