"""Streams: the form of chunks, what they add up to, and usage."""

from __future__ import annotations

from llmi.conformance.case import case, each, expect, field, same, typed
from llmi.conformance.target import CHAT, COMPLETIONS, Json, Target

_FIELDS: dict[str, Json] = {"id": str, "object": str, "created": int, "model": str, "choices": list}


def texts(chunks: list[Json], kind: str = "chat") -> dict[int, str]:
    """The text of each choice."""
    joined: dict[int, str] = {}
    for chunk in chunks:
        for choice in field(chunk, "choices"):
            said = (choice.get("delta") or {}).get("content") if kind == "chat" else choice.get("text")
            joined[choice["index"]] = joined.get(choice["index"], "") + (said or "")
    return joined


def entries_of(chunks: list[Json]) -> list[Json]:
    """The log-probabilities of a chat's chunks."""
    return [entry for chunk in chunks for choice in chunk["choices"] for entry in (choice.get("logprobs") or {}).get("content") or []]


def _completion(target: Target, **more: Json) -> list[Json]:
    return target.stream(COMPLETIONS, {"prompt": "one two three", "max_tokens": 8, "temperature": 0, **more})


#: How a stream is asked for, and the `object` of its chunks.
_STREAMS: dict[str, tuple[Json, str]] = {
    "chat": (Target.chat_stream, "chat.completion.chunk"),
    "completion": (_completion, "text_completion"),
}


@each("stream", {f"{what}: {name}": (get, name) for what, (get, _) in _STREAMS.items() for name in _FIELDS}, "{} in every chunk")
def has_field(target: Target, entry: tuple[Json, str]) -> None:
    get, name = entry
    for chunk in get(target):
        typed(chunk, name, _FIELDS[name])


@each("stream", _STREAMS, "{}: the chunks' object")
def named(target: Target, entry: tuple[Json, str]) -> None:
    get, name = entry
    same({chunk["object"] for chunk in get(target)}, {name}, "object")


_GETS: dict[str, Json] = {what: get for what, (get, _) in _STREAMS.items()}


@each("stream", _GETS, "{}: one id in all chunks")
def one_id(target: Target, get: Json) -> None:
    found = {chunk["id"] for chunk in get(target)}
    expect(len(found) == 1, f"chunks of one answer have ids {found}")


@each("stream", _GETS, "{}: finish_reason in the last chunk alone")
def one_end(target: Target, get: Json) -> None:
    reasons = [choice.get("finish_reason") for chunk in get(target) for choice in chunk["choices"]]
    expect(reasons and reasons[-1] in ("stop", "length") and not any(reasons[:-1]), f"finish_reasons are {reasons}")


@each("stream", _GETS, "{}: usage in one chunk without choices, null in the others")
def usage_last(target: Target, get: Json) -> None:
    chunks = get(target, stream_options={"include_usage": True})
    expect(isinstance(chunks[-1].get("usage"), dict) and chunks[-1]["choices"] == [], "the last chunk has no usage, or has choices")
    expect(all("usage" in chunk and chunk["usage"] is None for chunk in chunks[:-1]), "usage is not null in the chunks before")


@each("stream", _GETS, "{}: no usage unless named")
def no_usage(target: Target, get: Json) -> None:
    expect(not any(chunk.get("usage") for chunk in get(target)), "usage came, which the request does not name")


@case("stream", "the first delta names the role")
def role(target: Target) -> None:
    same(field(target.chat_stream()[0], "choices.0.delta.role"), "assistant", "the first delta's role")


@case("stream", "chat: chunks add up to the whole answer")
def chat_sum(target: Target) -> None:
    requests: tuple[dict[str, Json], ...] = ({"temperature": 0}, {"temperature": 1.0, "seed": 5, "max_tokens": 24})
    for more in requests:
        same(texts(target.chat_stream(**more))[0], field(target.chat(**more), "choices.0.message.content"), "the joined text")


@case("stream", "completion: chunks add up to the whole answer")
def completion_sum(target: Target) -> None:
    same(texts(_completion(target, max_tokens=24), "text")[0], field(target.complete(max_tokens=24), "choices.0.text"), "the joined text")


@case("stream", "usage is that of the whole answer")
def usage(target: Target) -> None:
    streamed = target.chat_stream(stream_options={"include_usage": True})[-1]["usage"]
    whole = target.chat()["usage"]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    same([streamed[name] for name in names], [whole[name] for name in names], "usage")


@case("stream", "n choices are told apart by index")
def several(target: Target) -> None:
    more: dict[str, Json] = {"n": 3, "temperature": 1.0, "seed": 3}
    whole = {choice["index"]: choice["message"]["content"] for choice in target.chat(**more)["choices"]}
    same(texts(target.chat_stream(**more)), whole, "the texts by index")


@case("stream", "nothing of a stop string leaks")
def stop(target: Target) -> None:
    whole = field(target.complete(max_tokens=16), "choices.0.text")
    expect(len(whole) >= 6, f"the answer {whole!r} is too short to be cut")
    mark = whole[3:6]
    same(texts(_completion(target, max_tokens=16, stop=[mark]), "text")[0], whole[: whole.index(mark)], "the cut text")


@case("stream", "logprobs are those of the whole answer")
def logprobs(target: Target) -> None:
    more: dict[str, Json] = {"logprobs": True, "top_logprobs": 2}
    same(entries_of(target.chat_stream(**more)), field(target.chat(**more), "choices.0.logprobs.content"), "the entries")


@case("stream", "an error before the first token is JSON with its status")
def early_error(target: Target) -> None:
    reply = target.post(CHAT, {"messages": [], "stream": True})
    expect(400 <= reply.status < 500 and "error" in reply.json, f"status {reply.status}, {reply.data[:80]!r}")
