"""OpenAI's responses, without state on the server."""

from __future__ import annotations

import json

from llmi.conformance.case import add_fields, case, expect, field, same
from llmi.conformance.errors import error_of
from llmi.conformance.target import Json, Target

_PATH = "/v1/responses"
_HI: dict[str, Json] = {"input": "Say something.", "max_output_tokens": 8, "temperature": 0, "store": False}


def _response(target: Target) -> Json:
    return target.ok(_PATH, _HI)


def _text(answer: Json) -> str:
    parts = [
        part["text"]
        for item in field(answer, "output")
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    ]
    return "".join(parts)


add_fields(
    "responses",
    "response",
    _response,
    {
        "id": (str,),
        "object": "response",
        "created_at": (int, float),
        "status": (str,),
        "model": (str,),
        "output": (list,),
        "error": None,
        "usage.input_tokens": (int,),
        "usage.output_tokens": (int,),
        "usage.total_tokens": (int,),
    },
)


@case("responses", "there is text")
def text(target: Target) -> None:
    expect(_text(_response(target)), "the output has no text")


@case("responses", "status says whether the answer was cut")
def status(target: Target) -> None:
    answer = _response(target)
    expected = "incomplete" if answer["usage"]["output_tokens"] == 8 else "completed"
    same(answer["status"], expected, "status")


@case("responses", "a stream's numbers go up, and it ends with the whole response")
def stream(target: Target) -> None:
    reply = target.post(_PATH, {**_HI, "stream": True})
    events = [json.loads(event) for event in reply.events if event != "[DONE]"]
    numbers = [event["sequence_number"] for event in events]
    same(numbers, sorted(set(numbers)), "the sequence numbers")
    same(events[0]["type"], "response.created", "the first event")
    expect(events[-1]["type"] in ("response.completed", "response.incomplete"), f"the last event is {events[-1]['type']!r}")
    joined = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    same(joined, _text(events[-1]["response"]), "the joined text")
    same(joined, _text(_response(target)), "the streamed text")


@case("responses", "input as messages")
def messages(target: Target) -> None:
    same(_text(target.ok(_PATH, {**_HI, "input": [{"role": "user", "content": "Say something."}]})), _text(_response(target)), "the text")


@case("responses", "a bad field is refused by name")
def refused(target: Target) -> None:
    error = error_of(target.post(_PATH, {**_HI, "max_output_tokens": "x"}), 400)
    expect("max_output_tokens" in f"{error['param']} {error['message']}", "the error does not name it")
