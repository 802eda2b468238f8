"""Whole answers: models, chats, completions; their required fields, usage, log-probabilities and messages, and what parameters do."""

from __future__ import annotations

from llmi.conformance.case import add_fields, case, each, expect, field, same, typed
from llmi.conformance.target import CHAT, COMPLETIONS, Json, Target

_NULL = type(None)
_USAGE = {"usage.prompt_tokens": (int,), "usage.completion_tokens": (int,), "usage.total_tokens": (int,)}


def _models(target: Target) -> Json:
    reply = target.send("GET", "/v1/models")
    same(reply.status, 200, "the status")
    return reply.json


add_fields(
    "core",
    "models",
    _models,
    {"object": "list", "data.0.id": (str,), "data.0.object": "model", "data.0.created": (int,), "data.0.owned_by": (str,)},
)
add_fields(
    "core",
    "chat",
    Target.chat,
    {
        "id": (str,),
        "object": "chat.completion",
        "created": (int,),
        "model": (str,),
        "choices": (list,),
        "choices.0.index": 0,
        "choices.0.finish_reason": (str,),
        "choices.0.logprobs": (dict, _NULL),
        "choices.0.message.role": "assistant",
        "choices.0.message.content": (str,),
        "choices.0.message.refusal": (str, _NULL),
        **_USAGE,
    },
)
add_fields(
    "core",
    "completion",
    Target.complete,
    {
        "id": (str,),
        "object": "text_completion",
        "created": (int,),
        "model": (str,),
        "choices.0.index": 0,
        "choices.0.text": (str,),
        "choices.0.logprobs": (dict, _NULL),
        "choices.0.finish_reason": (str,),
        **_USAGE,
    },
)


@case("core", "one model by its name")
def one_model(target: Target) -> None:
    reply = target.send("GET", f"/v1/models/{target.model}")
    same(reply.status, 200, "the status")
    same(field(reply.json, "id"), target.model, "id")


@case("core", "answers are JSON by their content-type")
def content_type(target: Target) -> None:
    kind = target.send("GET", "/v1/models").headers.get("content-type", "")
    expect(kind.startswith("application/json"), f"content-type is {kind!r}")


@case("core", "the sum of usage")
def usage_sum(target: Target) -> None:
    usage = field(target.chat(), "usage")
    same(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"], "total_tokens")


@case("core", "a longer prompt has more tokens")
def prompt_tokens(target: Target) -> None:
    short, long = (field(target.chat(text), "usage.prompt_tokens") for text in ("a", "a b c d e f g"))
    expect(0 < short < long, f"prompt_tokens is {short}, and {long} for a longer prompt")


@case("core", "completion logprobs: one entry for each token in each list")
def completion_logprobs(target: Target) -> None:
    logprobs = typed(target.complete(logprobs=2), "choices.0.logprobs", dict)
    sizes = {name: len(field(logprobs, name)) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    expect(len(set(sizes.values())) == 1 and sizes["tokens"] > 0, f"the lists have lengths {sizes}")


@case("core", "chat logprobs: token, logprob, bytes, and as many top_logprobs as named, in order")
def chat_logprobs(target: Target) -> None:
    entries = typed(target.chat(logprobs=True, top_logprobs=3), "choices.0.logprobs.content", list)
    expect(entries, "there is no entry")
    for entry in entries:
        typed(entry, "token", str)
        expect(typed(entry, "logprob", float, int) <= 0, "a logprob is above 0")
        typed(entry, "bytes", list, _NULL)
        tops = [top["logprob"] for top in typed(entry, "top_logprobs", list)]
        expect(len(tops) == 3 and tops == sorted(tops, reverse=True), f"top_logprobs are {tops}")


@case("core", "content may be a list of text parts")
def parts(target: Target) -> None:
    one = target.ok(
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Say something."}]}], "max_tokens": 8, "temperature": 0},
    )
    same(field(one, "choices.0.message.content"), field(target.chat(), "choices.0.message.content"), "the answer to parts")


@each("core", {role: role for role in ("system", "developer")}, "a message of role {}")
def role_taken(target: Target, role: str) -> None:
    messages = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hi."}]
    target.ok(CHAT, {"messages": messages, "max_tokens": 2})


@case("core", "each answer has an id of its own")
def ids(target: Target) -> None:
    first, second = (field(target.chat(), "id") for _ in range(2))
    expect(first != second, f"two answers have the id {first!r}")


@case("core", "model is the name in the request")
def model_name(target: Target) -> None:
    same(field(target.ok(COMPLETIONS, {"prompt": "a", "max_tokens": 1}), "model"), target.model, "model")


@each("core", {name: name for name in ("max_tokens", "max_completion_tokens")}, "{} is kept, and finish_reason says length")
def bounded(target: Target, name: str) -> None:
    answer = target.ok(CHAT, {"messages": [{"role": "user", "content": "Count to ten."}], "temperature": 0, name: 3})
    tokens, reason = field(answer, "usage.completion_tokens"), field(answer, "choices.0.finish_reason")
    expect((tokens == 3 and reason == "length") or (tokens < 3 and reason == "stop"), f"{tokens} tokens, and finish_reason {reason!r}")


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
