"""exact_distribution against draws of the engine for all that has a memory or a coin; what has no one law is refused. The tests of
draws."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import llmi
from features import enumerable_llm
from llmi import LLM, Constraint, SamplingParams, TokenContext
from llmi.testing import assert_lossless, assert_same_distribution, exact_distribution, tiny_model

PROMPT = [1, 2, 3, 1, 2, 3]
FEW = [1, 2, 3, 4]  # 64 outcomes of three tokens


@pytest.fixture(scope="module")
def small() -> Iterator[LLM]:
    with enumerable_llm(tiny_model) as llm:
        yield llm


def draws(llm: LLM, params: SamplingParams, num_tokens: int = 3, runs: int = 64) -> Counter[tuple[int, ...]]:
    """128 samples a run, each run with a seed of its own."""
    each = [params.replace(n=128, seed=seed, max_tokens=num_tokens, ignore_eos=True, detokenize=False) for seed in range(runs)]
    return Counter(tuple(c.token_ids) for out in llm.generate([PROMPT] * runs, each, use_tqdm=False) for c in out.outputs)


def every_second(context: TokenContext, logits: Any) -> None:
    """Bans the likeliest token of each second call."""
    context.state["calls"] = context.state.get("calls", 0) + 1
    if context.state["calls"] % 2 == 0:
        logits[logits.argmax()] = -np.inf


def keeps_a_list(context: TokenContext, logits: Any) -> None:
    """Bans the last token that it saw two calls ago: a value that is changed in place."""
    seen = context.state.setdefault("seen", [])
    seen.append(int(context.token_ids[-1]))
    if len(seen) > 1:
        logits[seen[-2]] = -np.inf


class Twice(Constraint[tuple[int, ...]]):
    """The second token is the first one once more."""

    def initial_state(self) -> tuple[int, ...]:
        return ()

    def allowed(self, state: tuple[int, ...]) -> list[int]:
        return list(state) if len(state) == 1 else FEW

    def advance(self, state: tuple[int, ...], token_id: int) -> tuple[int, ...]:
        return (*state, token_id)

    def is_final(self, state: tuple[int, ...]) -> bool:
        return False


MEMORIES: dict[str, dict[str, Any]] = {
    "none": {},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 1.0, "mirostat_eta": 1.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 0.8, "mirostat_eta": 1.5},
    "adaptive_p": {"adaptive_p": 0.4, "adaptive_p_decay": 0.5},
    "XTC": {"xtc_probability": 0.4, "xtc_threshold": 0.1},
    "XTC always": {"xtc_probability": 1.0, "xtc_threshold": 0.1},
    "adaptive_p behind XTC's coin": {"adaptive_p": 0.4, "adaptive_p_decay": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    "DRY": {"dry_multiplier": 2.0, "dry_allowed_length": 1},
    "penalties": {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "no_repeat_ngram_size": 3},
    "context.state": {"logits_processors": [every_second]},
    "a list in context.state": {"logits_processors": [keeps_a_list]},
    "mirostat and context.state": {"mirostat": 2, "mirostat_tau": 0.8, "mirostat_eta": 1.5, "logits_processors": [every_second]},
    "a constraint": {"structured_outputs": Twice()},
    "a watermark": {"logits_processors": [llmi.watermark.KGW(16, bias=1.0)]},
    "a watermark with a history": {"logits_processors": [llmi.watermark.SynthID([11, 22], ngram_len=2)]},
}


@pytest.mark.parametrize("name", MEMORIES)
def test_the_law_is_that_of_the_draws(small: LLM, name: str) -> None:
    params = SamplingParams(allowed_token_ids=FEW, **MEMORIES[name])
    law = exact_distribution(small, PROMPT, params, num_tokens=3)
    assert sum(law.values()) == pytest.approx(1, abs=1e-5)
    assert exact_distribution(small, PROMPT, params, num_tokens=3) == law, "it draws nothing itself"
    assert_same_distribution(draws(small, params), law)
    if name not in ("none", "XTC always"):
        plain = exact_distribution(small, PROMPT, SamplingParams(allowed_token_ids=FEW), num_tokens=3)
        assert 0.5 * sum(abs(law.get(path, 0.0) - plain.get(path, 0.0)) for path in {*law, *plain}) > 0.02, "it counts"


def test_mirostat_by_hand(small: LLM) -> None:
    """The law of the second token is that of a sequence that drew the first one."""
    params = SamplingParams(allowed_token_ids=FEW, mirostat=2, mirostat_tau=0.8, mirostat_eta=1.5)
    law = exact_distribution(small, PROMPT, params, num_tokens=2)
    seen = set()
    for seed in itertools.count():
        with small.sequence(PROMPT, seed=seed) as sequence:
            first, before = sequence.sample(params), sequence.probs(params)
            sequence.extend([first])
            after = sequence.probs(params)
        for token in range(16):
            assert law.get((first, token), 0.0) == float(before[first]) * float(after[token])
        seen.add(first)
        if len(seen) == np.count_nonzero(before):
            return


def test_a_steered_law(small: LLM) -> None:
    params = SamplingParams(allowed_token_ids=FEW, steering={1: 3 * np.random.default_rng(2).standard_normal(64)})
    assert_same_distribution(draws(small, params), exact_distribution(small, PROMPT, params, num_tokens=3))


def test_a_sequence_as_prompt_begins_anew(small: LLM) -> None:
    """What was drawn for the sequence is prompt then, as in generate."""
    params = SamplingParams(allowed_token_ids=FEW, logits_processors=[every_second], mirostat=2, mirostat_tau=0.8)
    with small.sequence(PROMPT, seed=1) as sequence:
        sequence.extend([sequence.sample(params)])
        expected = exact_distribution(small, sequence.token_ids.tolist(), params, num_tokens=2)
        assert exact_distribution(small, sequence, params, num_tokens=2) == expected


def counting_closure() -> Any:
    calls = 0

    def second_call(context: TokenContext, logits: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            logits[logits.argmax()] = -np.inf

    return second_call


class CountingObject:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, context: TokenContext, logits: Any) -> None:
        self.calls += 1
        logits[self.calls % 16] += 1


def noisy(context: TokenContext, logits: Any) -> None:
    logits += np.random.default_rng().standard_normal(len(logits)).astype(np.float32)


def seeded_noise() -> Any:
    rng = np.random.default_rng(0)
    return lambda context, logits: np.add(logits, rng.standard_normal(len(logits)), out=logits, casting="unsafe")


class Forgetful(Constraint[int]):
    """A constraint whose answer depends on how often it was asked."""

    asked = 0

    def initial_state(self) -> int:
        return 0

    def allowed(self, state: int) -> list[int]:
        self.asked += 1
        return [1 + self.asked % 3, 7]

    def advance(self, state: int, token_id: int) -> int:
        return state + 1

    def is_final(self, state: int) -> bool:
        return False


@pytest.mark.parametrize("num_tokens", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("logits_processors", lambda: {"logits_processors": [counting_closure()]}),
        ("logits_processors", lambda: {"logits_processors": [CountingObject()]}),
        ("logits_processors", lambda: {"logits_processors": [noisy]}),
        ("logits_processors", lambda: {"logits_processors": [every_second, seeded_noise()]}),
        ("structured_outputs", lambda: {"structured_outputs": Forgetful()}),
        ("sampler", lambda: {"sampler": lambda context, law: 1}),
        ("stop", lambda: {"stop": ["a"]}),
        ("stop_token_ids", lambda: {"stop_token_ids": [3]}),
        ("stopping_criteria", lambda: {"stopping_criteria": [lambda context: False]}),
        ("guidance_scale", lambda: {"guidance_scale": 2.0}),
        ("penalty_alpha", lambda: {"penalty_alpha": 0.5, "top_k": 4}),
    ],
)
def test_what_has_no_one_law_is_refused(small: LLM, name: str, fields: Any, num_tokens: int) -> None:
    with pytest.raises(llmi.UnsupportedCombinationError) as error:
        exact_distribution(small, PROMPT, SamplingParams(**{"allowed_token_ids": FEW, **fields()}), num_tokens=num_tokens)
    assert error.value.parameter == name


def test_engine_wide_processors() -> None:
    """They take part as in generate; one with a memory of its own is refused."""

    class Bias:
        def apply(self, contexts: list[TokenContext], logits: Any) -> None:
            for context, row in zip(contexts, logits, strict=True):
                context.state["n"] = context.state.get("n", 0) + 1
                row[context.state["n"]] += 2

    class Counts:
        calls = 0

        def apply(self, contexts: list[TokenContext], logits: Any) -> None:
            self.calls += 1
            logits[:, self.calls % 16] += 1

    params = SamplingParams(allowed_token_ids=FEW)
    path = tiny_model("llama", vocab_size=16)
    with LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=128, batch_processors=[Bias()]) as llm:
        assert_same_distribution(draws(llm, params), exact_distribution(llm, PROMPT, params, num_tokens=3))
    with (
        LLM(path, kv_cache_memory_bytes=1 << 22, max_model_len=128, batch_processors=[Counts()]) as llm,
        pytest.raises(llmi.UnsupportedCombinationError, match="batch_processors"),
    ):
        exact_distribution(llm, PROMPT, params, num_tokens=2)


def test_a_state_that_cannot_be_copied(small: LLM) -> None:
    def holds(context: TokenContext, logits: Any) -> None:
        context.state["later"] = (number for number in range(3))

    with pytest.raises(llmi.HookError, match=r"context\.state cannot be copied"):
        exact_distribution(small, PROMPT, SamplingParams(allowed_token_ids=FEW, logits_processors=[holds]), num_tokens=2)


def test_lengths(small: LLM) -> None:
    assert exact_distribution(small, PROMPT, SamplingParams(), num_tokens=0) == {(): 1.0}
    with pytest.raises(llmi.InvalidParamsError, match="exceeds max_tokens = 2"):
        exact_distribution(small, PROMPT, SamplingParams(max_tokens=2), num_tokens=3)
    with pytest.raises(llmi.InvalidParamsError, match="num_tokens"):
        exact_distribution(small, PROMPT, SamplingParams(), num_tokens=-1)


# --- assert_same_distribution

PAIRS = {(a, b): 1 / 256 for a in range(16) for b in range(16)}


@pytest.mark.parametrize(
    ("counts", "law", "says"),
    [
        ({(0, 0): 1000}, PAIRS, "chi-square"),
        ({}, PAIRS, "0 draws cannot fail"),
        ({}, {0: 1.0}, "0 draws cannot fail.* at least 1 draws"),
        ({0: 3, 1: 2}, {0: 0.5, 1: 0.5}, "5 draws cannot fail.* needs at least (2[0-9]|3[0-9]) draws"),
        ({0: 12, 1: 12}, {0: 0.5, 1: 0.5}, "24 draws cannot fail"),
        ({0: 600, 2: 400}, {0: 0.6, 1: 0.3999, 2: 0.0001}, "rare outcomes were drawn 400 times"),
        ({0: 500, 1: 500}, {0: 0.5, **dict.fromkeys(range(1, 129), 0.5 / 128)}, "chi-square"),
        ({0: 999, 1: 1}, {0: 1.0}, "probability 0"),
    ],
)
def test_draws_that_fail(counts: dict[Any, int], law: dict[Any, float], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        assert_same_distribution(counts, law)


def test_draws_that_pass() -> None:
    rng = np.random.default_rng(5)
    outcomes = list(PAIRS)
    for total in (100, 1_000, 30_000):
        counts = Counter(outcomes[i] for i in rng.integers(0, 256, total))
        assert_same_distribution(counts, PAIRS)
    assert_same_distribution({0: 7}, {0: 1.0, 1: 0.0})
    assert_same_distribution({0: 1000}, {0: 0.9999, 1: 0.0001})


def test_the_number_of_draws_that_it_asks_for_can_fail() -> None:
    law = {0: 0.9, 1: 0.1}
    with pytest.raises(AssertionError, match=r"needs at least (\d+) draws") as error:
        assert_same_distribution({0: 9}, law)
    needed = int(str(error.value).split("at least ")[1].split(" ")[0])
    with pytest.raises(AssertionError, match=r"p = |p <= "):
        assert_same_distribution({1: needed}, law)


def test_false_alarms_are_as_rare_as_it_says() -> None:
    """2,000 right samplers at a rate of 5 %: at most as many fail."""
    rng = np.random.default_rng(1)
    law = dict(enumerate([0.5, 0.25, 0.1, 0.1, 0.03, 0.015, 0.005]))
    failed = 0
    for _ in range(2000):
        try:
            assert_same_distribution(dict(enumerate(rng.multinomial(300, list(law.values())).tolist())), law, false_alarm=0.05)
        except AssertionError:
            failed += 1
    assert 10 < failed < 130


@pytest.mark.parametrize(
    ("draws", "expected"),
    [
        ([(0, 1)] * 50, {0: 0.5, 1: 0.5}),
        ({0: -1}, {0: 1.0}),
        ({0: 1.5}, {0: 1.0}),
        ({0: 1}, [1.0]),
        ({0: 1}, {0: 1.5, 1: -0.5}),
        ({0: 1}, {0: float("nan")}),
    ],
)
def test_what_is_no_draws_or_no_law(draws: Any, expected: Any) -> None:
    with pytest.raises(llmi.InvalidParamsError):
        assert_same_distribution(draws, expected)


def test_lossless_needs_something_to_compare(small: LLM) -> None:
    for arguments in ({"prompts": []}, {"sampling_params": []}):
        with pytest.raises(AssertionError, match="to compare with"):
            assert_lossless(llmi.PromptLookup(), small, **arguments)  # type: ignore[arg-type]
