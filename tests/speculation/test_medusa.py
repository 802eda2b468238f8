"""Medusa: the drafts that its definition names, whatever ran before, beside or instead; and tokens that do not depend on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from features import crowded_llm, enumerable_llm
from llmi import LLM, Eagle, Medusa, Outputs, PromptLookup, SamplingParams, SpeculativeConfig
from llmi.testing import assert_lossless, assert_same_tokens
from medusa_float64 import MedusaDefinition
from test_eagle import GREEDY, MARGIN, OPTIONS, SAMPLED, check_under_pressure, prompt
from tiny_eagle import tiny_eagle
from tiny_medusa import tiny_medusa

CHAIN = [(0,), (0, 0), (0, 0, 0)]
TREE = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0), (1, 0, 1)]
#: Architecture and size of the model, and the form of the heads: matrices over the vocabulary of their own, of all tokens or of a
#: shortlist, or the model's own head, or its rows of a shortlist.
SHAPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "own": ("llama", {}, {}),
    "own-listed": ("gemma3", {"num_layers": 4}, {"shortlist": [3 * i for i in range(20)] + [1, 2], "num_layers": 2}),
    "shared": ("gemma3", {"num_layers": 4}, {"has_vocabularies": False}),
    "shared-listed": ("llama", {}, {"has_vocabularies": False, "shortlist": list(range(0, 64, 2))}),
}
LONG = prompt(70, 52)  # three blocks of 16 and a part


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(shape: str, tiny_path: Callable[..., Path]) -> Path:
    return tiny_path(SHAPES[shape][0], vocab_size=64, **SHAPES[shape][1])


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 24, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def heads(plain: LLM, shape: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_medusa(plain, tmp_path_factory.mktemp("heads"), **SHAPES[shape][2])


@pytest.fixture(scope="module")
def drafting(model: Path, heads: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 24, speculative_config=config(heads), **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def definition(plain: LLM, heads: Path) -> MedusaDefinition:
    return MedusaDefinition(plain, heads)


def config(heads: Path, choices: list[tuple[int, ...]] = TREE, verification: str = "coupled") -> SpeculativeConfig:
    return SpeculativeConfig(Medusa(heads, choices=choices), len(choices), verification)


def drafted(outputs: Outputs, index: int = 0) -> list[dict[tuple[int, int], list[int]]]:
    """For each output {(position, depth): tokens}: the drafted tokens that the walks have tried, in order."""
    found = []
    for output in outputs:
        tried: dict[tuple[int, int], list[int]] = {}
        columns = output.outputs[index].trace.to_dict()
        for position, depth, token, is_drafted in zip(*(columns[k] for k in ("position", "depth", "token_id", "drafted")), strict=True):
            if is_drafted:
                tried.setdefault((int(position), int(depth)), []).append(int(token))
        found.append(tried)
    return found


def check_drafts(definition: MedusaDefinition, outputs: Outputs) -> int:
    """Each drafted token is the definition's. Returns their number."""
    count = 0
    for output, tried in zip(outputs, drafted(outputs), strict=True):
        whole = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        for (position, depth), tokens in tried.items():
            ranked, margin = definition.ranked(whole, position - depth + 1, depth, len(tokens))
            assert tokens == ranked or margin < MARGIN, (position, depth)
            count += len(tokens)
    return count


@pytest.mark.parametrize("choices", [CHAIN, TREE], ids=["chain", "tree"])
def test_drafts_follow_the_definition(
    drafting: LLM, plain: LLM, heads: Path, definition: MedusaDefinition, choices: list[tuple[int, ...]], shape: str
) -> None:
    prompts = [prompt(1, 1), prompt(2, 2), prompt(3, 17), prompt(4, 33), prompt(5, 48)]
    params = GREEDY.replace(max_tokens=40)
    outputs = drafting.generate(prompts, params, trace=True, speculative_config=config(heads, choices))
    assert_same_tokens(outputs, plain.generate(prompts, params))
    assert check_drafts(definition, outputs) >= 100
    metrics = [output.outputs[0].spec_decode_metrics for output in outputs]
    if shape.startswith("own"):  # the others are random
        assert sum(m.num_accepted_tokens for m in metrics) >= 10, "too few accepted tokens to have tested the rows of nodes"


