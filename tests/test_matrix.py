"""Every sampling feature beside every other in one batch, under pressure, against each request alone."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features import FEATURES, make_request
from llmi import LLM, Outputs
from llmi.testing import assert_same_tokens


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
