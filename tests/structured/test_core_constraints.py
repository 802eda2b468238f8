"""Grammars in the core: the library's masks, places that share nothing, and forced tokens as drafts that change no token and no law."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from features import enumerable_llm, stateful
from llmi import LLM, BeamSearchParams, ConstraintError, PromptLookup, SamplingParams, SpeculativeConfig, StructuredOutputsParams, _core
from llmi.structured import constraint, library
from llmi.structured.grammars import grammar_of
from llmi.testing import assert_same_distribution, exact_distribution

pytest.importorskip("llguidance")
KEYS = {
    "type": "object",
    "properties": {"identifier": {"enum": ["alpha", "alphabet"]}, "number": {"type": "integer", "minimum": 10, "maximum": 3000}},
    "required": ["identifier", "number"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "keys": {"json": KEYS},
    "any whitespace": {"json": KEYS, "whitespace": "any"},
    "regex": {"regex": "(ab|b[0-9]{2,3}|näh)+c?"},
    "choice": {"choice": ["yes", "yesterday", "no"]},
    "lark": {"grammar": 'start: "<" word ("," word)* ">"\nword: /[a-f]{1,4}/'},
}
FORCED = {"regex": "(abcdefgh|abcdefxyz[0-9]){2,3}!"}


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_c_interface_answers_as_the_python_methods(tiny: LLM, name: str) -> None:
    """Masks, ends, forced tokens and errors along random texts."""
    vocabulary = library.vocabulary_of(tiny.tokenizer)
    grammar = grammar_of(StructuredOutputsParams(**GRAMMARS[name]))
    core = vocabulary.matcher(grammar, "grammar")
    python: Any = library.load().LLMatcher(vocabulary.compiled, grammar, log_level=0)
    assert isinstance(core, _core.GrammarMatcher)
    rng = np.random.default_rng(7)
    for _ in range(12):
        one, other = core.deep_copy(), python.deep_copy()
        for _ in range(25):
            mask = vocabulary.mask(one)
            assert np.array_equal(mask, vocabulary.mask(other)) and one.is_accepting() == other.is_accepting()
            assert one.forced(64) == other.compute_ff_tokens()[:64]
            if not mask.any():
                break
            token = int(rng.choice(np.flatnonzero(mask)))
            assert one.consume_token(token) and other.consume_token(token)
        banned = int(np.flatnonzero(~vocabulary.mask(one))[-1])
        assert not one.consume_token(banned) and one.is_error() and one.get_error()


def test_a_tokenizer_that_fails_is_told(tiny: LLM) -> None:
    """The library cannot pass an exception on: the core keeps it."""
    vocabulary = library.vocabulary_of(tiny.tokenizer)
    opened = library.core_library()
    assert opened is not None

    def fails(text: bytes) -> list[int]:
        raise ValueError("no way to write this")

    core = _core.GrammarVocabulary(opened, vocabulary.tokens, vocabulary.ends, fails)
    words = np.zeros((len(vocabulary.tokens) + 31) // 32, np.int32)
    with pytest.raises(_core.CoreError, match="no way to write this"):
        _core.GrammarMatcher(core, 'start: "abcdef"', "grammar").unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)


@pytest.fixture
def through_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library's Python methods in place of its C interface."""
    monkeypatch.setattr(library, "core_library", lambda: None)
    monkeypatch.setattr(library, "_vocabularies", weakref.WeakKeyDictionary())
    monkeypatch.setattr(constraint, "_cache", collections.OrderedDict())
    yield


def answers(llm: LLM) -> Any:
    params = [SamplingParams(n=2, seed=3, max_tokens=40, logprobs=2, structured_outputs=asked) for asked in GRAMMARS.values()]
    return llm.generate([[1, 2]] * len(params), params)


def test_the_fallback_gives_the_same(tiny: LLM, request: pytest.FixtureRequest) -> None:
    core = answers(tiny)
    request.getfixturevalue("through_python")
    assert answers(tiny) == core