def test_tokens_are_those_without_a_drafter(drafting: LLM, plain: LLM, heads: Path) -> None:
    shapes = [
        GREEDY,
        SAMPLED,
        SAMPLED.replace(n=3),
        GREEDY.replace(repetition_penalty=1.3),
        SAMPLED.replace(logprobs=2, top_k=8, min_p=0.02),
        SAMPLED.replace(dry_multiplier=0.8, logit_bias={3: 2.0}),
    ]
    prompts = [prompt(20 + i, 3 + 9 * i) for i in range(len(shapes))]
    expected = plain.generate(prompts, shapes)
    for speculation in (config(heads), SpeculativeConfig(Medusa(heads)), SpeculativeConfig([Medusa(heads), PromptLookup()])):
        assert_same_tokens(drafting.generate(prompts, shapes, speculative_config=speculation), expected)
    for item, params, output in zip(prompts, shapes, expected, strict=True):
        assert_same_tokens(drafting.generate(item, params), Outputs([output]))


def test_lossless(drafting: LLM, heads: Path) -> None:
    assert_lossless(config(heads), drafting, num_tokens=400)


@pytest.mark.parametrize(("verification", "choices"), [("rejection", CHAIN), ("rejection", TREE), ("block", TREE)])
def test_judged_laws(tiny_path: Callable[..., Path], tmp_path: Path, verification: str, choices: list[tuple[int, ...]]) -> None:
    """The law of the first tokens is the exact one, by draws. "block" takes the likeliest node of each depth."""
    model = enumerable_llm(tiny_path)
    speculation = config(tiny_medusa(model, tmp_path / "heads"), choices, verification)
    with LLM(model.model_info.path, kv_cache_memory_bytes=1 << 24, max_model_len=128, speculative_config=speculation) as llm:
        assert_lossless(speculation, llm, num_tokens=150)
        assert_lossless(speculation, llm, num_tokens=60, sampling_params=[SamplingParams(repetition_penalty=1.4)])
        metrics = llm.generate([1, 2, 3], SAMPLED)[0].outputs[0].spec_decode_metrics
        size = 3 if verification == "block" else len(choices)
        assert metrics is not None and metrics.num_draft_tokens >= (metrics.num_drafts - 2) * size > 0  # the last ones are cut
    model.close()


def test_typical_acceptance(drafting: LLM, plain: LLM, heads: Path) -> None:
    """At temperature 0 a token is typical if it is the likeliest: the tokens of plain decoding; else it may change the law."""
    prompts = [prompt(30 + i, 12) for i in range(4)]
    greedy = drafting.generate(prompts, GREEDY, speculative_config=config(heads, TREE, "typical"))
    assert_same_tokens(greedy, plain.generate(prompts, GREEDY))
    sampled = drafting.generate(prompts, SAMPLED, speculative_config=config(heads, TREE, "typical"))
    metrics = [output.outputs[0].spec_decode_metrics for output in sampled]
    assert all(m.verification == "Typical" and not m.lossless and m.num_drafts > 0 for m in metrics)
    assert sum(m.num_accepted_tokens for m in metrics) > 0


