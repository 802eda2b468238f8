"""Tool calls: their form, whole and streamed; forced and forbidden calls."""

from __future__ import annotations

import json

from llmi.conformance.case import case, expect, field, same, typed
from llmi.conformance.errors import refused
from llmi.conformance.target import CHAT, Json, Target

_PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
_WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": _PARAMETERS}}
_TIME = {"type": "function", "function": {"name": "time", "parameters": _PARAMETERS}}
_FORCED: dict[str, Json] = {
    "tools": [_WEATHER, _TIME],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "max_tokens": 200,
    "parallel_tool_calls": False,
}


def _call(target: Target, **more: Json) -> Json:
    return field(target.chat("What is the weather in Rome?", **{**_FORCED, **more}), "choices.0.message.tool_calls.0")


@case("tools", "a forced call: id, type, name")
def forced(target: Target) -> None:
    call = _call(target)
    expect(typed(call, "id", str), "the id is empty")
    same(field(call, "type"), "function", "type")
    same(field(call, "function.name"), "weather", "the name")


@case("tools", "a forced call: arguments are text, JSON, and fit the parameters")
def arguments(target: Target) -> None:
    for seed in range(3):
        text = typed(_call(target, temperature=1.0, seed=seed), "function.arguments", str)
        expect(json.loads(text) in ({"city": "Rome"}, {"city": "Oslo"}), f"the arguments are {text!r}")


@case("tools", "tool_choice required calls one of the tools")
def required(target: Target) -> None:
    call = _call(target, tool_choice="required")
    expect(field(call, "function.name") in ("weather", "time"), f"the name is {call['function']['name']!r}")


@case("tools", "a call's finish_reason")
def finish(target: Target) -> None:
    for choice in ("required", _FORCED["tool_choice"]):
        reason = field(target.chat("Weather?", **{**_FORCED, "tool_choice": choice}), "choices.0.finish_reason")
        expect(reason in (("tool_calls",) if choice == "required" else ("tool_calls", "stop")), f"finish_reason is {reason!r}")


@case("tools", "tool_choice none calls nothing")
def none(target: Target) -> None:
    message = field(target.chat("Weather?", tools=[_WEATHER], tool_choice="none"), "choices.0.message")
    expect(not message.get("tool_calls") and isinstance(message["content"], str), "there is a call, or no text")


@case("tools", "streamed: the deltas add up to the call")
def streamed(target: Target) -> None:
    name, text, first = "", "", None
    for chunk in target.chat_stream("What is the weather in Rome?", **_FORCED):
        for choice in chunk["choices"]:
            for part in choice["delta"].get("tool_calls") or []:
                same(part["index"], 0, "the index of the only call")
                first = first or part
                name += (part.get("function") or {}).get("name") or ""
                text += (part.get("function") or {}).get("arguments") or ""
    call = _call(target)
    same((name, text), (call["function"]["name"], call["function"]["arguments"]), "name and arguments")
    expect(first is not None and first.get("id") and first.get("type") == "function", "the first delta of the call has no id or type")


@case("tools", "streamed: a chunk has one entry of a call")
def one_entry(target: Target) -> None:
    for chunk in target.chat_stream("What is the weather in Rome?", **_FORCED):
        for choice in chunk["choices"]:
            entries = [part["index"] for part in choice["delta"].get("tool_calls") or []]
            expect(
                len(entries) < 2,
                f"a chunk has entries of the calls {entries}: clients read the first one alone, or take the second for another call",
            )


def _conversation(target: Target, arguments: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
    ]
    answer = target.ok(CHAT, {"messages": messages, "tools": [_WEATHER], "tool_choice": "none", "max_tokens": 4})
    typed(answer, "choices.0.message.content", str)


@case("tools", "a conversation with a call and its result")
def conversation(target: Target) -> None:
    _conversation(target, '{"city": "Rome"}')


@case("tools", "a conversation with a call that was cut off")
def cut_off(target: Target) -> None:
    _conversation(target, '{"city": "Ro')


@case("tools", "calls have ids of their own")
def ids(target: Target) -> None:
    first, second = (_call(target, seed=seed)["id"] for seed in (1, 2))
    expect(first != second, f"two calls have the id {first!r}")


@case("tools", "calls of two turns have ids of their own, with one seed")
def ids_of_turns(target: Target) -> None:
    first = target.chat("Weather?", **{**_FORCED, "seed": 1})["choices"][0]["message"]
    [call] = first["tool_calls"]
    messages = [
        {"role": "user", "content": "Weather?"},
        first,
        {"role": "tool", "tool_call_id": call["id"], "content": "sun"},
        {"role": "user", "content": "And now?"},
    ]
    second = target.ok(CHAT, {"messages": messages, **_FORCED, "seed": 1})
    expect(field(second, "choices.0.message.tool_calls.0.id") != call["id"], f"two calls of one conversation have the id {call['id']!r}")


refused(
    "tools",
    {
        "a choice of an unknown tool": {"tools": [_WEATHER], "tool_choice": {"type": "function", "function": {"name": "no"}}},
        "a choice that is no choice": {"tools": [_WEATHER], "tool_choice": "perhaps"},
        "a tool without a name": {"tools": [{"type": "function", "function": {}}]},
        "a tool of an unknown type": {"tools": [{"type": "smell"}]},
        "a choice without tools": {"tool_choice": "required"},
        "two tools of one name": {"tools": [_WEATHER, _WEATHER]},
    },
)
