"""Constraints: outputs follow the automaton, beside everything else."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, Constraint, SamplingParams
from llmi.testing import assert_lossless


class Pattern(Constraint[str]):
    """Texts whose letters fit a pattern: d a digit, else the letter itself."""

    def __init__(self, tokenizer: llmi.Tokenizer, pattern: str = "dddd-dd-dd") -> None:
        self.words = [b.decode("utf8", "replace") for b in tokenizer.vocab_bytes]
        self.pattern = pattern
        self.calls = 0

    def initial_state(self) -> str:
        return ""

    def fits(self, text: str) -> bool:
        return len(text) <= len(self.pattern) and all(c.isdigit() if p == "d" else c == p for c, p in zip(text, self.pattern, strict=False))

    def allowed(self, state: str) -> Any:
        self.calls += 1
        return [i for i, word in enumerate(self.words) if word and self.fits(state + word)]

    def advance(self, state: str, token_id: int) -> str:
        return state + self.words[token_id]

    def is_final(self, state: str) -> bool:
        return len(state) == len(self.pattern)


def test_dates_on_a_real_model(smollm: LLM) -> None:
    dates = Pattern(smollm.tokenizer)
    params = SamplingParams(n=4, temperature=1.0, seed=1, structured_outputs=dates)
    prompts = ["The war ended on ", "Born on "]
    plain = smollm.generate(prompts, params)
    for out in plain:
        for completion in out.outputs:
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", completion.text) and completion.finish_reason == "stop"
    assert smollm.generate(prompts, params, speculative_config=llmi.PromptLookup()) == plain


def test_states_are_remembered_and_end_of_text_waits(tiny: LLM) -> None:
    digits = Pattern(tiny.tokenizer, "d" * 6)
    outs = tiny.generate([[1], [2], [3]], seed=2, n=3, structured_outputs=digits, logprobs=-1)
    for out in outs:
        for completion in out.outputs:
            assert re.fullmatch(r"\d{6}", completion.text) and completion.token_ids[-1] == 0
            assert completion.logprobs is not None
            for entries in completion.logprobs[:-1]:
                assert np.isneginf(entries[0].processed_logprob), "end-of-text before the end"
    assert digits.calls <= 1 + 9 * 6 + 9


def test_with_speculation_and_penalties(tiny: LLM) -> None:
    params = [
        SamplingParams(structured_outputs=Pattern(tiny.tokenizer, "dd-dd-dd-dd-dd"), repetition_penalty=1.3, temperature=t)
        for t in (0.0, 1.0)
    ]
    assert_lossless(llmi.PromptLookup(), tiny, sampling_params=params, num_tokens=500)


class Broken(Constraint[int]):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def initial_state(self) -> int:
        return 0

    def allowed(self, state: int) -> Any:
        return self.answer if state else [5]

    def advance(self, state: int, token_id: int) -> int:
        return state + 1

    def is_final(self, state: int) -> bool:
        return False


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "allows no token"),
        ([300], "outside"),
        (np.ones(3, np.bool_), None),
        (np.ones((2, 2), np.bool_), "shape"),
        ("ab", "Broken raised"),
    ],
)
def test_bad_constraints_end_their_request_alone(tiny: LLM, answer: Any, message: str | None) -> None:
    params = [SamplingParams(max_tokens=3, seed=1), SamplingParams(max_tokens=3, seed=1, structured_outputs=Broken(answer))]
    outs = tiny.generate([[1], [2]], params, on_error="return")
    assert outs[0] == tiny.generate([[1]], params[0])[0]
    if message is None:
        assert outs[1].error is None and set(outs[1].token_ids[1:]) <= {0, 1, 2}
        return
    assert isinstance(outs[1].error, llmi.HookError)
    with pytest.raises(llmi.HookError, match=message):
        raise outs[1].error
    if message == "allows no token":
        assert isinstance(outs[1].error, llmi.ConstraintError)


def test_wrong_type(tiny: LLM) -> None:
    with pytest.raises(llmi.InvalidParamsError, match="must be a Constraint"):
        tiny.generate([1], structured_outputs="json")  # type: ignore[arg-type]
    with pytest.raises(llmi.UnsupportedCombinationError, match="hooks"):
        tiny.generate([[1]], max_tokens=2, structured_outputs=Pattern(tiny.tokenizer, "dd"))[0].receipt()
