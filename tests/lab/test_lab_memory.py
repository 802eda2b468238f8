"""What processors remember in the lab, and what a single draw honours or refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, SamplingParams, TokenContext, TokenSequence

PROMPT = [1, 2, 3]


def every_second(context: TokenContext, logits: Any) -> None:
    context.state["calls"] = context.state.get("calls", 0) + 1
    if context.state["calls"] % 2 == 0:
        logits[logits.argmax()] = -np.inf


def in_place(context: TokenContext, logits: Any) -> None:
    """Bans all that it saw as the last token, in a list that it changes."""
    seen = context.state.setdefault("seen", [])
    seen.append(int(context.token_ids[-1]))
    logits[seen] = -np.inf


def drawn_by_turns(context: TokenContext, law: Any) -> int:
    """A sampler with a memory: the likeliest token and the one after it, alternately."""
    context.state["turn"] = context.state.get("turn", 0) + 1
    return int(np.argsort(-law, kind="stable")[context.state["turn"] % 2])


HOOKS: dict[str, dict[str, Any]] = {
    "a number": {"temperature": 0.0, "logits_processors": [every_second]},
    "a list": {"temperature": 0.9, "logits_processors": [in_place]},
    "a sampler": {"sampler": drawn_by_turns, "logits_processors": [every_second]},
}


def look(sequence: TokenSequence, params: SamplingParams, token: int) -> None:
    assert np.array_equal(sequence.probs(params), sequence.probs(params))


def draw_again(sequence: TokenSequence, params: SamplingParams, token: int) -> None:
    assert sequence.sample(params) == token


def roll_back(sequence: TokenSequence, params: SamplingParams, token: int) -> None:
    sequence.extend([token])
    sequence.rollback(1)
    assert sequence.sample(params) == token


def roll_far_back(sequence: TokenSequence, params: SamplingParams, token: int) -> None:
    """To the beginning, and the same way once more."""
    drawn = sequence.token_ids[3:].tolist()
    sequence.rollback(len(drawn))
    for known in drawn:
        assert sequence.sample(params) == known
        sequence.extend([known])
    assert sequence.sample(params) == token


def synchronise(sequence: TokenSequence, params: SamplingParams, token: int) -> None:
    """With a text that leaves the sequence's own in its last token, and back."""
    if len(sequence) == 3:
        return
    ids = sequence.token_ids.tolist()
    sequence.sync([*ids[:-1], (ids[-1] + 1) % 250])
    sequence.sync(ids[:-1])
    assert sequence.sample(params) == ids[-1]
    sequence.extend(ids[-1:])
    assert sequence.sample(params) == token


def fork(sequence: TokenSequence, params: SamplingParams, token: int) -> None:
    """A fork goes its own way from the same memory."""
    with sequence.fork(same_noise=True) as other:
        assert other.sample(params) == token
        for _ in range(3):
            other.extend([other.sample(params)])
    assert sequence.sample(params) == token


@pytest.mark.parametrize("between", [look, draw_again, roll_back, roll_far_back, synchronise, fork])
@pytest.mark.parametrize("hooks", HOOKS)
def test_memory_moves_with_the_tokens(tiny: LLM, hooks: str, between: Callable[..., None]) -> None:
    """Whatever is done between two tokens, they are those of generate, where each position is seen once."""
    params = SamplingParams(max_tokens=7, ignore_eos=True, **HOOKS[hooks])
    expected = tiny.generate([PROMPT], params.replace(seed=4))[0].token_ids
    plain = tiny.generate([PROMPT], params.replace(seed=4, logits_processors=[], sampler=None))[0].token_ids
    assert expected != plain, "the hooks count"
    sequence = tiny.sequence(PROMPT, seed=4)
    for _ in range(7):
        token = sequence.sample(params)
        between(sequence, params, token)
        sequence.extend([token])
    assert sequence.token_ids[3:].tolist() == expected


def test_a_token_that_was_not_drawn_moves_no_memory(tiny: LLM) -> None:
    params = SamplingParams(temperature=0.0, logits_processors=[every_second])
    sequence, never_asked = tiny.sequence(PROMPT), tiny.sequence(PROMPT)
    other = (sequence.sample(params) + 1) % 250
    for each in (sequence, never_asked):
        each.extend([other])
    assert sequence.sample(params) == never_asked.sample(params)


