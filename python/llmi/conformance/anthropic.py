"""Anthropic's form: messages, streamed and whole, and the count of tokens."""

from __future__ import annotations

import json

from llmi.conformance.case import add_fields, case, expect, field, same, typed
from llmi.conformance.target import Json, Reply, Target

_MESSAGES = "/v1/messages"
_HI: dict[str, Json] = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 8, "temperature": 0}


def _message(target: Target) -> Json:
    return target.ok(_MESSAGES, _HI)


add_fields(
    "anthropic",
    "message",
    _message,
    {
        "id": (str,),
        "type": "message",
        "role": "assistant",
        "model": (str,),
        "content.0.type": "text",
        "content.0.text": (str,),
        "stop_reason": (str,),
        "stop_sequence": (str, type(None)),
        "usage.input_tokens": (int,),
        "usage.output_tokens": (int,),
    },
)


def _events(target: Target, **more: Json) -> list[Json]:
    reply: Reply = target.post(_MESSAGES, {**_HI, **more, "stream": True})
    return [json.loads(event) for event in reply.events]


@case("anthropic", "the order of a stream's events")
def order(target: Target) -> None:
    kinds = [event["type"] for event in _events(target) if event["type"] != "ping"]
    expect(kinds[:2] == ["message_start", "content_block_start"], f"the stream begins with {kinds[:2]}")
    same(kinds[-3:], ["content_block_stop", "message_delta", "message_stop"], "the end of the stream")


@case("anthropic", "a stream adds up to the whole text")
def adds_up(target: Target) -> None:
    parts = [event["delta"].get("text", "") for event in _events(target) if event["type"] == "content_block_delta"]
    same("".join(parts), field(_message(target), "content.0.text"), "the joined text")


@case("anthropic", "stop_reason says max_tokens")
def stop_reason(target: Target) -> None:
    answer = _message(target)
    expect(
        answer["stop_reason"] == ("max_tokens" if answer["usage"]["output_tokens"] == 8 else "end_turn"),
        f"stop_reason is {answer['stop_reason']!r}",
    )


@case("anthropic", "a system text, and content as blocks")
def blocks(target: Target) -> None:
    content = [{"type": "text", "text": "Say something."}]
    target.ok(_MESSAGES, {**_HI, "system": [{"type": "text", "text": "Be brief."}], "messages": [{"role": "user", "content": content}]})


@case("anthropic", "count_tokens is what usage says")
def count(target: Target) -> None:
    counted = target.ok(f"{_MESSAGES}/count_tokens", {"messages": _HI["messages"]})
    usage = field(_message(target), "usage")
    read = sum(usage.get(name) or 0 for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"))
    same(typed(counted, "input_tokens", int), read, "input_tokens")


@case("anthropic", "an error has Anthropic's form")
def error(target: Target) -> None:
    reply = target.post(_MESSAGES, {**_HI, "messages": []})
    same(reply.status, 400, "the status")
    same(field(reply.json, "type"), "error", "type")
    typed(reply.json, "error.type", str)
    typed(reply.json, "error.message", str)
