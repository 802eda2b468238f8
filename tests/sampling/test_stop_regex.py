"""stop_regex: Python's syntax, matched as the text grows, in time that is linear in it; what cannot be kept is refused by name."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmi import LLM, InvalidParamsError, PromptLookup, SamplingParams, UnsupportedCombinationError, _core
from llmi.testing import tiny_model
from llmi.text.stop_patterns import MAX_INSTRUCTIONS, stop_program

T = _core.testing
ATOMS = (
    "a",
    "b",
    ".",
    "[ab]",
    "[^a]",
    r"\d",
    r"\w",
    r"\s",
    r"\W",
    "(?:ab|c)",
    "(a|bc)",
    "é",
    "[b-d]",
    "(?i:A)",
    "(?i:[a-b]é)",
    "(?i:ß|ſ|K|µ)",
    r"\n",
    "(?s:.)",
    "(?i:[^a])",
)
REPEATS = ("", "", "", "*", "+", "?", "{1,3}", "*?", "{2,}", "+?", "{0,2}")
LETTERS = "aabbccdxx1 \nAéÉKkßſµμ\u212a"


def pattern_of(rng: random.Random, depth: int = 0) -> str:
    parts = []
    for _ in range(rng.randint(1, 4)):
        nested = depth < 3 and rng.random() < 0.3
        parts.append((f"(?:{pattern_of(rng, depth + 1)})" if nested else rng.choice(ATOMS)) + rng.choice(REPEATS))
    text = "".join(parts)
    if depth < 2 and rng.random() < 0.25:
        text += "|" + pattern_of(rng, depth + 1)
    return rng.choice(("^", "(?m:^)", "", "", "", "")) + f"(?:{text})"


def first_match(patterns: list[str], text: str) -> tuple[int, int, int] | None:
    """(begin, end, pattern) by `re`: the first end, of these the first begin, of these the first pattern."""
    compiled = [re.compile(pattern) for pattern in patterns]
    found = (
        (begin, end, index)
        for end in range(1, len(text) + 1)
        for begin in range(end)
        for index, pattern in enumerate(compiled)
        if pattern.fullmatch(text, begin, end)
    )
    return next(found, None)


def run(text: str, patterns: list[str], include: bool = False, size: int = 3, stop: list[str] | None = None) -> tuple[str, str, str | None]:
    """(the text, what was shown, what stopped it) of a text that comes in pieces of `size` bytes."""
    raw = text.encode()
    pieces = [raw[i : i + size] for i in range(0, len(raw), size)]
    detokenizer = T.Detokenizer(pieces, stop or [], include, patterns, stop_program(tuple(patterns)))
    shown = ""
    for index in range(len(pieces)):
        detokenizer.push(index)
        shown += detokenizer.take()
        if detokenizer.stopped_by is not None:
            break
    detokenizer.finish()
    return detokenizer.text, shown + detokenizer.take(), detokenizer.stopped_by


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32), st.text(alphabet=LETTERS, min_size=1, max_size=14), st.integers(1, 5), st.booleans())
def test_what_re_finds_first_ends_the_text(seed: int, text: str, size: int, include: bool) -> None:
    rng = random.Random(seed)
    patterns = [pattern_of(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    if any(re.fullmatch(pattern, "") for pattern in patterns):
        with pytest.raises(InvalidParamsError, match=r"empty text|states that all of"):
            stop_program(tuple(patterns))
        return
    try:
        got, shown, stopped = run(text, patterns, include, size)
    except InvalidParamsError as error:
        assert "states that all of" in str(error)  # repeats of repeats, which few seeds draw
        return
    assert shown == got, "what was shown is what remains: nothing was taken back"
    wanted = first_match(patterns, text)
    if wanted is None:
        assert (got, stopped) == (text, None)
    else:
        begin, end, index = wanted
        assert (got, stopped) == (text[: end if include else begin], patterns[index])


def test_strings_and_patterns_together() -> None:
    assert run("one two three", [r"t\w+e"], stop=["two"], size=100) == ("one ", "one ", "two")
    assert run("one two three", [r"e t"], stop=["two"], size=100) == ("on", "on", "e t"), "the one that begins first counts"
    assert run("one two three", [r"two"], stop=["two "], size=100)[2] == "two ", "strings before patterns"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a$", r"\$ is not supported.*while it grows"),
        (r"a\Z", r"\\Z is not supported"),
        (r"\ba", r"\\b is not supported"),
        (r"a\B", r"\\B is not supported"),
        ("a(?=b)", "look-ahead"),
        ("(?<!a)b", "look-behind"),
        (r"(a)\1", "backreferences"),
        ("(?>a)b", "atomic"),
        ("a++", "possessive"),
        ("(?P<n>a)(?(n)b|c)", "conditions"),
        ("a*", "empty text"),
        ("a|", "empty text"),
        ("^", "empty text"),
        ("(?:){1000000000}", "empty text"),
        ("[", "no regular expression"),
        ("*a", "no regular expression"),
        ("(?:a{1000}){1000}", "1,024 states"),
        ("((((a{10}){10}){10}){10})", "1,024 states"),
        ("(" * 480 + "a" + ")" * 480, "nested too deeply|1,024 states"),
        ("a{1,99999999999999999999}", "repeats too often|no regular expression"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(pattern: str, why: str) -> None:
    with pytest.raises(InvalidParamsError, match=rf"^stop_regex = .*({why})") as caught:
        stop_program((pattern,))
    assert caught.value.parameter == "stop_regex"
    with pytest.raises(InvalidParamsError, match=r"^stop_regex\[1\] = "):
        stop_program(("ok", pattern))


def test_all_patterns_share_the_states() -> None:
    assert stop_program(("a{500}", "b{500}"))[0] <= MAX_INSTRUCTIONS
    with pytest.raises(InvalidParamsError, match=r"^stop_regex\[1\].*1,024 states"):
        stop_program(("a{600}", "b{600}"))


def test_a_bomb_is_linear() -> None:
    """What takes `re` exponential time is one visit of each instruction a character: the text is long, and no clock is read."""
    assert run("a" * 20_000 + "!", [r"(?:a+)+b", r"(?:a|aa)+c", r"(?:.*.*.*.*)=d"]) == ("a" * 20_000 + "!", "a" * 20_000 + "!", None)


def test_a_program_is_checked_again() -> None:
    for program in ([0], [1, 2, 0, 0], [1, 1, 0, 5], [1, 9, 0, 0], [2, 2, 0, 3, 0, 0, 0, 5, 5], [2000], [1, 0, 1, 0], [1, 3, 0, 0]):
        with pytest.raises(_core.CoreError, match="stop_program"):
            T.Detokenizer([b"a"], [], False, ["a"], program)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("regex")), kv_cache_memory_bytes=1 << 25) as made:
        yield made


def ascii_only(**more: Any) -> dict[str, Any]:
    return {"max_tokens": 60, "seed": 5, "ignore_eos": True, "allowed_token_ids": list(range(40, 110)), **more}


def test_requests_end_there(llm: LLM) -> None:
    whole = llm.generate("x", **ascii_only())[0].outputs[0]
    pattern = re.escape(whole.text[20]) + "." + re.escape(whole.text[22])
    wanted = first_match([pattern], whole.text)
    assert wanted is not None
    for more in ({}, {"speculative_config": PromptLookup()}, {"speculative_config": PromptLookup(), "temperature": 0.9}):
        reference = whole if "temperature" not in more else llm.generate("x", **ascii_only(temperature=0.9))[0].outputs[0]
        found = first_match([pattern], reference.text)
        output = llm.generate("x", **ascii_only(stop_regex=pattern, **more))[0].outputs[0]
        if found is None:
            assert output.finish_reason == "length"
            continue
        assert (output.text, output.finish_reason, output.stop_reason) == (reference.text[: found[0]], "stop", pattern)
        assert len(output.token_ids) == found[1]
    kept = llm.generate("x", **ascii_only(stop_regex=[pattern], include_stop_str_in_output=True))[0].outputs[0]
    assert kept.text == whole.text[: wanted[1]]
    later = llm.generate("x", **ascii_only(stop_regex=pattern, min_tokens=wanted[1] + 1))[0].outputs[0]
    assert len(later.token_ids) > wanted[1], "not before min_tokens"
    assert "".join(chunk.text for chunk in llm.stream("x", **ascii_only(stop_regex=pattern))) == whole.text[: wanted[0]]
    never = llm.generate("x", **ascii_only(stop_regex=[r"[^\s\S]", r"x\x00y"]))[0].outputs[0]
    assert (never.text, never.finish_reason) == (whole.text, "length")


def test_beams_end_there(llm: LLM) -> None:
    args = {**ascii_only(stop_regex=["[^(]..", "x{9}"]), "seed": None, "beam_width": 3, "max_tokens": 12}
    for completion in llm.generate("x", **args)[0].outputs:
        whole = llm.tokenizer.decode(completion.token_ids)
        assert first_match(["[^(].."], whole) == (len(completion.text), len(whole), 0)
        assert (completion.finish_reason, completion.stop_reason) == ("stop", "[^(]..")


def test_what_it_does_not_go_with() -> None:
    with pytest.raises(UnsupportedCombinationError, match="stop_regex needs detokenize=True"):
        SamplingParams(stop_regex="a", detokenize=False).validate()
    with pytest.raises(InvalidParamsError, match="stop_regex"):
        SamplingParams(stop_regex=["a"] * 17).validate()
