"""Every feature of requests on a model whose layers have states: in any company, and with drafts, the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from features import ALL_FEATURES, BEAM_FEATURES, DRAFTED, make_request, one_by_one
from llmi import LLM, PromptLookup, SpeculativeConfig
from llmi.testing import assert_same_tokens
from tiny_families import make

pytestmark = pytest.mark.parity


@pytest.fixture(autouse=True, scope="module")
def audited() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMI_AUDIT", "1")
        yield


def test_every_feature(families: Path) -> None:
    path, options = make("lfm2", families).path, {"quantization": "q8_0", "max_model_len": 160}
    names = list(ALL_FEATURES)
    requests = [make_request(name, 17 * i + 1) for i, name in enumerate(names)]
    prompts, params = [list(column) for column in zip(*requests, strict=True)]
    with LLM(path, kv_cache_memory_bytes=1 << 25, enable_prefix_caching=False, **options) as llm:
        alone: Any = one_by_one(llm, prompts, params, use_tqdm=False)
    with LLM(path, kv_cache_memory_bytes=5 << 17, max_num_batched_tokens=23, state_snapshot_interval=16, **options) as llm:
        assert_same_tokens(llm.generate(prompts, params, use_tqdm=False), alone)
        assert_same_tokens(llm.generate(prompts, params, use_tqdm=False), alone)
        places = [i for i, name in enumerate(names) if name in DRAFTED and name not in BEAM_FEATURES]
        config = SpeculativeConfig(PromptLookup(), 5)
        drafted = llm.generate([prompts[i] for i in places], [params[i] for i in places], speculative_config=config, use_tqdm=False)
        assert_same_tokens(drafted, type(drafted)([alone[i] for i in places]))
        assert llm._engine.stats()["num_preemptions"] > 0
