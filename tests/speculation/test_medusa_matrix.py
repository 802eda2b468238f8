"""Medusa beside every sampling feature in one batch, under pressure, against each request alone without a drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from features import ALL_FEATURES, crowded_llm, make_request
from llmi import LLM, Medusa, Outputs, SpeculativeConfig
from llmi.testing import assert_same_tokens
from tiny_medusa import tiny_medusa


def test_all_features_in_one_batch(roomy: LLM, tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    speculation = SpeculativeConfig(Medusa(tiny_medusa(roomy, tmp_path / "heads")), 5)
    requests = [make_request(name, 17 * i + 1) for i, name in enumerate(ALL_FEATURES)]
    with crowded_llm(tiny_path("gemma3"), 48, max_model_len=110, max_num_batched_tokens=24, speculative_config=speculation) as drafting:
        together = drafting.generate([prompt for prompt, _ in requests], [params for _, params in requests])
        for (prompt, params), output in zip(requests, together, strict=True):
            assert_same_tokens(Outputs([output]), roomy.generate(prompt, params))
        metrics = [completion.spec_decode_metrics for output in together for completion in output.outputs]
        assert sum(entry.num_draft_tokens for entry in metrics if entry is not None) > 100
        assert drafting.get_metrics()["num_preemptions"] > 0
