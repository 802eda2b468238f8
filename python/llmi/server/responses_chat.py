"""OpenAI's form of /v1/responses as a chat: items of the input become messages, tools get the form of chats."""

from __future__ import annotations

from typing import Any

from llmi.server.answer_format import constraint_of
from llmi.server.fields import Taken
from llmi.server.nested import ignore_others, list_at, object_at, refuse_others, text_at, text_or_null, wrong
from llmi.server.plain_messages import plain_arguments, plain_content, plain_messages
from llmi.server.prompts import Chat, template_variables

_ROLES = ("system", "developer", "user", "assistant", "tool")


def _texts(where: str, value: object, kinds: tuple[str, ...], ignored: list[str]) -> str:
    """The texts of parts of these types, one behind the other."""
    texts = []
    for index, part in enumerate(list_at(where, value)):
        place = f"{where}[{index}]"
        kind = object_at(place, part).get("type")
        if kind not in kinds:
            raise wrong(f"{place}.type", f"must be one of {', '.join(kinds)}, not {str(kind)[:40]!r}", "unsupported")
        ignore_others(ignored, place, part, "type", "text")
        texts.append(text_at(f"{place}.text", part.get("text")))
    return "\n".join(texts)


def _item(item: object, where: str, messages: list[dict[str, Any]], ignored: list[str]) -> None:
    """Adds one item of the input to the messages; calls and reasoning belong to the assistant's message that stands last."""
    given = object_at(where, item)
    kind = "message" if given.get("type") is None else given["type"]
    if not isinstance(kind, str) or kind not in _ITEMS:
        raise wrong(f"{where}.type", f"{str(kind)[:40]!r} is not offered: give one of {', '.join(_ITEMS)}", "unsupported")
    read, names = _ITEMS[kind]
    ignore_others(ignored, where, given, "type", *names)
    read(given, where, messages, ignored)


def _message(item: dict[str, Any], where: str, messages: list[dict[str, Any]], ignored: list[str]) -> None:
    if item.get("role") not in _ROLES:
        raise wrong(f"{where}.role", f"must be one of {', '.join(_ROLES)}", "invalid_value")
    content = plain_content(f"{where}.content", item.get("content"), ignored)
    begun = messages and messages[-1]["role"] == "assistant" and messages[-1].get("content") is None
    if item["role"] == "assistant" and begun:
        messages[-1]["content"] = content
    else:
        messages.append({"role": item["role"], "content": content})


def _call(item: dict[str, Any], where: str, messages: list[dict[str, Any]], ignored: list[str]) -> None:
    arguments = plain_arguments(f"{where}.arguments", item.get("arguments"))
    function = {"name": text_at(f"{where}.name", item.get("name")), "arguments": arguments}
    call = {"id": text_or_null(f"{where}.call_id", item.get("call_id")), "type": "function", "function": function}
    _assistants(messages).setdefault("tool_calls", []).append(call)


def _call_output(item: dict[str, Any], where: str, messages: list[dict[str, Any]], ignored: list[str]) -> None:
    output = item.get("output")
    if not isinstance(output, str | list):
        raise wrong(f"{where}.output", "must be a string or a list of texts")
    text = output if isinstance(output, str) else _texts(f"{where}.output", output, ("text", "input_text", "output_text"), ignored)
    messages.append({"role": "tool", "tool_call_id": text_or_null(f"{where}.call_id", item.get("call_id")), "content": text})


def _reasoning(item: dict[str, Any], where: str, messages: list[dict[str, Any]], ignored: list[str]) -> None:
    """What the model thought; a summary of it only where it is all there is."""
    text = _texts(f"{where}.content", item.get("content"), ("reasoning_text", "text"), ignored)
    summary = _texts(f"{where}.summary", item.get("summary"), ("summary_text", "text"), ignored)
    if text and summary:
        ignored.append(f"{where}.summary")
    if text or summary:
        messages.append({"role": "assistant", "content": None, "reasoning_content": text or summary})


#: Items of the input: what reads one, and the keys that it knows.
_ITEMS = {
    "message": (_message, ("role", "content")),
    "function_call": (_call, ("call_id", "name", "arguments")),
    "function_call_output": (_call_output, ("call_id", "output")),
    "reasoning": (_reasoning, ("content", "summary")),
}


def _assistants(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message at the end, or a new one there."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _tools(taken: Taken) -> list[dict[str, Any]] | None:
    tools = []
    names = ("name", "description", "parameters", "strict")
    for index, tool in enumerate(taken.entries("tools") or ()):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            kind = tool.get("type") if isinstance(tool, dict) else tool
            raise wrong(f"{where}.type", f"{str(kind)[:40]!r} is not offered: give tools of type function", "unsupported")
        ignore_others(taken.ignored, where, tool, "type", *names)
        tools.append({"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}})
    return tools or None


def _choice(taken: Taken) -> object:
    value = taken.own.get("tool_choice")
    if not isinstance(value, dict) or value.get("type") != "function":
        return value
    ignore_others(taken.ignored, "tool_choice", value, "type", "name")
    return {"type": "function", "function": {"name": text_at("tool_choice.name", value.get("name"))}}


def text_format(taken: Taken) -> object:
    """The constraint that `text.format` names; None: the answer is free. `text.verbosity` has no effect."""
    text = taken.mapping("text") or {}
    refuse_others("text", text, ("format", "verbosity"))
    ignore_others(taken.ignored, "text", text, "format")
    text_or_null("text.verbosity", text.get("verbosity"))
    if text.get("format") is None:
        return None
    return constraint_of("text.format", text["format"], taken.ignored, ("text", "json_object", "json_schema"))


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
            _item(item, f"input[{index}]", messages, taken.ignored)
    else:
        raise wrong("input", "must be a string or a list of at least one item")
    if not messages:
        raise wrong("input", "holds no text, so there is no chat", "invalid_value")
    reasoning = taken.mapping("reasoning") or {}
    ignore_others(taken.ignored, "reasoning", reasoning, "effort")
    effort = text_or_null("reasoning.effort", reasoning.get("effort"))
    return Chat(
        limits=taken.admission.limits,
        messages=plain_messages(messages, taken.ignored, taken.admission.limits),
        tools=_tools(taken),
        variables=template_variables(taken, {"reasoning_effort": effort}),
        tool_choice=_choice(taken),
        parallel_tool_calls=taken.flag("parallel_tool_calls", True),
        negative_prompt=taken.params.get("negative_prompt"),
    )
