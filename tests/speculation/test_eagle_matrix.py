"""Eagle beside every sampling feature in one batch, under pressure, against each request alone without a drafter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from features import ALL_FEATURES, crowded_llm, make_request
from llmi import LLM, Eagle, Outputs, SpeculativeConfig
from llmi.testing import assert_same_tokens
from tiny_eagle import tiny_eagle


@pytest.fixture(scope="module")
def heads(roomy: LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_eagle(roomy, tmp_path_factory.mktemp("heads"), num_kv_heads=1)


@pytest.fixture(scope="module", params=["chain", "tree"])
def drafting(tiny_path: Callable[..., Path], heads: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    choices = None if request.param == "chain" else [(0,), (1,), (0, 0), (0, 1), (1, 0)]
    speculation = SpeculativeConfig(Eagle(heads, 3, choices=choices), 5)
    with crowded_llm(tiny_path("gemma3"), 48, max_model_len=110, max_num_batched_tokens=24, speculative_config=speculation) as llm:
        yield llm


def test_all_features_in_one_batch(drafting: LLM, roomy: LLM) -> None:
    requests = [make_request(name, 17 * i + 1) for i, name in enumerate(ALL_FEATURES)]
    together = drafting.generate([prompt for prompt, _ in requests], [params for _, params in requests])
    for (prompt, params), output in zip(requests, together, strict=True):
        assert_same_tokens(Outputs([output]), roomy.generate(prompt, params))
    metrics = [completion.spec_decode_metrics for output in together for completion in output.outputs]
    assert sum(entry.num_draft_tokens for entry in metrics if entry is not None) > 100
    assert drafting.get_metrics()["num_preemptions"] > 0
