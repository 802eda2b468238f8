"""repetition_detection and logprob_token_ids, under vLLM's names and with its meaning."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmi import LLM, InvalidParamsError, PromptLookup, RequestOutput, SamplingParams


def repeats(ids: list[int], least: int, most: int, count: int) -> bool:
    """Whether the last tokens are `count` times one pattern: the definition, in words."""
    return any(len(ids) >= size * count and ids[-size * count :] == ids[-size:] * count for size in range(least, most + 1))


def spelled(tiny: LLM, ids: list[int], **params: Any) -> RequestOutput:
    """An output that is driven to these tokens."""

    def choose(context: Any, logits: Any) -> None:
        place = len(context.token_ids) - context.prompt_len
        logits[ids[place]] = 1e4

    return tiny.generate([1, 2], max_tokens=len(ids), temperature=0, ignore_eos=True, logits_processors=[choose], **params)[0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=24), st.integers(1, 4), st.integers(0, 3), st.integers(2, 4))
def test_the_first_repetition_ends_the_output(tiny: LLM, ids: list[int], least: int, more: int, count: int) -> None:
    most = least + more
    asked = {"max_pattern_size": most, "min_pattern_size": least, "min_count": count}
    output = spelled(tiny, ids, repetition_detection=asked).outputs[0]
    end = next((end for end in range(1, len(ids) + 1) if repeats(ids[:end], least, most, count)), None)
    assert output.token_ids == ids[:end]
    assert (output.finish_reason, output.stop_reason) == (("length", None) if end is None else ("stop", "repetition_detected"))


def test_not_before_min_tokens_and_in_any_company(tiny: LLM) -> None:
    asked = {"max_pattern_size": 1, "min_count": 3}
    assert spelled(tiny, [7] * 9, repetition_detection=asked, min_tokens=6).outputs[0].token_ids == [7] * 6
    params: dict[str, Any] = {
        "max_tokens": 40,
        "ignore_eos": True,
        "allowed_token_ids": [3, 4],
        "seed": 2,
        "n": 3,
        "repetition_detection": {"max_pattern_size": 4, "min_count": 3},
    }
    plain = tiny.generate([1, 2], **params)[0]
    assert {completion.stop_reason for completion in plain.outputs} == {"repetition_detected"}
    assert tiny.generate([1, 2], **params, speculative_config=PromptLookup())[0] == plain
    assert plain.receipt().verify(tiny)
    for completion in plain.outputs:
        assert repeats(completion.token_ids, 1, 4, 3) and not any(
            repeats(completion.token_ids[:end], 1, 4, 3) for end in range(len(completion.token_ids))
        )
    beams = tiny.generate(
        [1, 2],
        beam_width=3,
        max_tokens=40,
        ignore_eos=True,
        allowed_token_ids=[3, 4],
        repetition_detection={"max_pattern_size": 4, "min_count": 3},
    )[0]
    assert all(len(completion.token_ids) < 40 for completion in beams.outputs)


def test_repetition_takes_vllms_object_and_refuses_by_name() -> None:
    def settled(value: Any) -> Any:
        params = SamplingParams(repetition_detection=value)
        params._settle()
        return params.repetition_detection

    whole = {"max_pattern_size": 5, "min_pattern_size": 1, "min_count": 3}
    assert settled({"max_pattern_size": 5, "min_count": 3}) == settled(types.SimpleNamespace(**{**whole, "min_pattern_size": 0})) == whole
    assert settled({"max_pattern_size": 0, "min_pattern_size": 0, "min_count": 0}) is None is settled(None) is settled({})
    for value, why in (
        ({"max_pattern_size": 5}, "min_count = 0"),
        ({"max_pattern_size": 5, "min_count": 1}, "min_count = 1"),
        ({"min_count": 3}, "need max_pattern_size"),
        ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 3}, "min_pattern_size = 3 exceeds"),
        ({"max_pattern_size": 60_000, "min_count": 3}, "180,000 tokens would be read"),
        ({"max_pattern_size": -1, "min_count": 3}, "max_pattern_size must be"),
        ({"max_patern_size": 5}, "has 'max_patern_size'"),
        (5, "must be a mapping"),
        ({"max_pattern_size": 1.5, "min_count": 3}, "max_pattern_size must be"),
    ):
        with pytest.raises(InvalidParamsError, match=rf"^repetition_detection.*{why}"):
            settled(value)


@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_given_ids_have_their_log_probabilities(tiny: LLM, logprobs: int | None) -> None:
    """Their values and ranks are those of the whole vocabulary's, next to what `logprobs` asks for."""
    args: dict[str, Any] = {"max_tokens": 5, "seed": 3, "temperature": 0.8, "top_p": 0.9, "ignore_eos": True}
    asked = [0, 255, 17, 17, 3]
    whole = tiny.generate([1, 2], **args, logprobs=-1)[0].outputs[0]
    output = tiny.generate([1, 2], **args, logprobs=logprobs, logprob_token_ids=asked)[0]
    found = output.outputs[0]
    assert found.token_ids == whole.token_ids and found.logprobs is not None and whole.logprobs is not None
    for token, here, there in zip(found.token_ids, found.logprobs, whole.logprobs, strict=True):
        likeliest = sorted(there, key=lambda other: there[other].rank)[: logprobs or 0]
        assert list(here) == list(dict.fromkeys([token, *likeliest, *asked]))
        assert all(here[other] == there[other] for other in here)
    assert output.receipt().verify(tiny)
    assert tiny.generate([1, 2], **args, logprobs=logprobs, token_ids_logprob=asked)[0] == output, "SGLang's name"
    drafted = tiny.generate([1, 2], **args, logprobs=logprobs, logprob_token_ids=np.array(asked), speculative_config=PromptLookup())[0]
    assert drafted == output


def test_given_ids_of_beams(tiny: LLM) -> None:
    args: dict[str, Any] = {"beam_width": 2, "max_tokens": 4, "ignore_eos": True}
    whole = tiny.generate([1, 2], **args, logprobs=-1)[0].outputs[0].logprobs
    found = tiny.generate([1, 2], **args, logprob_token_ids=[9, 8])[0].outputs[0].logprobs
    assert whole is not None and found is not None
    for here, there in zip(found, whole, strict=True):
        assert {8, 9} <= {*here} and all(here[token] == there[token] for token in here)


def test_ids_beyond_the_vocabulary(tiny: LLM) -> None:
    with pytest.raises(InvalidParamsError, match=r"logprob_token_ids.*outside \[0, "):
        tiny.generate([1, 2], logprob_token_ids=[10_000])
    for value in (["a"], [-1], [1.5], 5, [0] * 10_001):
        with pytest.raises(InvalidParamsError, match="logprob_token_ids"):
            tiny.generate([1, 2], logprob_token_ids=value)
    assert tiny.generate([1, 2], max_tokens=1, logprob_token_ids=[])[0].outputs[0].logprobs is None
