"""Tokens that were answered already, as a draft: a request that goes on elsewhere draws what it would have drawn, at the speed of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, RequestOutput
from llmi.requests.prepare import CallOptions
from llmi.testing import tiny_model

PROMPT = {"prompt_token_ids": [5, 9, 2, 9, 2, 7]}
LENGTH = 700
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.9, "logprobs": 2, "prompt_logprobs": 1},
    "mirostat": {"mirostat": 2, "logprobs": 0},
    "penalties": {"presence_penalty": 0.5, "repetition_penalty": 1.2, "dry_multiplier": 0.8},
    "guidance": {"guidance_scale": 1.5, "negative_prompt": [7, 7]},
    "several": {"n": 3, "logprobs": 1},
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("known")
    with LLM(tiny_model(vocab_size=257, path=path, max_position_embeddings=2048), kv_cache_memory_bytes=1 << 25) as made:
        yield made


def go_on(llm: LLM, known: list[list[int]] | None, **params: Any) -> tuple[RequestOutput, int]:
    """The output of a request that carries these tokens, and the steps that it took."""
    before = llm.get_metrics()["num_steps"]
    given = {"max_tokens": LENGTH, "seed": 11, "ignore_eos": True, **params}
    output = llm._finish(llm._call(PROMPT, None, given, CallOptions(recorded=known)), False)[0]
    return output, int(llm.get_metrics()["num_steps"] - before)


@pytest.mark.parametrize("name", KINDS)
def test_a_request_goes_on_behind_its_tokens(llm: LLM, name: str) -> None:
    """600 tokens are a draft in pieces of at most 256; what follows is drawn one by one."""
    whole, _ = go_on(llm, None, **KINDS[name])
    known = [completion.token_ids[:600] for completion in whole.outputs]
    again, steps = go_on(llm, known, **KINDS[name])
    assert again == whole
    assert 100 <= steps <= 108, "600 tokens in few steps, 100 in one each"


def test_continuations_of_different_lengths(llm: LLM) -> None:
    whole, _ = go_on(llm, None, n=3, max_tokens=60)
    known = [whole.outputs[0].token_ids[:40], [], whole.outputs[2].token_ids]
    assert go_on(llm, known, n=3, max_tokens=60)[0] == whole


@pytest.mark.parametrize("place", [0, 1, 300, 599])
def test_a_wrong_token_costs_time_alone(llm: LLM, place: int) -> None:
    whole, _ = go_on(llm, None)
    known = list(whole.outputs[0].token_ids[:600])
    known[place] = (known[place] + 1) % 256
    again, steps = go_on(llm, [known])
    assert again == whole
    assert steps <= LENGTH - place + 8
    assert go_on(llm, [[*known[:place], 10**6, *known[place:]]])[0] == whole, "an id that the model has not"


def test_a_grammar_goes_on(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    grammar = {"structured_outputs": {"regex": "[a-c]{60}"}, "ignore_eos": False, "max_tokens": 80}
    whole, _ = go_on(llm, None, **grammar)
    again, steps = go_on(llm, [whole.outputs[0].token_ids[:50]], **grammar)
    assert again == whole and steps <= 15


@pytest.mark.parametrize("params", [{"beam_width": 3}, {"penalty_alpha": 0.6, "top_k": 4, "temperature": None}], ids=["beams", "contrast"])
def test_searches_run_again_from_their_start(llm: LLM, params: dict[str, Any]) -> None:
    whole, _ = go_on(llm, None, max_tokens=12, **params)
    assert go_on(llm, [[1, 2, 3]] * (3 if "beam_width" in params else 1), max_tokens=12, **params)[0] == whole


def test_drafts_do_not_change_a_law_that_depends_on_them(tmp_path: Path) -> None:
    """Under rejection the tokens depend on the drafter: its own draft stays."""
    config = {"method": "ngram", "num_speculative_tokens": 3, "verification": "rejection"}
    model = tiny_model(vocab_size=257, path=tmp_path)
    with LLM(model, kv_cache_memory_bytes=1 << 25, speculative_config=config) as llm:
        whole, _ = go_on(llm, None, max_tokens=40)
        assert go_on(llm, [whole.outputs[0].token_ids[:20]], max_tokens=40)[0].outputs[0].token_ids == whole.outputs[0].token_ids
