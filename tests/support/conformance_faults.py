"""For each case of `llmi conformance` the fault that it is there to find."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from faulty_proxy import Exchange, Fault, stall
from llmi.conformance.errors import _BODIES, _FIELDS
from llmi.conformance.target import CHAT, COMPLETIONS

GOOD = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 3}
Edit = Callable[[Any], Any]


def without(path: str) -> Edit:
    """The JSON without the value at a path."""

    def change(value: Any) -> Any:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        seen = value
        try:
            for part in parents:
                seen = seen[part]
            del seen[last]
        except (KeyError, IndexError, TypeError):
            pass
        return value

    return change


def editing(change: Edit, when: Callable[[Exchange], bool] = lambda _: True) -> Fault:
    """A server whose answers of status 200 are changed."""
    return Fault(after=lambda exchange: exchange.edit(change) if exchange.status == 200 and when(exchange) else None)


def every_choice(change: Callable[[dict[str, Any]], Any]) -> Edit:
    """Changes each choice in its place."""

    def edit(value: Any) -> Any:
        for choice in value.get("choices", []) if isinstance(value, dict) else []:
            change(choice)
        return value

    return edit


def _put(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda choice: choice.__setitem__(name, value)


def _louder(choice: dict[str, Any]) -> None:
    """Another text, in whichever form."""
    for place in (choice, choice.get("message") or {}, choice.get("delta") or {}):
        for name in ("text", "content"):
            if place.get(name):
                place[name] += "?"


def _silent(choice: dict[str, Any]) -> None:
    """The last letter of each piece is lost."""
    if choice["delta"].get("content"):
        choice["delta"]["content"] = choice["delta"]["content"][:-1]


def sending(**changes: Any) -> Fault:
    """A server that overlooks fields: None takes one out of the request, else it has this value."""

    def before(exchange: Exchange) -> None:
        for name, value in changes.items():
            if name in exchange.body:
                exchange.body[name] = value
                if value is None:
                    del exchange.body[name]

    return Fault(before=before)


def taking_anything() -> Fault:
    """A server that answers a good request whatever it got."""

    def before(exchange: Exchange) -> None:
        path = COMPLETIONS if "prompt" in exchange.body and "messages" not in exchange.body else CHAT
        exchange.method, exchange.path, exchange.body = "POST", path, dict(GOOD)
        del exchange.body["messages" if path == COMPLETIONS else "prompt"]

    return Fault(before=before)


def other_form() -> Fault:
    """A server whose errors have a form of their own."""

    def after(exchange: Exchange) -> None:
        if exchange.status >= 400:
            exchange.answer = b'{"detail": "Not Found"}'

    return Fault(after=after)


class Remembering:
    """A server that keeps the format of one request for the next ones."""

    def __init__(self) -> None:
        self.kept: Any = None

    def fault(self) -> Fault:
        def before(exchange: Exchange) -> None:
            self.kept = exchange.body.get("response_format", self.kept)
            if self.kept is not None:
                exchange.body |= {"response_format": self.kept}

        return Fault(before=before)


class SecondTime:
    """A server that answers a request otherwise when it comes again."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def fault(self) -> Fault:
        def is_known(exchange: Exchange) -> bool:
            key = json.dumps(exchange.body)
            known = key in self.seen
            self.seen.add(key)
            return known

        return editing(every_choice(_louder), is_known)


def _usage(change: Callable[[dict[str, int]], Any]) -> Edit:
    def edit(value: Any) -> Any:
        if isinstance(value.get("usage"), dict):
            change(value["usage"])
        return value

    return edit


def _in_chunks(number: int, change: Edit) -> Fault:
    """Changes the chunk of this number alone."""

    def after(exchange: Exchange) -> None:
        if exchange.is_stream:
            chunks = iter(range(1000))
            exchange.edit(lambda value: change(value) if next(chunks) == number else value)

    return Fault(after=after)


def _answer(status: int, data: bytes, **headers: str) -> Fault:
    def after(exchange: Exchange) -> None:
        exchange.status, exchange.answer, exchange.headers = status, data, {"content-type": "application/json", **headers}

    return Fault(after=after)


