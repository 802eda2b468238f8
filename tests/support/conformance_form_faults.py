"""The faults of the profiles tools, anthropic and responses, and one function for all profiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import conformance_faults
from conformance_faults import Edit, editing, every_choice, other_form, sending, taking_anything, without
from faulty_proxy import Exchange, Fault


def _refusing(is_so: Callable[[dict[str, Any]], bool]) -> Fault:
    """A server that refuses bodies of a kind."""

    def after(exchange: Exchange) -> None:
        if is_so(exchange.body):
            exchange.status, exchange.answer, exchange.headers = 400, b"{}", {"content-type": "application/json"}

    return Fault(after=after)


def _streamed(exchange: Exchange) -> bool:
    return exchange.is_stream


def _every_call(change: Callable[[dict[str, Any]], Any]) -> Edit:
    """Changes each call of a tool, whole or a piece of one."""

    def edit(choice: dict[str, Any]) -> None:
        for place in (choice.get("message") or {}, choice.get("delta") or {}):
            for call in place.get("tool_calls") or []:
                change(call)

    return every_choice(edit)


def _shorter(call: dict[str, Any]) -> None:
    """The last letter of each piece of the arguments is lost."""
    if call["function"].get("arguments"):
        call["function"]["arguments"] = call["function"]["arguments"][:-1]


def _as_object(call: dict[str, Any]) -> None:
    call["function"]["arguments"] = json.loads(call["function"]["arguments"])


def _twice(choice: dict[str, Any]) -> None:
    """Each piece of a call comes in two entries."""
    if calls := (choice.get("delta") or {}).get("tool_calls"):
        calls.append({"index": calls[0]["index"], "function": {"arguments": ""}})


def _is_cut_off(message: dict[str, Any]) -> bool:
    return any(not call["function"]["arguments"].endswith("}") for call in message.get("tool_calls") or [])


TOOLS: dict[str, Fault] = {
    "a forced call: id, type, name": editing(_every_call(lambda call: call["function"].update(name="time"))),
    "a forced call: arguments are text, JSON, and fit the parameters": editing(_every_call(_as_object)),
    "tool_choice required calls one of the tools": sending(tool_choice="none"),
    "a call's finish_reason": editing(every_choice(lambda choice: choice.update(finish_reason="stop"))),
    "tool_choice none calls nothing": sending(tool_choice="required", max_tokens=200),
    "streamed: the deltas add up to the call": editing(_every_call(_shorter), _streamed),
    "streamed: a chunk has one entry of a call": editing(every_choice(_twice), _streamed),
    "a conversation with a call that was cut off": _refusing(lambda body: any(_is_cut_off(message) for message in body["messages"])),
    "a conversation with a call and its result": _refusing(lambda body: any(message["role"] == "tool" for message in body["messages"])),
    "calls have ids of their own": editing(_every_call(lambda call: call.update(id="call_1"))),
    "calls of two turns have ids of their own, with one seed": editing(_every_call(lambda call: call.update(id="call_1"))),
}


def _quieter(event: dict[str, Any]) -> dict[str, Any]:
    """The last letter of each piece of text is lost."""
    if event["type"] == "content_block_delta":
        event["delta"]["text"] = event["delta"]["text"][:-1]
    return event


ANTHROPIC: dict[str, Fault] = {
    "the order of a stream's events": editing(lambda event: None if event["type"] == "message_delta" else event, _streamed),
    "a stream adds up to the whole text": editing(_quieter, _streamed),
    "stop_reason says max_tokens": editing(lambda value: {**value, "stop_reason": "stop"}),
    "a system text, and content as blocks": _refusing(lambda body: isinstance(body.get("system"), list)),
    "count_tokens is what usage says": editing(
        lambda value: {**value, "input_tokens": value["input_tokens"] + 1} if "input_tokens" in value else value
    ),
    "an error has Anthropic's form": other_form(),
}


def _silent(value: dict[str, Any]) -> dict[str, Any]:
    for item in value["output"]:
        for part in item.get("content", []):
            part["text"] = ""
    return value


def _other_input(exchange: Exchange) -> None:
    """A server that reads another text where the input is a list."""
    if isinstance(exchange.body["input"], list):
        exchange.body["input"][0]["content"] = "Another question altogether."


def _nameless(exchange: Exchange) -> None:
    """A server whose errors name no field."""
    if exchange.status == 400:
        exchange.answer = json.dumps({"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}}).encode()


RESPONSES: dict[str, Fault] = {
    "there is text": editing(_silent),
    "status says whether the answer was cut": editing(lambda value: {**value, "status": "done"}),
    "a stream's numbers go up, and it ends with the whole response": editing(lambda event: {**event, "sequence_number": 0}, _streamed),
    "input as messages": Fault(before=_other_input),
    "a bad field is refused by name": Fault(after=_nameless),
}
BY_PROFILE = {"tools": TOOLS, "anthropic": ANTHROPIC, "responses": RESPONSES}


def fault_of(profile: str, name: str) -> Fault:
    """The fault that this case finds."""
    if profile not in BY_PROFILE:
        return conformance_faults.fault_of(profile, name)
    if name.startswith("refused: "):
        return taking_anything()
    return BY_PROFILE[profile].get(name) or editing(without(name.partition(": ")[2]))
