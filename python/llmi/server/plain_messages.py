"""Messages of OpenAI's form as templates take them."""

from __future__ import annotations

import json
from typing import Any

from llmi.server.limits import Limits
from llmi.server.nested import ignore_others, list_at, object_at, text_at, text_or_null, wrong

#: Parts of a content that are text, and the key that has it.
_TEXTS = {
    "text": "text", "input_text": "text", "output_text": "text", "summary_text": "text", "reasoning_text": "text", "refusal": "refusal",
}  # fmt: skip


def plain_messages(messages: object, ignored: list[str], limits: Limits, name: str = "messages") -> list[dict[str, Any]]:
    """Messages of OpenAI's form as templates take them; `name` is their field. Raises ApiError.

    A missing or null content is an empty text; the arguments of tool calls, which are JSON in a string, become the object. Further keys of
    a message stay as they are, and what the template does not read of them is named in the answer. Further keys of parts and calls are left
    out, and added to `ignored`.
    """
    if not isinstance(messages, list):
        raise wrong(name, "must be a list of messages")
    if not messages:
        raise wrong(name, "is empty: a chat has at least one message", "missing_field")
    if len(messages) > (most := limits.num_messages):
        raise wrong(name, f"has {len(messages):,} entries, more than {most:,}", "invalid_value")
    return [_plain_message(message, f"{name}[{index}]", ignored) for index, message in enumerate(messages)]


def _plain_message(message: object, where: str, ignored: list[str]) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise wrong(where, "must be an object with role and content")
    for name in ("audio", "function_call"):
        if message.get(name) is not None:
            raise wrong(
                f"{where}.{name}", f"is not offered: {'answers are text alone' if name == 'audio' else 'give tool_calls'}", "unsupported"
            )
    result = {name: value for name, value in message.items() if value is not None}
    result["content"] = plain_content(f"{where}.content", message.get("content"), ignored)
    calls = list_at(f"{where}.tool_calls", message.get("tool_calls"))
    if calls:
        result["tool_calls"] = [_plain_call(f"{where}.tool_calls[{index}]", call, ignored) for index, call in enumerate(calls)]
    else:
        result.pop("tool_calls", None)
    return result


def plain_content(where: str, content: object, ignored: list[str]) -> str | list[Any]:
    """A message's content: a text, or a list of texts and parts that are text. None is an empty text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(where, "must be a string or a list of parts")
    return [_plain_part(f"{where}[{index}]", part, ignored) for index, part in enumerate(content)]


def _plain_part(where: str, part: object, ignored: list[str]) -> object:
    """A part of a content: parts that are text under another name (a refusal, the input_text of /v1/responses) become text.

    Others are refused here: a template that goes over the parts would leave out what it does not know.
    """
    if isinstance(part, str):
        return part
    given = object_at(where, part)
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _TEXTS:
        raise wrong(where, f"is of type {str(kind)[:80]!r}, and must be of type 'text': models here read text alone", "unsupported")
    ignore_others(ignored, where, given, "type", _TEXTS[kind])
    return {"type": "text", "text": text_at(f"{where}.{_TEXTS[kind]}", given.get(_TEXTS[kind]))}


def _plain_call(where: str, call: object, ignored: list[str]) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise wrong(where, "must be an object with id, type and function: {name, arguments}")
    if call.get("type", "function") not in ("function", None):
        raise wrong(f"{where}.type", f"must be 'function', not {str(call['type'])[:80]!r}", "unsupported")
    text_or_null(f"{where}.id", call.get("id"))
    ignore_others(ignored, where, call, "id", "type", "function")
    ignore_others(ignored, f"{where}.function", function, "name", "arguments")
    arguments = plain_arguments(f"{where}.function.arguments", function.get("arguments"))
    known = {name: value for name, value in function.items() if name in ("name", "arguments")} | {"arguments": arguments}
    return {name: value for name, value in call.items() if name in ("id", "type", "function")} | {"function": known}


def plain_arguments(where: str, arguments: object) -> dict[str, Any] | str:
    """The arguments of a call, which are an object, or its JSON in a string. None, null and an empty text are no arguments.

    A string that is no JSON of an object stays as it is, as in LLM.chat: an answer that was cut off is sent again with each turn.
    """
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments) if arguments.strip() else None
        except (ValueError, RecursionError):
            return arguments
        return {} if value is None else value if isinstance(value, dict) else arguments
    return {} if arguments is None else object_at(where, arguments)


def arguments_as_objects(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with {"raw": text} where the arguments of a call are a text that is no JSON: some templates go over them by name."""
    return [
        {**message, "tool_calls": [_with_object(call) for call in calls]} if (calls := message.get("tool_calls")) else message
        for message in messages
    ]


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    text = call["function"]["arguments"]
    return {**call, "function": {**call["function"], "arguments": {"raw": text}}} if isinstance(text, str) else call
