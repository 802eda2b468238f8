"""OpenAI's form of /v1/responses as a chat: items of the input become messages, tools get the form of chats."""

from __future__ import annotations

from typing import Any

from llmi.server.errors import ApiError
from llmi.server.fields import Taken
from llmi.server.prompts import Chat, plain_messages

_ROLES = ("system", "developer", "user", "assistant", "tool")


def _wrong(where: str, what: str, code: str = "invalid_type") -> ApiError:
    return ApiError(400, f"{where} {what}", param=where, code=code)


def _output(value: object, where: str) -> str:
    """The text that a tool gave back."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value):
        return "\n".join(part["text"] for part in value)
    raise _wrong(where, "must be a string or a list of texts")


def _item(item: object, where: str, messages: list[dict[str, Any]]) -> None:
    """Adds one item of the input to the messages; calls and reasoning belong to the assistant's message that stands last."""
    if not isinstance(item, dict):
        raise _wrong(where, "must be an object")
    kind = item.get("type", "message")
    if kind == "message":
        if item.get("role") not in _ROLES:
            raise _wrong(f"{where}.role", f"must be one of {', '.join(_ROLES)}", "invalid_value")
        content = item.get("content")
        begun = messages and messages[-1]["role"] == "assistant" and messages[-1].get("content") is None
        if item["role"] == "assistant" and begun:
            messages[-1]["content"] = content
        else:
            messages.append({"role": item["role"], "content": content})
    elif kind == "function_call":
        if not isinstance(item.get("name"), str):
            raise _wrong(f"{where}.name", "must be a string")
        call = {"id": item.get("call_id"), "type": "function", "function": {"name": item["name"], "arguments": item.get("arguments")}}
        _assistants(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": _output(item.get("output"), f"{where}.output")})
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        text = "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
        if text:
            messages.append({"role": "assistant", "content": None, "reasoning_content": text})
    else:
        raise _wrong(
            f"{where}.type",
            f"{str(kind)[:40]!r} is not offered: give message, function_call, function_call_output or reasoning",
            "unsupported",
        )


def _assistants(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message at the end, or a new one there."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _tools(taken: Taken) -> list[dict[str, Any]] | None:
    tools = []
    for index, tool in enumerate(taken.entries("tools") or ()):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            kind = tool.get("type") if isinstance(tool, dict) else tool
            raise _wrong(f"{where}.type", f"{str(kind)[:40]!r} is not offered: give tools of type function", "unsupported")
        tools.append(
            {"type": "function", "function": {name: value for name, value in tool.items() if name != "type" and value is not None}}
        )
    return tools or None


def _choice(value: object) -> object:
    if isinstance(value, dict) and value.get("type") == "function":
        return {"type": "function", "function": {"name": value.get("name")}}
    return value


def text_format(taken: Taken) -> object:
    """The constraint that `text.format` names; None: the answer is free. `text.verbosity` has no effect."""
    text = taken.mapping("text") or {}
    if unknown := [name for name in text if name not in ("format", "verbosity")]:
        raise _wrong(f"text.{unknown[0][:80]}", "is no field of text", "unknown_field")
    if text.get("verbosity") is not None:
        taken.ignored.append("text.verbosity")
    value = text.get("format")
    kind = value.get("type") if isinstance(value, dict) else value
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema" and isinstance(value, dict) and isinstance(value.get("schema"), dict | bool):
        return {"json": value["schema"]}
    raise _wrong("text.format", "must be an object with type text, json_object, or json_schema and a schema")


def chat_of_response(taken: Taken) -> Chat:
    """The chat of a body of /v1/responses. Raises ApiError."""
    given = taken.own.get("input")
    messages: list[dict[str, Any]] = []
    if instructions := taken.text("instructions"):
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list) and given:
        for index, item in enumerate(given):
            _item(item, f"input[{index}]", messages)
    else:
        raise _wrong("input", "must be a string or a list of at least one item")
    reasoning = taken.mapping("reasoning") or {}
    variables = {} if reasoning.get("effort") is None else {"reasoning_effort": reasoning["effort"]}
    taken.ignored += [f"reasoning.{name}" for name, value in reasoning.items() if name != "effort" and value is not None]
    return Chat(
        messages=plain_messages(messages), tools=_tools(taken), variables=variables, tool_choice=_choice(taken.own.get("tool_choice")),
        parallel_tool_calls=taken.flag("parallel_tool_calls", True),
    )  # fmt: skip