def _with_usage(value: Any) -> Any:
    return {**value, "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


def _first_top_last(choice: dict[str, Any]) -> None:
    for entry in (choice.get("logprobs") or {}).get("content", []):
        entry["top_logprobs"].reverse()


CORE: dict[str, Fault] = {
    "one model by its name": _answer(404, b"{}"),
    "answers are JSON by their content-type": _answer(200, b"{}", **{"content-type": "text/html"}),
    "the sum of usage": editing(_usage(lambda usage: usage.update(total_tokens=usage["total_tokens"] + 1))),
    "a longer prompt has more tokens": editing(_usage(lambda usage: usage.update(prompt_tokens=4))),
    "max_tokens is kept, and finish_reason says length": sending(max_tokens=9),
    "max_completion_tokens is kept, and finish_reason says length": sending(max_completion_tokens=9),
    "n choices, each with its index": editing(every_choice(_put("index", 0))),
    "tokens of n choices are all counted": editing(_usage(lambda usage: usage.update(completion_tokens=4))),
    "a stop string ends the answer and is not in it": sending(stop=None),
    "echo puts the prompt before the text": sending(echo=False),
    "several prompts in one request": editing(lambda value: {**value, "choices": value["choices"][:1]}),
    "completion logprobs: one entry for each token in each list": editing(every_choice(lambda choice: choice["logprobs"]["tokens"].pop())),
    "chat logprobs: token, logprob, bytes, and as many top_logprobs as named, in order": editing(every_choice(_first_top_last)),
    "content may be a list of text parts": Fault(
        before=lambda exchange: exchange.body["messages"][0].update(content="list")
        if isinstance(exchange.body["messages"][0]["content"], list)
        else None
    ),
    "a message of role system": _answer(400, b"{}"),
    "a message of role developer": _answer(400, b"{}"),
    "each answer has an id of its own": editing(lambda value: {**value, "id": "chatcmpl-1"}),
    "model is the name in the request": editing(lambda value: {**value, "model": "another"}),
}
STREAM: dict[str, Fault] = {
    "the first delta names the role": _in_chunks(0, without("choices.0.delta.role")),
    "chat: chunks add up to the whole answer": editing(every_choice(_silent), lambda exchange: exchange.is_stream),
    "completion: chunks add up to the whole answer": editing(every_choice(_louder), lambda exchange: exchange.is_stream),
    "usage is that of the whole answer": editing(
        _usage(lambda usage: usage.update(completion_tokens=1)), lambda exchange: exchange.is_stream
    ),
    "n choices are told apart by index": editing(every_choice(_put("index", 0)), lambda exchange: exchange.is_stream),
    "nothing of a stop string leaks": Fault(
        before=lambda exchange: exchange.body.pop("stop", None) if exchange.body.get("stream") else None
    ),
    "logprobs are those of the whole answer": editing(every_choice(_put("logprobs", None)), lambda exchange: exchange.is_stream),
    "an error before the first token is JSON with its status": _answer(200, b"data: {}\n\n", **{"content-type": "text/event-stream"}),
}
STREAM_BY_END: dict[str, Fault] = {
    "the chunks' object": editing(lambda value: {**value, "object": "x"}),
    "one id in all chunks": _in_chunks(1, lambda value: {**value, "id": "x"}),
    "finish_reason in the last chunk alone": _in_chunks(1, every_choice(_put("finish_reason", "stop"))),
    "usage in one chunk without choices, null in the others": _in_chunks(1, _with_usage),
    "no usage unless named": _in_chunks(1, _with_usage),
}
LIMITS: dict[str, Fault] = {
    "64 requests at once are all answered, by 200 or by 429 with Retry-After": Fault(
        after=lambda exchange: exchange.__dict__.update(status=429, headers={})
    ),
    "a reader that leaves a stream does not disturb the next request": Fault(
        before=lambda exchange: None if exchange.body.get("stream") else stall(1.5)(exchange)
    ),
    "half a request does not stop others": Fault(before=stall(3)),
    "health is 200 while the server works": _answer(503, b"{}"),
    "max_tokens: 1 gives one token": sending(max_tokens=2),
}


def _determinism(name: str) -> Fault:
    if name.endswith(": twice") or "cache hit" in name:
        return SecondTime().fault()
    if name.endswith("streamed or not"):
        return editing(every_choice(_louder), lambda exchange: exchange.is_stream)
    if name.startswith("one fingerprint"):
        return Fault(after=lambda exchange: exchange.edit(lambda value: {**value, "system_fingerprint": f"fp{exchange.count}"}))
    if name.startswith("scores"):
        return editing(
            every_choice(lambda choice: choice["logprobs"]["token_logprobs"].append(0.0)),
            lambda exchange: exchange.beside > 0 and "prompt" in exchange.body,
        )
    return editing(every_choice(_louder), lambda exchange: exchange.beside > 0)


def _errors(name: str) -> Fault:
    if name in _FIELDS:
        return Fault(
            before=lambda exchange: exchange.body.update({**GOOD, "prompt": None})
            or exchange.body.pop("prompt")
            or [exchange.body.pop(field) for field in [*exchange.body] if field not in GOOD]
        )
    return taking_anything() if name in _BODIES else other_form()


def fault_of(profile: str, name: str) -> Fault:
    """The fault that this case finds."""
    if profile == "errors":
        return _errors(name)
    if profile == "structured":
        kept = name == "a request without a schema, after one with it, is free"
        streamed = name == "streamed: the same text"
        free = Fault(
            before=lambda exchange: exchange.body.pop("response_format", None) if not streamed or exchange.body.get("stream") else None
        )
        return Remembering().fault() if kept else free
    if profile == "determinism":
        return _determinism(name)
    if profile == "limits":
        return LIMITS.get(name) or taking_anything()
    if profile == "stream":
        found = STREAM.get(name) or STREAM_BY_END.get(name.partition(": ")[2])
        return found or _in_chunks(1, without(name.partition(": ")[2].split()[0]))
    return CORE.get(name) or editing(without(name.partition(": ")[2]))
