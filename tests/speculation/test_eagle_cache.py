"""An EAGLE layer's K and V in the cache's blocks: shared, given back, swapped and counted with them, and never read where they are not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_float64 import EagleDefinition
from features import crowded_llm
from llmi import LLM, Outputs
from llmi.testing import assert_same_tokens
from test_eagle import GREEDY, OPTIONS, SAMPLED, check_drafts, check_under_pressure, config, drafted, prompt
from tiny_eagle import tiny_eagle

LONG = prompt(70, 52)  # three blocks of 16 and a part


@pytest.fixture(scope="module")
def model(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path("llama", vocab_size=64)


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 24, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def heads(plain: LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_eagle(plain, tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def definition(plain: LLM, heads: Path) -> EagleDefinition:
    return EagleDefinition(plain, heads)


@pytest.fixture
def fresh(model: Path, heads: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 24, speculative_config=config(heads), **OPTIONS) as llm:
        yield llm


def by_judges(heads: Path, verification: str = "rejection") -> Any:
    return config(heads, 2, verification)


def tail(seed: int) -> list[int]:
    return [*LONG, *prompt(seed, 5)]


def test_after_a_hit(fresh: LLM, plain: LLM, definition: EagleDefinition) -> None:
    """Of whole blocks, of a part of one, of the whole prompt, and of the answer."""
    first = fresh.generate(LONG, GREEDY)
    answer = [*LONG, *first[0].outputs[0].token_ids]
    for text in (LONG, LONG[:48], LONG[:41], tail(1), tail(2), answer, [*answer[:-7], 3], [*answer, 5, 6]):
        output = fresh.generate(text, GREEDY, trace=True)
        assert output[0].num_cached_tokens >= 32
        assert_same_tokens(output, plain.generate(text, GREEDY))
        assert check_drafts(definition, output) > 5


def test_after_a_hit_made_without_a_drafter(fresh: LLM, plain: LLM, definition: EagleDefinition, heads: Path) -> None:
    """Coupled drafts start behind the hit, where it is long; judged ones count it only as far as the drafter's K and V are there."""
    text = prompt(71, 101)
    fresh.generate(text, GREEDY.replace(max_tokens=1), speculative_config=None)
    cold = fresh.generate(text, GREEDY, trace=True)
    assert cold[0].num_cached_tokens == 95  # one less than six blocks
    assert_same_tokens(cold, plain.generate(text, GREEDY))
    assert check_drafts(definition, cold, first=97) > 0  # the first slot behind the hit is hidden
    other = prompt(72, 101)
    fresh.generate(other, GREEDY.replace(max_tokens=1), speculative_config=None)
    judged = fresh.generate(other, GREEDY, trace=True, speculative_config=by_judges(heads))
    assert judged[0].num_cached_tokens == 0
    assert check_drafts(definition, judged) > 5
    again = fresh.generate(other, GREEDY, trace=True, speculative_config=by_judges(heads))
    assert again[0].num_cached_tokens >= 95
    assert drafted(again) == drafted(judged)


def test_blocks_of_other_texts_leave_nothing(fresh: LLM, definition: EagleDefinition, heads: Path) -> None:
    """A node of the prefix tree is used again for a block that no drafter has seen."""
    fresh.generate(LONG, GREEDY)
    fresh.reset_prefix_cache()
    other = prompt(75, 52)
    fresh.generate(other, GREEDY.replace(max_tokens=1), speculative_config=None)
    judged = fresh.generate(other, GREEDY, trace=True, speculative_config=by_judges(heads))
    assert judged[0].num_cached_tokens == 0
    assert check_drafts(definition, judged) > 5


def test_the_block_of_a_batch_mate(fresh: LLM, plain: LLM, definition: EagleDefinition) -> None:
    """Two requests compute the same blocks in one step; the one that drafts takes the other's, and brings what its drafter stored."""
    params = GREEDY.replace(max_tokens=40)
    fresh.enqueue(LONG, params, speculative_config=None)
    fresh.enqueue(LONG, params, trace=True)
    outputs = fresh.wait_for_completion()
    expected = plain.generate([LONG, LONG], params)
    assert_same_tokens(outputs, expected)
    assert check_drafts(definition, Outputs([outputs[1]])) > 5


@pytest.mark.parametrize("verification", ["rejection", "block"])
def test_judged_drafts_depend_on_the_request_alone(fresh: LLM, model: Path, heads: Path, verification: str) -> None:
    """Alone, after others, beside others, after a hit of every kind, after preemption."""
    judged = by_judges(heads, verification)
    text = tail(3)
    params = SAMPLED.replace(max_tokens=30)

    def run(llm: LLM, *others: list[int], **options: Any) -> tuple[Any, Any]:
        outputs = llm.generate([text, *others], params, trace=True, speculative_config=judged, **options)
        mine = Outputs([outputs[0]])
        return outputs[0].outputs[0].token_ids, drafted(mine)

    alone = run(fresh)
    assert run(fresh) == alone  # all of it known
    fresh.reset_prefix_cache()
    fresh.generate([text, tail(4)], params, speculative_config=None)
    assert run(fresh) == alone  # known without what the drafter keeps
    assert run(fresh, tail(5), prompt(73, 9), text) == alone
    fresh.reset_prefix_cache()
    fresh.generate([LONG, [*LONG[:40], 1, 2]], params)
    assert run(fresh, prompt(74, 30)) == alone
    with crowded_llm(model, 24, max_model_len=110, max_num_batched_tokens=24, speculative_config=judged, dtype="float32") as crowded:
        for _ in range(3):
            assert run(crowded, *(prompt(80 + i, 40) for i in range(6))) == alone
        assert crowded.get_metrics()["num_preemptions"] > 0


def test_under_pressure(model: Path, plain: LLM, heads: Path, definition: EagleDefinition) -> None:
    """Each draft is still the definition's, and blocks that are used again hold nothing that counts."""
    check_under_pressure(model, plain, config(heads), lambda outputs: check_drafts(definition, outputs))


def test_it_is_counted(fresh: LLM, plain: LLM) -> None:
    layer = 2 * 2 * 16 * 4  # K and V of two heads of 16 floats
    assert fresh.model_info.kv_bytes_per_token == plain.model_info.kv_bytes_per_token + layer
    assert fresh.memory_report().drafter_bytes > 0 == plain.memory_report().drafter_bytes


@pytest.mark.skipif(os.environ.get("LLMI_EMULATE_CUDA") == "0", reason="switched off")
def test_on_a_device(model: Path, heads: Path, plain: LLM, definition: EagleDefinition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    with LLM(model, device="cuda", kv_cache_memory_bytes=1 << 22, speculative_config=config(heads), **OPTIONS) as emulated:
        prompts = [prompt(60, 20), tail(6)]
        params = GREEDY.replace(max_tokens=12)
        outputs = emulated.generate(prompts, params, trace=True)
        assert_same_tokens(outputs, emulated.generate(prompts, params, speculative_config=None))
        assert check_drafts(definition, outputs) > 5
