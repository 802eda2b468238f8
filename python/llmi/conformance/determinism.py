"""The same request, the same bytes: alone and among others, before and after a cache hit, streamed or not, one by one or together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from llmi.conformance.case import case, each, expect, field, same
from llmi.conformance.stream import entries_of, texts
from llmi.conformance.target import Json, Target

_REQUESTS: dict[str, dict[str, Json]] = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 1.0, "seed": 7},
    "drawn, filtered": {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.5, "seed": 8},
}
_MORE: dict[str, Json] = {"max_tokens": 24, "logprobs": True, "top_logprobs": 2}


def _answer(target: Target, more: dict[str, Json], text: str = "Tell me of rain.") -> Json:
    """Text and log-probabilities: what has to be equal."""
    choice = field(target.chat(text, **{**_MORE, **more}), "choices.0")
    return choice["message"]["content"], choice["finish_reason"], choice["logprobs"]["content"]


def _among(target: Target, work: Json, count: int = 31) -> Json:
    """The result of `work` while as many other requests run, of several lengths."""
    with ThreadPoolExecutor(count + 1) as pool:
        others = [
            pool.submit(target.chat, f"Say {index} " + "and more " * (index % 7 * 9), max_tokens=16 + index, temperature=1.0, seed=index)
            for index in range(count)
        ]
        result = pool.submit(work).result()
        for other in others:
            other.result()
    return result


@each("determinism", _REQUESTS, "{}: twice")
def twice(target: Target, more: dict[str, Json]) -> None:
    same(_answer(target, more), _answer(target, more), "the second answer")


@each("determinism", _REQUESTS, "{}: alone and among 31 others")
def loaded(target: Target, more: dict[str, Json]) -> None:
    alone = _answer(target, more)
    same(_among(target, lambda: _answer(target, more)), alone, "the answer among 31 others")


@each("determinism", _REQUESTS, "{}: before and after a cache hit")
def cached(target: Target, more: dict[str, Json]) -> None:
    text = "A prompt that no other case sends, so that its first answer is without the cache: " + repr(sorted(more.items())) * 4
    first = _answer(target, more, text)
    _answer(target, more, text[:-30] + "another end")
    same(_answer(target, more, text), first, "the answer after a hit of the prefix cache")


@each("determinism", _REQUESTS, "{}: streamed or not")
def streamed(target: Target, more: dict[str, Json]) -> None:
    chunks = target.chat_stream("Tell me of rain.", **{**_MORE, **more})
    text, _, logprobs = _answer(target, more)
    same((texts(chunks)[0], entries_of(chunks)), (text, logprobs), "the streamed answer")


def _several(target: Target) -> list[str]:
    choices = field(target.chat("Tell me of rain.", n=4, temperature=1.0, seed=11, max_tokens=16), "choices")
    return [choice["message"]["content"] for choice in sorted(choices, key=lambda choice: choice["index"])]


@case("determinism", "four choices of one request, alone and among others")
def choices(target: Target) -> None:
    alone = _several(target)
    same(_among(target, lambda: _several(target)), alone, "the four texts")
    expect(len(set(alone)) > 1, "four draws at temperature 1 are equal")


@case("determinism", "four seeds: one after the other, and together")
def seeds(target: Target) -> None:
    wanted = [_answer(target, {"temperature": 1.0, "seed": seed}) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        same(list(pool.map(lambda seed: _answer(target, {"temperature": 1.0, "seed": seed}), range(4))), wanted, "the four answers")
    expect(len({text for text, _, _ in wanted}) > 1, "four seeds give one text")


@case("determinism", "scores of a prompt, alone and among others")
def scores(target: Target) -> None:
    def score() -> Json:
        return field(
            target.complete("The rain in the old town fell all day", echo=True, logprobs=1, max_tokens=1),
            "choices.0.logprobs.token_logprobs",
        )

    alone = score()
    same(_among(target, score), alone, "the prompt's log-probabilities")


@case("determinism", "one fingerprint for all answers, and not an empty one")
def fingerprint(target: Target) -> None:
    found = {target.chat(text, **more).get("system_fingerprint") for text in ("a", "b") for more in _REQUESTS.values()}
    expect(len(found) == 1 and all(isinstance(text, str) and text for text in found), f"system_fingerprint is one of {found}")
