"""Bad requests: a status of 4xx, an error in OpenAI's form that names the field, and a server that goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping

from llmi.conformance.case import case, each, expect, field, same
from llmi.conformance.target import CHAT, COMPLETIONS, Json, Reply, Target

_HI = [{"role": "user", "content": "hi"}]
#: Fields of a chat that are wrong, by the name that the error must give.
#: max_tokens of -1 is no limit to LM Studio and llama.cpp, whose clients send it: no error to ask of every server.
_FIELDS: dict[str, tuple[str, Json]] = {
    "max_tokens as text": ("max_tokens", "3"),
    "max_tokens as fraction": ("max_tokens", 3.5),
    "max_tokens as true": ("max_tokens", True),
    "max_tokens below 0": ("max_tokens", -2),
    "temperature below 0": ("temperature", -1),
    "temperature as text": ("temperature", "hot"),
    "top_p above 1": ("top_p", 2),
    "top_p below 0": ("top_p", -0.5),
    "n of 0": ("n", 0),
    "n of a million": ("n", 1_000_000),
    "n as text": ("n", "2"),
    "stop as number": ("stop", 5),
    "seed as text": ("seed", "x"),
    "stream as text": ("stream", "yes"),
    "presence_penalty as text": ("presence_penalty", "x"),
    "frequency_penalty as list": ("frequency_penalty", [1]),
    "top_logprobs of 100,000": ("top_logprobs", 100_000),
    "logit_bias as list": ("logit_bias", [1]),
    "response_format as text": ("response_format", "json"),
    "a field that nobody knows": ("no_such_field", 1),
    "no messages": ("messages", []),
    "messages as text": ("messages", "hi"),
    "a message without role": ("messages", [{"content": "x"}]),
    "a role that is a number": ("messages", [{"role": 5, "content": "x"}]),
    "a message that is a number": ("messages", [5]),
    "content as number": ("messages", [{"role": "user", "content": 5}]),
    "a part of an unknown type": ("messages", [{"role": "user", "content": [{"type": "smell"}]}]),
}
#: Bodies that are no object with a prompt or messages.
_BODIES: dict[str, tuple[str, bytes]] = {
    "an empty body": (CHAT, b""),
    "no JSON": (CHAT, b"{nonsense"),
    "a list": (CHAT, b"[1]"),
    "a number": (CHAT, b"5"),
    "null": (CHAT, b"null"),
    "no UTF-8": (CHAT, b'{"model": "\xff"}'),
    "NaN": (CHAT, b'{"temperature": NaN}'),
    "100,000 brackets": (CHAT, b"[" * 100_000),
    "bytes behind the body": (CHAT, b'{"messages": []} x'),
    "messages absent": (CHAT, b"{}"),
    "prompt absent": (COMPLETIONS, b"{}"),
    "a lone surrogate": (CHAT, b'{"messages": [{"role": "user", "content": "\\ud800"}]}'),
}
#: Method, path and status of what is not there.
_ROUTES: dict[str, tuple[str, str, int]] = {
    "an unknown route": ("GET", "/v1/nothing", 404),
    "an unknown route with a body": ("POST", "/v1/nothing", 404),
    "a wrong method": ("DELETE", CHAT, 405),
    "a GET of a chat": ("GET", CHAT, 405),
    "an unknown model's entry": ("GET", "/v1/models/no-such-model", 404),
}


def error_of(reply: Reply, *statuses: int) -> Json:
    """The error of an answer with one of these statuses, in OpenAI's form. Raises Broken."""
    expect(reply.status in (statuses or range(400, 500)), f"status {reply.status}: {reply.data[:120]!r}")
    error = field(reply.json, "error")
    expect(
        isinstance(error, dict) and {"message", "type", "param", "code"} <= set(error),
        f"the error has not the four fields: {str(error)[:120]}",
    )
    expect(
        isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str),
        f"message or type is no text: {str(error)[:120]}",
    )
    return error


def refused(profile: str, chats: Mapping[str, dict[str, Json]]) -> None:
    """A case for each of these chats, which must be refused; the server goes on."""

    @each(profile, chats, "refused: {}")
    def refused_chat(target: Target, more: dict[str, Json]) -> None:
        error_of(target.post(CHAT, {"messages": _HI, "max_tokens": 4, **more}), 400, 422)
        target.chat(max_tokens=1)  # the server goes on


@each("errors", _FIELDS)
def bad_field(target: Target, entry: tuple[str, Json]) -> None:
    name, value = entry
    more = {"logprobs": True} if name == "top_logprobs" else {}
    error = error_of(target.post(CHAT, {"messages": _HI, "max_tokens": 2, **more, name: value}))
    expect(name in f"{error['param']} {error['message']}", f"the error does not name {name}: {str(error)[:160]}")
    target.chat(max_tokens=1)  # the server goes on


@each("errors", _BODIES)
def bad_body(target: Target, entry: tuple[str, bytes]) -> None:
    path, data = entry
    if data == b"{}":
        data = json.dumps({"model": target.model}).encode()
    error_of(target.send("POST", path, data), 400, 413, 422)
    target.chat(max_tokens=1)  # the server goes on


@each("errors", _ROUTES)
def no_route(target: Target, entry: tuple[str, str, int]) -> None:
    method, path, status = entry
    error_of(target.send(method, path, b"{}" if method == "POST" else None), status)


@case("errors", "an unknown model, by its name")
def unknown_model(target: Target) -> None:
    error = error_of(target.post(CHAT, {"model": "no-such-model", "messages": _HI}), 404)
    expect("no-such-model" in error["message"], f"the error does not name the model: {error['message'][:120]!r}")


@case("errors", "an unknown model whose name is not ASCII")
def unknown_model_in_unicode(target: Target) -> None:
    reply = target.send("POST", CHAT, json.dumps({"model": "\U0001f642" * 3, "messages": _HI}).encode())
    error_of(reply, 404)
    same(reply.data.decode("utf-8", "replace").count("\ufffd"), 0, "the number of broken characters")