@pytest.mark.parametrize("verification", ["coupled", "rejection", "block", "typical"])
def test_drafts_depend_on_the_request_alone(model: Path, heads: Path, verification: str) -> None:
    """Alone, after others, beside others, after a hit that was made without a drafter, after preemption."""
    judged = config(heads, TREE, verification)
    text, params = [*LONG, *prompt(73, 5)], SAMPLED.replace(max_tokens=30)

    def run(llm: LLM, *others: list[int]) -> tuple[Any, Any]:
        outputs = llm.generate([text, *others], params, trace=True, speculative_config=judged)
        return outputs[0].outputs[0].token_ids, drafted(Outputs([outputs[0]]))

    with LLM(model, kv_cache_memory_bytes=1 << 24, speculative_config=judged, **OPTIONS) as llm:
        alone = run(llm)
        assert run(llm) == alone  # all of it known
        llm.reset_prefix_cache()
        llm.generate([text, [*LONG, 1, 2]], params, speculative_config=None)
        hit = llm.generate(text, params, trace=True, speculative_config=judged)
        assert hit[0].num_cached_tokens >= 48
        assert (hit[0].outputs[0].token_ids, drafted(hit)) == alone
        assert run(llm, [*LONG, *prompt(74, 5)], prompt(75, 9), text) == alone
    if verification == "coupled":
        return  # drafts take the rows and blocks that are left
    with crowded_llm(model, 24, max_model_len=110, max_num_batched_tokens=24, speculative_config=judged, dtype="float32") as crowded:
        for _ in range(3):
            assert run(crowded, *(prompt(80 + i, 40) for i in range(6))) == alone
        assert crowded.get_metrics()["num_preemptions"] > 0


def test_under_pressure(model: Path, plain: LLM, heads: Path, definition: MedusaDefinition) -> None:
    """Each draft is still the definition's."""
    check_under_pressure(model, plain, config(heads), lambda outputs: check_drafts(definition, outputs))


def test_samples_begin_with_the_prompts_row(drafting: LLM, plain: LLM, definition: MedusaDefinition) -> None:
    """The first draft of each sample reads the prompt's last row."""
    params = SAMPLED.replace(n=3, max_tokens=6, temperature=0.01, top_p=1.0)
    output = drafting.generate(prompt(40, 9), params, trace=True)
    assert_same_tokens(output, plain.generate(prompt(40, 9), params))
    for index in range(3):
        whole = [*output[0].prompt_token_ids, *output[0].outputs[index].token_ids]
        tokens = drafted(output, index)[0][10, 1]
        ranked, margin = definition.ranked(whole, 10, 1, 1)
        assert tokens[:1] == ranked or margin < 0.1  # nearly greedy


def test_beside_an_eagle_layer(model: Path, plain: LLM, heads: Path, tmp_path: Path) -> None:
    layer = tiny_eagle(plain, tmp_path / "layer")
    prompts = [prompt(50 + i, 4 + 11 * i) for i in range(3)]
    with LLM(model, kv_cache_memory_bytes=1 << 24, speculative_config=[Eagle(layer), Medusa(heads)], **OPTIONS) as llm:
        expected = plain.generate(prompts, GREEDY)
        for speculation in ("engine", SpeculativeConfig([Medusa(heads), Eagle(layer)], 6), Medusa(heads), Eagle(layer), None):
            assert_same_tokens(llm.generate(prompts, GREEDY, speculative_config=speculation), expected)


def test_it_is_counted(drafting: LLM, plain: LLM, heads: Path) -> None:
    """Heads keep nothing in the cache, and their weights are in the report."""
    assert drafting.model_info.kv_bytes_per_token == plain.model_info.kv_bytes_per_token
    matrices = 3 * 64 * 64 * 4  # three heads, one block each at least
    assert drafting.memory_report().drafter_bytes >= matrices > 0 == plain.memory_report().drafter_bytes


@pytest.mark.skipif(os.environ.get("LLMI_EMULATE_CUDA") == "0", reason="switched off")
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_on_a_device(model: Path, heads: Path, definition: MedusaDefinition, monkeypatch: pytest.MonkeyPatch, verification: str) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    speculation = config(heads, TREE, verification)
    with LLM(model, device="cuda", kv_cache_memory_bytes=1 << 22, speculative_config=speculation, **OPTIONS) as emulated:
        prompts = [prompt(60, 20), [*LONG, 1, 2]]
        outputs = emulated.generate(prompts, GREEDY, trace=True)
        assert_same_tokens(outputs, emulated.generate(prompts, GREEDY, speculative_config=None))
        assert check_drafts(definition, outputs) > 5
        on_device = emulated.generate(prompts, SAMPLED, trace=True)
    with LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=speculation, **OPTIONS) as host:
        assert_same_tokens(on_device, host.generate(prompts, SAMPLED))
