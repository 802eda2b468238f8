"""Whole answers: what parameters do."""

from __future__ import annotations

from llmi.conformance.case import case, expect, field, same
from llmi.conformance.target import Target

for _name in ("max_tokens", "max_completion_tokens"):

    def _bounded(target: Target, name: str = _name) -> None:
        body = {"max_tokens": 3} if name == "max_tokens" else {"max_completion_tokens": 3}
        answer = target.ok("/v1/chat/completions", {"messages": [{"role": "user", "content": "Count to ten."}], "temperature": 0, **body})
        tokens, reason = field(answer, "usage.completion_tokens"), field(answer, "choices.0.finish_reason")
        expect((tokens == 3 and reason == "length") or (tokens < 3 and reason == "stop"), f"{tokens} tokens, and finish_reason {reason!r}")

    case("core", f"{_name} is kept, and finish_reason says length")(_bounded)


@case("core", "n choices, each with its index")
def several(target: Target) -> None:
    choices = field(target.chat(n=3, temperature=1, seed=1), "choices")
    same(sorted(choice["index"] for choice in choices), [0, 1, 2], "the indices")


@case("core", "tokens of n choices are all counted")
def several_counted(target: Target) -> None:
    one, three = (field(target.complete(n=n, max_tokens=4, temperature=1, seed=1), "usage.completion_tokens") for n in (1, 3))
    expect(one < three <= 12, f"completion_tokens is {one} for one and {three} for three")


@case("core", "a stop string ends the answer and is not in it")
def stop(target: Target) -> None:
    whole = field(target.complete(max_tokens=12), "choices.0.text")
    expect(len(whole) >= 3, f"the answer {whole!r} is too short to be cut")
    mark = whole[2]
    choice = field(target.complete(max_tokens=12, stop=[mark]), "choices.0")
    same(choice["text"], whole[: whole.index(mark)], "the cut text")
    same(choice["finish_reason"], "stop", "finish_reason")


@case("core", "echo puts the prompt before the text")
def echo(target: Target) -> None:
    plain, echoed = (field(target.complete(echo=echo), "choices.0.text") for echo in (False, True))
    same(echoed, "one two three" + plain, "the echoed text")


@case("core", "several prompts in one request")
def prompts(target: Target) -> None:
    choices = field(target.complete(["one two", "three four"]), "choices")
    alone = [field(target.complete(prompt), "choices.0.text") for prompt in ("one two", "three four")]
    same([choice["text"] for choice in sorted(choices, key=lambda choice: choice["index"])], alone, "the texts")