def test_a_library_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Not a library, one without the functions, and one with other answers: the Python methods are used, and the log says so."""
    real = _core.GrammarLibrary
    other = tmp_path / "other.so"
    other.write_bytes(b"\x7fELF")
    whole = next(Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line)
    for opened, reason in ((lambda path: real(str(other)), "does not load"), (lambda path: real(str(whole)), "has no llg_")):
        monkeypatch.setattr(_core, "GrammarLibrary", opened)
        assert library.core_library.__wrapped__() is None
        assert reason in caplog.text
    monkeypatch.setattr(_core, "GrammarLibrary", real)
    monkeypatch.setattr(library.Vocabulary, "mask", lambda self, matcher: np.zeros(self.num_tokens, np.bool_))
    assert library.core_library.__wrapped__() is None and "gives another answer" in caplog.text


# --- places of their own


def test_samples_beams_and_neighbours_share_no_place(tiny: LLM) -> None:
    """Each output alone is what it is beside others, and fits."""
    asked = {"regex": "([a-c][0-9]|[d-f][x-z]){6}"}
    params = [SamplingParams(n=4, seed=seed, max_tokens=30, structured_outputs=asked, logits_processors=[stateful]) for seed in range(3)]
    together = tiny.generate([[1], [2, 3], [4]], params)
    assert together == [tiny.generate([prompt], each)[0] for prompt, each in zip([[1], [2, 3], [4]], params, strict=True)]
    beams = tiny.generate([[1], [5]], BeamSearchParams(beam_width=4, n=4, max_tokens=16, structured_outputs=asked))
    texts = [c for out in [*together, *beams] for c in out.outputs]
    assert len({c.text for c in texts}) > 12
    for completion in texts:
        assert re.fullmatch("([a-c][0-9]|[d-f][x-z]){0,6}[a-f]?", completion.text), completion.text
        assert completion.complete == bool(re.fullmatch(asked["regex"], completion.text))


def test_the_first_stage_holds_the_mask_and_user_code_cannot_lift_it(tiny: LLM) -> None:
    seen: list[int] = []

    def lift(context: llmi.TokenContext, logits: Any) -> Any:
        seen.append(int(np.isfinite(logits).sum()))
        return np.zeros_like(logits)

    out = tiny.generate([1], n=3, seed=1, max_tokens=30, logits_processors=[lift], structured_outputs={"regex": "[ab]{3}"})[0]
    assert all(re.fullmatch("[ab]{3}", c.text) for c in out.outputs)
    assert max(seen) < 30, "a processor sees masked rows"


def test_rules_that_leave_nothing_are_both_named(tiny: LLM) -> None:
    ids = {word: token for token, word in enumerate(tiny.tokenizer.vocab_bytes)}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"allowed_token_ids": [ids[b"z"]]}, "allowed_token_ids"),
        ({"logit_bias": {ids[b"a"]: -float("inf"), ids[b"b"]: -float("inf")}}, "logit_bias"),
        ({"min_tokens": 9, "max_tokens": 9}, "min_tokens"),
    ]
    for params, rule in cases:
        out = tiny.generate(
            [[1], [2]],
            [SamplingParams(seed=1, structured_outputs={"regex": "[ab]"}, **params), SamplingParams(max_tokens=2)],
            on_error="return",
        )
        assert isinstance(out[0].error, ConstraintError) and out[1].error is None
        with pytest.raises(ConstraintError, match=f"structured_outputs allows .*{rule}.* forbid all of them"):
            raise out[0].error


# --- forced tokens as drafts


class Wrong(llmi.Drafter):
    """Proposes what is seldom right, as a tree."""

    def propose(self, context: llmi.DraftContext) -> Any:
        last = int(context.token_ids[-1])
        return llmi.Draft([last, (last + 1) % 250, 98, 99], [-1, -1, 0, 1])


COUPLED: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "lookup": PromptLookup,
    "wrong": lambda: SpeculativeConfig(Wrong(), 4),
}


@pytest.mark.parametrize("name", COUPLED)
def test_forced_drafts_change_no_token(tiny: LLM, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"n": 3, "logprobs": 2},
        {"repetition_penalty": 1.3, "logits_processors": [stateful]},
        {"min_tokens": 4, "stop": ["x"]},
        {"ignore_eos": True, "temperature": 0.0},
        {"guidance_scale": 1.4, "negative_prompt": [5, 6]},
    ]
    params = [
        SamplingParams(seed=seed, max_tokens=36, structured_outputs=asked, **more)
        for seed, (asked, more) in enumerate(itertools.product([FORCED, {"json": KEYS}], fields))
    ]
    prompts = [[1, 2, seed + 3] for seed in range(len(params))]
    built: list[Any] = []
    make = _core.Request
    monkeypatch.setattr(_core, "Request", lambda **fields: built.append(make(**fields)) or built[-1])  # type: ignore[func-returns-value]
    outs, accepted = {}, {}
    for value in ("1", "0"):
        monkeypatch.setenv("LLMI_FORCED_DRAFTS", value)
        outs[value] = tiny.generate(prompts, params, speculative_config=COUPLED[name]())
        accepted[value] = sum(sample.speculation.num_accepted_tokens for request in built for sample in request.samples)
        built.clear()
    assert outs["1"] == outs["0"]
    assert accepted["1"] > accepted["0"] + 20


@pytest.fixture(scope="module")
def small(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with enumerable_llm(tiny_path) as llm:
        yield llm


@pytest.mark.parametrize("forced", ["1", "0"])
@pytest.mark.parametrize("verification", ["rejection", "block"])
def test_rejection_keeps_the_law(small: LLM, monkeypatch: pytest.MonkeyPatch, verification: str, forced: str) -> None:
    """The law of whole outputs, enumerated, with a drafter whose draws come from a law of its own."""
    monkeypatch.setenv("LLMI_FORCED_DRAFTS", forced)
    words = [word.decode() for word in small.tokenizer.vocab_bytes]
    a, b, c, d = (re.escape(words[token]) for token in (2, 3, 4, 5))
    params = SamplingParams(
        temperature=1.0, max_tokens=3, ignore_eos=True, structured_outputs={"regex": f"({a}{b}{c}|{b}{a}[{c}{d}]|{c}[{a}{b}]{d})+"}
    )
    expected = exact_distribution(small, [1, 2], params, num_tokens=3)
    assert 4 <= len(expected) <= 9

    def propose(context: llmi.DraftContext) -> Any:
        token, row = context.draw(np.linspace(0, 2, 16, dtype=np.float32), num_tokens=1)
        return llmi.Draft(token, None, row)

    drafters: dict[str, Any] = {"rejection": lambda context: [2, 3], "block": propose}
    drawn: collections.Counter[tuple[int, ...]] = collections.Counter()
    for seed in range(2):
        for out in small.generate(
            [[1, 2]] * 16,
            [dataclasses.replace(params, seed=seed * 16 + i, n=32) for i in range(16)],
            speculative_config=SpeculativeConfig(drafters[verification], 2, verification),
        ):
            drawn.update(tuple(completion.token_ids) for completion in out.outputs)
    assert_same_distribution(drawn, expected)


@pytest.mark.parametrize("verification, expected", [("typical", False), ("coupled", True), ("rejection", True), ("block", True)])
def test_where_forced_tokens_are_drafted(tiny: LLM, monkeypatch: pytest.MonkeyPatch, verification: str, expected: bool) -> None:
    built: list[bool] = []
    make = _core.Request
    monkeypatch.setattr(_core, "Request", lambda **fields: built.append(fields["drafts_forced"]) or make(**fields))  # type: ignore[func-returns-value]
    config = SpeculativeConfig(PromptLookup(), 2, verification)
    tiny.generate([1], seed=1, max_tokens=20, structured_outputs=FORCED, speculative_config=config)
    tiny.generate([1], seed=1, max_tokens=2, speculative_config=config)
    tiny.generate([1], BeamSearchParams(beam_width=2, max_tokens=4, structured_outputs=FORCED))
    assert built == [expected, False, False]
