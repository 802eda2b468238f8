"""Anthropic's form of a chat, as OpenAI's: what coding agents send to /v1/messages becomes what templates take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmi.server.errors import ApiError
from llmi.server.fields import Taken
from llmi.server.prompts import Chat, plain_messages


def _wrong(where: str, what: str, code: str = "invalid_type") -> ApiError:
    return ApiError(400, f"{where} {what}", param=where, code=code)


def _text_of(content: object, where: str) -> str:
    """A text, or the texts of blocks, one behind the other."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise _wrong(where, "must be a string or a list of blocks")
    texts = []
    for index, block in enumerate(content):
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            kind = block.get("type") if isinstance(block, dict) else block
            raise _wrong(
                f"{where}[{index}]", f"must be a block of type text, not {str(kind)[:40]!r}: models take text alone", "unsupported"
            )
        texts.append(block["text"])
    return "\n".join(texts)


def _user(content: list[Any], where: str) -> list[dict[str, Any]]:
    """A user's blocks: results of tools become messages of their own, in front of the text."""
    results: list[dict[str, Any]] = []
    texts: list[Any] = []
    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        if isinstance(block, dict) and block.get("type") == "tool_result":
            if not isinstance(block.get("tool_use_id"), str):
                raise _wrong(f"{place}.tool_use_id", "must be a string")
            text = _text_of(block.get("content"), f"{place}.content")
            results.append(
                {"role": "tool", "tool_call_id": block["tool_use_id"], "content": f"Error: {text}" if block.get("is_error") else text}
            )
        else:
            texts.append(block)
    text = _text_of(texts, where)
    return [*results, *([{"role": "user", "content": text}] if texts else [])]


def _assistant(content: list[Any], where: str) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant"}
    texts, calls, thoughts = [], [], []
    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            if not isinstance(block.get("name"), str) or not isinstance(block.get("input", {}), dict):
                raise _wrong(place, "must have a name and an input that is an object")
            calls.append(
                {"id": block.get("id"), "type": "function", "function": {"name": block["name"], "arguments": block.get("input", {})}}
            )
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind != "redacted_thinking":  # of another model, and not to be read
            texts.append(block)
    message["content"] = _text_of(texts, where)
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _messages(given: object) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise _wrong("messages", "must be a list of at least one message")
    result: list[dict[str, Any]] = []
    readers: dict[str, Callable[[list[Any], str], list[dict[str, Any]]]] = {"user": _user, "assistant": _assistant}
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise _wrong(where, "must be an object with role and content")
        if unknown := [name for name in message if name not in ("role", "content", "id", "cache_control")]:
            raise _wrong(f"{where}.{unknown[0][:80]}", "is no field of a message", "unknown_field")
        role, content = message.get("role"), message.get("content")
        if role == "system":
            result.append({"role": "system", "content": _text_of(content, f"{where}.content")})
            continue
        if not isinstance(role, str) or role not in readers:
            raise _wrong(f"{where}.role", f"must be user, assistant or system, not {str(role)[:40]!r}", "invalid_value")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            raise _wrong(f"{where}.content", "must be a string or a list of blocks")
        result += readers[role](blocks, f"{where}.content")
    return result


def _tools(taken: Taken) -> list[dict[str, Any]] | None:
    tools = []
    for index, tool in enumerate(taken.entries("tools") or ()):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise _wrong(where, "must be an object with name and input_schema")
        if tool.get("type", "custom") not in ("custom", None):
            raise _wrong(
                f"{where}.type", f"{str(tool['type'])[:40]!r} runs on a server of its maker and is not offered here", "unsupported"
            )
        function = {
            "name": tool["name"],
            "description": tool.get("description") or "",
            "parameters": tool.get("input_schema") or {"type": "object"},
        }
        if tool.get("strict") is not None:
            function["strict"] = tool["strict"]
        tools.append({"type": "function", "function": function})
        taken.ignored += [f"{where}.{name}" for name in tool if name not in ("name", "description", "input_schema", "type", "strict")]
    return tools or None


def _choice(taken: Taken) -> tuple[object, bool]:
    """OpenAI's (tool_choice, parallel_tool_calls)."""
    choice = taken.mapping("tool_choice")
    if choice is None:
        return None, True
    several = choice.get("disable_parallel_tool_use") is not True
    words = {"auto": "auto", "any": "required", "none": "none"}
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}, several
    if not isinstance(choice.get("type"), str) or choice["type"] not in words:
        raise _wrong("tool_choice.type", "must be auto, any, tool or none", "invalid_value")
    return words[choice["type"]], several


def _variables(taken: Taken, template: str) -> dict[str, Any]:
    """The template's variables for `thinking` and `output_config.effort`; what the template does not look at is named as ignored."""
    variables: dict[str, Any] = {}
    thinking = taken.mapping("thinking")
    if thinking is not None:
        kind = thinking.get("type")
        if kind not in ("enabled", "disabled", "adaptive"):
            raise _wrong("thinking.type", "must be enabled, disabled or adaptive", "invalid_value")
        if "enable_thinking" in template:
            variables["enable_thinking"] = kind != "disabled"
        elif kind != "disabled":
            taken.ignored.append("thinking")
        taken.ignored += [f"thinking.{name}" for name in thinking if name != "type"]
    config = taken.mapping("output_config") or {}
    for name, value in config.items():
        if name not in ("effort", "format"):
            raise _wrong(f"output_config.{name[:80]}", "is no field of output_config", "unknown_field")
        if name == "effort" and value is not None:
            if "reasoning_effort" in template:
                variables["reasoning_effort"] = value
            else:
                taken.ignored.append("output_config.effort")
    return variables


def output_format(taken: Taken) -> object:
    """The constraint that `output_config.format` names; None: the answer is free."""
    value = (taken.mapping("output_config") or {}).get("format")
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("type") != "json_schema" or not isinstance(value.get("schema"), dict | bool):
        raise _wrong("output_config.format", "must be an object with type json_schema and a schema")
    return {"json": value["schema"]}


def check_context(taken: Taken) -> None:
    """`context_management`: to keep or to clear earlier thinking is the template's matter; edits that clear other things are refused by name."""
    for index, edit in enumerate((taken.mapping("context_management") or {}).get("edits") or ()):
        kind = str(edit.get("type") if isinstance(edit, dict) else edit)
        if not kind.startswith("clear_thinking"):
            raise _wrong(
                f"context_management.edits[{index}]",
                f"of type {kind[:40]!r} is not offered: nothing of a chat is left out here",
                "unsupported",
            )
        taken.ignored.append(f"context_management.edits[{index}]")


def chat_of_messages(taken: Taken, template: str) -> Chat:
    """The chat of a body in Anthropic's form. A last message of the assistant is continued. Raises ApiError."""
    check_context(taken)
    system = _text_of(taken.own.get("system"), "system")
    messages = [*([{"role": "system", "content": system}] if system else []), *_messages(taken.own.get("messages"))]
    continued = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    choice, several = _choice(taken)
    return Chat(
        messages=plain_messages(messages), tools=_tools(taken), variables=_variables(taken, template), add_generation_prompt=not continued,
        continue_final_message=continued, tool_choice=choice, parallel_tool_calls=several,
    )  # fmt: skip
