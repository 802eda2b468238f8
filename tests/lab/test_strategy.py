"""LLM.run keeps what is finished, and errors of a yield reach the strategy that yielded; Generate takes the options of generate."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import llmi
from llmi import LLM, Generate, SamplingParams, TokenSequence

Steps = Generator[Any, Any, Any]
PROMPTS = [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]


def dead_end(sequence: TokenSequence) -> Steps:
    """The third prompt fails, after the two before it have finished."""
    for _ in range(sequence.prompt_len):
        yield {sequence: [sequence.sample()]}
    if sequence.prompt_len == 3:
        raise ValueError("a dead end")
    return len(sequence)


def test_the_others_go_on(tiny: LLM) -> None:
    results = tiny.run(dead_end, PROMPTS, seed=1, on_error="return")
    assert results[:2] == [2, 4] and results[3] == 8 and isinstance(results[2], ValueError)
    with pytest.raises(llmi.StrategyErrors, match=r"prompt 2 of 4 failed: ValueError: a dead end; .*\.results") as error:
        tiny.run(dead_end, PROMPTS, seed=1)
    assert error.value.results == [2, 4, None, 8] and list(error.value.errors) == [2]
    with pytest.raises(ValueError, match=r"^a dead end$"):
        tiny.run(dead_end, PROMPTS[2], seed=1)
    with pytest.raises(llmi.InvalidParamsError, match="on_error"):
        tiny.run(dead_end, PROMPTS, on_error="ignore")  # type: ignore[call-overload]
    caught = []
    try:
        tiny.run(dead_end, PROMPTS, seed=1)
    except* ValueError as group:
        caught = list(group.exceptions)
    assert [str(each) for each in caught] == ["a dead end"]
    assert tiny.get_metrics()["audit"] == ""


def test_a_wrong_prompt_fails_alone(tiny: LLM) -> None:
    results = tiny.run(dead_end, [[1], [10**6], "", [1] * 3000], seed=1, on_error="return")
    assert results[0] == 2
    assert isinstance(results[1], llmi.InvalidParamsError) and "1000000" in str(results[1])
    assert isinstance(results[3], llmi.LlmiError)


def catching(sequence: TokenSequence, step: Callable[[TokenSequence], Any], tokens: int = 2) -> Steps:
    """Yields what fails for prompts of three tokens, and goes on; what the others draw is untouched by that."""
    caught = None
    for _ in range(tokens):
        yield {sequence: [sequence.sample()]}
    try:
        yield step(sequence) if sequence.prompt_len == 3 else {sequence: [7]}
    except llmi.LlmiError as error:
        caught = error
    yield {sequence: [sequence.sample()]}
    return caught, sequence.token_ids.tolist()


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (lambda sequence: {sequence: [10**6]}, "1000000"),
        (lambda sequence: {sequence: [1] * 5000}, "max_model_len"),
        (lambda sequence: {7: [1]}, "no TokenSequence"),
        (lambda sequence: Generate([[10**6]], max_tokens=1), "1000000"),
        (lambda sequence: Generate([sequence], temperature=-1), "temperature"),
        (lambda sequence: Generate([sequence], no_such=1), "no_such"),
        (lambda sequence: Generate([sequence, sequence], [SamplingParams()]), "1 sampling_params for 2 prompts"),
        (lambda sequence: Generate([sequence], max_tokens=3, logits_processors=[fails]), "a hook fails"),
        (lambda sequence: Generate([sequence], max_tokens=3, speculative_config="nobody"), "nobody"),
    ],
)
def test_errors_of_a_yield_reach_the_generator(tiny: LLM, step: Callable[[TokenSequence], Any], what: str) -> None:
    def some(sequence: TokenSequence) -> Steps:
        try:
            return (yield from catching(sequence, step))
        except TypeError as error:  # an unknown parameter, as in generate
            return error, None

    results = tiny.run(some, PROMPTS, seed=5)
    plain = tiny.run(lambda sequence: catching(sequence, lambda each: {each: [7]}), PROMPTS, seed=5)
    for index in (0, 1, 3):
        assert results[index] == plain[index]
    assert what in str(results[2][0])
    if results[2][1] is not None:
        assert results[2][1] == [*plain[2][1][:-2], results[2][1][-1]], "what failed appended nothing"
    assert tiny.get_metrics()["audit"] == ""


def fails(context: Any, logits: Any) -> None:
    raise RuntimeError("a hook fails")


def test_two_prompts_that_extend_one_sequence(tiny: LLM) -> None:
    with tiny.sequence([9]) as shared:

        def strategy(sequence: TokenSequence) -> Steps:
            try:
                yield {shared: [1]}
            except llmi.InvalidParamsError as error:
                return str(error)
            return "extended"

        assert tiny.run(strategy, [[1], [2]], seed=1) == ["extended", "two prompts of a strategy extend the same sequence"]
        assert shared.token_ids.tolist() == [9, 1]


def test_an_extension_over_two_models_is_whole_or_nothing(tiny: LLM, tiny_path: Callable[..., Path]) -> None:
    """What one model has appended is taken back where the other refuses; the draws that it remembers stay."""
    params = SamplingParams(mirostat=2, mirostat_tau=1.0, mirostat_eta=1.0)
    with LLM(tiny_path(seed=3), kv_cache_memory_bytes=1 << 22) as other:
        sequence, second = tiny.sequence([1, 2], seed=3), other.sequence([1, 2])
        for _ in range(3):
            sequence.extend([sequence.sample(params)])
        law, token = sequence.probs(params), sequence.sample(params)
        for bad in ([10**6], [1] * 5000):
            with pytest.raises(llmi.LlmiError):
                llmi.extend({sequence: [token], second: bad})
            with pytest.raises(llmi.LlmiError):
                llmi.extend({sequence: llmi.TokenTree([token, 5], [-1, -1]), second: bad})
        assert len(sequence) == 5 and len(second) == 2 and (sequence.probs(params) == law).all()
        llmi.extend({sequence: [token], second: []})
        fresh = tiny.sequence([1, 2], seed=3)
        for _ in range(4):
            fresh.extend([fresh.sample(params)])
        assert (fresh.probs(params) == sequence.probs(params)).all()


def test_an_interrupt_keeps_what_is_finished(tiny: LLM) -> None:
    def strategy(sequence: TokenSequence) -> Steps:
        if sequence.prompt_len < 3:
            return sequence.prompt_len
        yield {sequence: [1]}
        signal.raise_signal(signal.SIGINT)
        yield {sequence: [1]}

    with pytest.raises(llmi.StrategyInterrupted, match="2 of 4 prompts") as error:
        tiny.run(strategy, PROMPTS)
    assert error.value.results == [1, 2, None, None] and error.value.finished == {0, 1} and error.value.outputs == []
    assert isinstance(error.value, llmi.GenerationInterrupted)

    def generates(sequence: TokenSequence) -> Steps:
        if sequence.prompt_len < 3:
            return sequence.prompt_len
        yield Generate([sequence], max_tokens=50, ignore_eos=True, stopping_criteria=[interrupts])

    with pytest.raises(llmi.StrategyInterrupted) as error:
        tiny.run(generates, PROMPTS)
    assert error.value.finished == {0, 1} and len(error.value.outputs) == 2
    assert tiny.generate([[1]], max_tokens=2, ignore_eos=True)[0].token_ids, "the engine goes on"


def interrupts(context: llmi.TokenContext) -> bool:
    if len(context.token_ids) == 10:
        signal.raise_signal(signal.SIGINT)
    return False


# --- Generate


def test_generate_takes_the_options_of_generate(tiny: LLM) -> None:
    """In one batch, each with its own options; tokens are those of the same requests without them."""
    copies = [5, 6, 7] * 5
    options: dict[int, dict[str, Any]] = {
        1: {"speculative_config": llmi.SpeculativeConfig(llmi.PromptLookup(), 4)},
        2: {"trace": True},
        3: {"priority": 3, "on_error": "return", "use_tqdm": False},
        4: {"speculative_config": [None, llmi.PromptLookup()], "priority": [1, 2]},
    }

    def strategy(sequence: TokenSequence, with_options: bool) -> Steps:
        chosen = options[sequence.prompt_len] if with_options else {}
        prompts = [sequence, copies][: 2 if sequence.prompt_len == 4 else 1]
        return (yield Generate([copies, *prompts][-len(prompts) :], max_tokens=12, temperature=0.2, ignore_eos=True, **chosen))

    got, plain = (tiny.run(strategy, PROMPTS, seed=2, with_options=flag) for flag in (True, False))
    assert got == plain
    assert got[1][0].outputs[0].trace is not None and got[0][0].outputs[0].trace is None
    assert got[3][0].outputs[0].spec_decode_metrics is None and got[3][1].outputs[0].spec_decode_metrics is not None


def test_generate_with_parameters_for_each_prompt(tiny: LLM) -> None:
    def strategy(sequence: TokenSequence) -> Steps:
        return (yield Generate([sequence, sequence, [9]], [SamplingParams(max_tokens=1 + i, ignore_eos=True, seed=i) for i in range(3)]))

    [outputs] = tiny.run(strategy, [[1, 2]])
    assert [out.token_ids for out in outputs] == [
        tiny.generate([prompt], max_tokens=1 + i, ignore_eos=True, seed=i)[0].token_ids for i, prompt in enumerate([[1, 2], [1, 2], [9]])
    ]


def test_generate_returns_or_raises_what_failed(tiny: LLM) -> None:
    def strategy(sequence: TokenSequence, on_error: str) -> Steps:
        try:
            outputs = yield Generate([[10**6], sequence], max_tokens=2, ignore_eos=True, on_error=on_error)
        except llmi.RequestErrors as error:
            return "raised", [len(out.token_ids) for out in error.outputs]
        return "returned", [len(out.token_ids) for out in outputs]

    for on_error, name in (("raise", "raised"), ("return", "returned")):
        assert tiny.run(lambda sequence, way=on_error: strategy(sequence, way), [[1]]) == [(name, [0, 2])]


def test_a_special_token_by_name(tiny: LLM) -> None:
    """parse_special is that of each Generate."""
    text = tiny.tokenizer.decode([min(tiny.tokenizer.eos_token_ids)], skip_special_tokens=False)

    def strategy(sequence: TokenSequence, special: bool) -> Steps:
        [output] = yield Generate(["a" + text], max_tokens=1, ignore_eos=True, parse_special=special)
        return len(output.prompt_token_ids)

    letters, token = (tiny.run(strategy, [[1]], special=special)[0] for special in (False, True))
    assert token < letters


def test_a_streamer_is_for_one_prompt(tiny: LLM) -> None:
    class Streamer:
        def put(self, value: Any) -> None: ...
        def end(self) -> None: ...

    streamer = Streamer()

    def strategy(sequence: TokenSequence) -> Steps:
        return (yield Generate([sequence], max_tokens=2, stopping_criteria=[streamer]))

    results = tiny.run(strategy, [[1], [2]], on_error="return")
    assert all(isinstance(each, llmi.UnsupportedCombinationError) for each in results)