def test_a_state_that_cannot_be_copied(tiny: LLM) -> None:
    def holds(context: TokenContext, logits: Any) -> None:
        context.state["later"] = (number for number in range(3))

    params = SamplingParams(temperature=0.0, logits_processors=[holds])
    sequence = tiny.sequence(PROMPT)
    sequence.extend([sequence.sample(params)])
    with pytest.raises(llmi.HookError, match=r"context\.state cannot be copied"):
        sequence.sample(params)


def test_the_key_constraint_is_the_users_own(tiny: LLM) -> None:
    """Where a sequence stands in its constraint is not kept in context.state."""
    seen = []

    def processor(context: TokenContext, logits: Any) -> None:
        seen.append(context.state.get("constraint"))
        context.state["constraint"] = "mine"

    params = SamplingParams(temperature=0.0, logits_processors=[processor], structured_outputs={"regex": "[ab]+"})
    sequence = tiny.sequence(PROMPT)
    for _ in range(3):
        sequence.extend([sequence.sample(params)])
    assert seen == [None, "mine", "mine"]


def test_two_constraints_by_turns(tiny: LLM) -> None:
    """Each look keeps to its own parameters' constraint, whichever was looked at before."""
    letters, digits = (SamplingParams(structured_outputs={"regex": regex}) for regex in ("[a-f]{9}", "[a-f]{2}[0-9]{7}"))
    sequence = tiny.sequence(PROMPT, seed=1)
    for _ in range(2):
        sequence.extend([sequence.sample(letters)])
    allowed = {}
    for name, params in (("letters", letters), ("digits", digits), ("letters again", letters)):
        tokens = np.flatnonzero(sequence.probs(params)).tolist()
        allowed[name] = "".join(tiny.tokenizer.decode([token]) for token in tokens)
    assert allowed["letters"].isalpha() and allowed["digits"].isdigit() and allowed["letters again"] == allowed["letters"]


def test_a_seed_of_the_parameters_counts(tiny: LLM) -> None:
    """It is that of generate, at the sequence's place; without one the sequence's own is used."""
    params = SamplingParams(temperature=1.0, max_tokens=5, ignore_eos=True)
    for seed in range(5):
        sequence = tiny.sequence(PROMPT, seed=99)
        for _ in range(5):
            sequence.extend([sequence.sample(params.replace(seed=seed))])
        assert sequence.token_ids[3:].tolist() == tiny.generate([PROMPT], params.replace(seed=seed))[0].token_ids
    sequence = tiny.sequence(PROMPT, seed=99)
    assert len({sequence.sample(params.replace(seed=seed)) for seed in range(20)}) > 3
    assert len({sequence.sample(params) for _ in range(20)}) == 1
    coins = SamplingParams(xtc_probability=0.5, xtc_threshold=0.0)
    assert len({tiny.sequence(PROMPT, seed=99).probs(coins.replace(seed=seed)).tobytes() for seed in range(20)}) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 4), ("stop", ["x"]), ("stopping_criteria", [lambda context: False])],
)
def test_what_one_draw_cannot_honour_is_refused(tiny: LLM, name: str, value: Any) -> None:
    """The law itself has no place for these, so that probs takes them."""
    params = SamplingParams(**{name: value})
    sequence = tiny.sequence(PROMPT)
    with pytest.raises(llmi.UnsupportedCombinationError) as error:
        sequence.sample(params)
    assert error.value.parameter == name
    assert np.array_equal(sequence.probs(params), sequence.probs(SamplingParams()))
    sequence.sample(SamplingParams(max_tokens=1, stop_token_ids=[5], min_tokens=1, detokenize=False, logprobs=2, prompt_logprobs=1))


def test_a_look_at_the_law_draws_nothing(tiny: LLM) -> None:
    """A custom sampler is not called, and has no part in the law; at temperature 0 the law is a point of its own."""
    calls = []

    def sampler(context: TokenContext, law: Any) -> int:
        calls.append(len(context.token_ids))
        return 7

    for temperature in (0.0, 1.0):
        sequence, params = tiny.sequence(PROMPT), SamplingParams(temperature=temperature)
        assert np.array_equal(sequence.probs(params.replace(sampler=sampler)), sequence.probs(params))
        assert calls == [] and sequence.sample(params.replace(sampler=sampler)) == 7
        calls.clear()
