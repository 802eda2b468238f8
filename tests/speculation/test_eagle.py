"""Eagle: the drafts that its definition names, whatever ran before, beside or instead; and tokens that do not depend on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle_float64 import EagleDefinition
from features import crowded_llm, enumerable_llm
from llmi import LLM, Eagle, Outputs, SamplingParams, SpeculativeConfig
from llmi.testing import assert_lossless, assert_same_tokens
from tiny_eagle import tiny_eagle

MARGIN = 1e-3  # of logits: closer ones may be ranked otherwise in fp32
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=24, ignore_eos=True, detokenize=False, seed=5)
FAMILIES = {
    "llama": {"vocab_size": 64},
    # Windows, two KV groups; an EAGLE layer with more KV heads than the model.
    "gemma3": {"vocab_size": 64, "num_layers": 4},
}


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, tiny_path: Callable[..., Path]) -> Path:
    return tiny_path(family, **FAMILIES[family])


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 24, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def heads(plain: LLM, family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    listed = [3 * i for i in range(20)] + [1, 2] if family == "gemma3" else None
    return tiny_eagle(plain, tmp_path_factory.mktemp("heads"), shortlist=listed)


@pytest.fixture(scope="module")
def drafting(model: Path, heads: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 24, speculative_config=config(heads), **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def definition(plain: LLM, heads: Path) -> EagleDefinition:
    return EagleDefinition(plain, heads)


def config(heads: Path, num_tokens: int = 3, verification: str = "coupled") -> SpeculativeConfig:
    return SpeculativeConfig(Eagle(heads, num_tokens), num_tokens, verification)


def prompt(seed: int, size: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(1, 64, size)]


def drafted(outputs: Outputs, index: int = 0) -> dict[tuple[int, int], int]:
    """{(position, depth): token} of the drafted tokens that the walks have reached."""
    found = {}
    for output in outputs:
        columns = output.outputs[index].trace.to_dict()
        for position, depth, token, is_drafted in zip(*(columns[k] for k in ("position", "depth", "token_id", "drafted")), strict=True):
            if is_drafted:
                found[int(position), int(depth)] = int(token)
    return found


def check_drafts(definition: EagleDefinition, outputs: Outputs, first: int = 1) -> int:
    """Each drafted token is the definition's. Returns their number."""
    count = 0
    for output in outputs:
        whole = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        for (position, depth), token in drafted(Outputs([output])).items():
            expected, margin = definition.draft(whole, position - depth + 1, depth, first)[-1]
            assert token == expected or margin < MARGIN, (position, depth)
            count += 1
    return count


def check_under_pressure(model: Path, plain: LLM, speculation: SpeculativeConfig, check: Callable[[Outputs], int]) -> None:
    """Preempted, cut into chunks, forked: tokens are the plain ones, and `check`, which counts the drafted tokens, holds."""
    prompts = [prompt(90 + i, 5 + 7 * i) for i in range(8)]
    params = GREEDY.replace(max_tokens=30)
    expected = plain.generate(prompts, params)
    with crowded_llm(model, 24, max_model_len=110, max_num_batched_tokens=24, speculative_config=speculation, dtype="float32") as crowded:
        for _ in range(3):
            outputs = crowded.generate(prompts, params, trace=True)
            assert_same_tokens(outputs, expected)
            assert check(outputs) > 0
        assert crowded.get_metrics()["num_preemptions"] > 0
        assert_same_tokens(crowded.generate(prompts[:4], SAMPLED.replace(n=3)), plain.generate(prompts[:4], SAMPLED.replace(n=3)))


def test_drafts_follow_the_definition(drafting: LLM, plain: LLM, definition: EagleDefinition) -> None:
    prompts = [prompt(1, 1), prompt(2, 2), prompt(3, 17), prompt(4, 33), prompt(5, 48)]
    params = GREEDY.replace(max_tokens=40)
    outputs = drafting.generate(prompts, params, trace=True)
    assert_same_tokens(outputs, plain.generate(prompts, params))
    metrics = [output.outputs[0].spec_decode_metrics for output in outputs]
    assert sum(m.num_accepted_tokens for m in metrics) >= 20, "too few accepted tokens to have tested their rows"
    assert check_drafts(definition, outputs) >= 60


def test_tokens_are_those_without_a_drafter(drafting: LLM, plain: LLM, heads: Path) -> None:
    shapes = [
        GREEDY,
        SAMPLED,
        SAMPLED.replace(n=3),
        GREEDY.replace(repetition_penalty=1.3),
        SAMPLED.replace(logprobs=2, top_k=8, min_p=0.02),
    ]
    prompts = [prompt(20 + i, 3 + 9 * i) for i in range(len(shapes))]
    expected = plain.generate(prompts, shapes)
    assert_same_tokens(drafting.generate(prompts, shapes), expected)
    assert_same_tokens(drafting.generate(prompts, shapes, speculative_config=SpeculativeConfig(Eagle(heads))), expected)
    for item, params, output in zip(prompts, shapes, expected, strict=True):
        assert_same_tokens(drafting.generate(item, params), Outputs([output]))


def test_lossless(drafting: LLM, heads: Path) -> None:
    assert_lossless(config(heads, 2), drafting, num_tokens=400)


@pytest.mark.parametrize(("verification", "choices"), [("rejection", None), ("rejection", [(0,), (1,), (0, 0), (1, 0)]), ("block", None)])
def test_judged_laws(tiny_path: Callable[..., Path], tmp_path: Path, verification: str, choices: list[tuple[int, ...]] | None) -> None:
    """The law of the first tokens is the exact one, by draws."""
    model = enumerable_llm(tiny_path)
    heads = tiny_eagle(model, tmp_path / "heads")
    speculation = SpeculativeConfig(Eagle(heads, 2, choices=choices), 4, verification)
    with LLM(model.model_info.path, kv_cache_memory_bytes=1 << 24, max_model_len=128, speculative_config=speculation) as llm:
        assert_lossless(speculation, llm, num_tokens=150)
    model.close()


def test_trees_follow_the_definition(model: Path, plain: LLM, heads: Path, definition: EagleDefinition) -> None:
    """Siblings are the likeliest tokens behind their parent, and each branch sees its own rows alone."""
    choices = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 0, 0)]
    speculation = SpeculativeConfig(Eagle(heads, choices=choices), len(choices))
    prompts = [prompt(6, 3), prompt(7, 29)]
    with LLM(model, kv_cache_memory_bytes=1 << 24, speculative_config=speculation, **OPTIONS) as llm:
        outputs = llm.generate(prompts, GREEDY, trace=True)
    assert_same_tokens(outputs, plain.generate(prompts, GREEDY))
    count = 0
    for output in outputs:
        whole = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        columns = output.outputs[0].trace.to_dict()
        rows = zip(*(columns[k] for k in ("position", "depth", "token_id", "drafted")), strict=True)
        tried: dict[tuple[int, int], list[int]] = {}
        for position, depth, token, is_drafted in rows:
            if is_drafted:
                tried.setdefault((int(position), int(depth)), []).append(int(token))
        for (position, depth), tokens in tried.items():
            length = position - depth + 1
            ranked, margin = definition.ranked(whole, length, whole[length:position], len(tokens))
            assert tokens == ranked or margin < MARGIN, (position, depth)
            count += len(tokens)
    assert count > 60
