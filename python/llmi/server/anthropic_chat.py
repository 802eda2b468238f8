"""Anthropic's form of a chat, as OpenAI's: what coding agents send to /v1/messages becomes what templates take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmi.server.answer_format import constraint_of
from llmi.server.fields import Taken
from llmi.server.nested import flag_at, ignore_others, list_at, object_at, refuse_others, text_at, text_or_null, wrong
from llmi.server.plain_messages import plain_messages
from llmi.server.prompts import Chat, template_variables


def _text_of(content: object, where: str, ignored: list[str]) -> str:
    """A text, or the texts of blocks, one behind the other."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise wrong(where, "must be a string or a list of blocks")
    return "\n".join([_text_block(block, f"{where}[{index}]", ignored) for index, block in enumerate(content)])


def _text_block(block: object, where: str, ignored: list[str]) -> str:
    kind = block.get("type") if isinstance(block, dict) else block
    if not isinstance(block, dict) or kind != "text":
        raise wrong(where, f"must be a block of type text, not {str(kind)[:40]!r}: models take text alone", "unsupported")
    ignore_others(ignored, where, block, "type", "text")
    return text_at(f"{where}.text", block.get("text"))


def _user(content: list[Any], where: str, ignored: list[str]) -> list[dict[str, Any]]:
    """A user's blocks: results of tools become messages of their own, in front of the text."""
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        if not isinstance(block, dict) or block.get("type") != "tool_result":
            texts.append(_text_block(block, place, ignored))
            continue
        ignore_others(ignored, place, block, "type", "tool_use_id", "content", "is_error")
        text = _text_of(block.get("content"), f"{place}.content", ignored)
        if flag_at(f"{place}.is_error", block.get("is_error")):
            text = f"Error: {text}"
        results.append({"role": "tool", "tool_call_id": text_at(f"{place}.tool_use_id", block.get("tool_use_id")), "content": text})
    return [*results, *([{"role": "user", "content": "\n".join(texts)}] if texts or not results else [])]


def _assistant(content: list[Any], where: str, ignored: list[str]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant"}
    texts, calls, thoughts = [], [], []
    for index, block in enumerate(content):
        place = f"{where}[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            calls.append(_call(block, place, ignored))
        elif kind == "thinking":
            ignore_others(ignored, place, {**block, "signature": block.get("signature") or None}, "type", "thinking")
            thoughts.append(text_at(f"{place}.thinking", block.get("thinking")))
        elif kind == "redacted_thinking":  # of another model, and not to be read
            ignored.append(place)
        else:
            texts.append(_text_block(block, place, ignored))
    message["content"] = "\n".join(texts)
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _call(block: dict[str, Any], where: str, ignored: list[str]) -> dict[str, Any]:
    ignore_others(ignored, where, block, "type", "id", "name", "input")
    function = {"name": text_at(f"{where}.name", block.get("name")), "arguments": object_at(f"{where}.input", block.get("input", {}))}
    return {"id": text_or_null(f"{where}.id", block.get("id")), "type": "function", "function": function}


def _messages(given: object, ignored: list[str]) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise wrong("messages", "must be a list of at least one message")
    result: list[dict[str, Any]] = []
    readers: dict[str, Callable[[list[Any], str, list[str]], list[dict[str, Any]]]] = {"user": _user, "assistant": _assistant}
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise wrong(where, "must be an object with role and content")
        if unknown := [name for name in message if name not in ("role", "content", "id", "cache_control")]:
            raise wrong(f"{where}.{unknown[0][:80]}", "is no field of a message", "unknown_field")
        ignore_others(ignored, where, message, "role", "content")
        role, content = message.get("role"), message.get("content")
        if role == "system":
            result.append({"role": "system", "content": _text_of(content, f"{where}.content", ignored)})
            continue
        if not isinstance(role, str) or role not in readers:
            raise wrong(f"{where}.role", f"must be user, assistant or system, not {str(role)[:40]!r}", "invalid_value")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            raise wrong(f"{where}.content", "must be a string or a list of blocks")
        result += readers[role](blocks, f"{where}.content", ignored)
    return result


def _tools(taken: Taken) -> list[dict[str, Any]] | None:
    return [_tool(tool, f"tools[{index}]", taken.ignored) for index, tool in enumerate(taken.entries("tools") or ())] or None


def _tool(tool: object, where: str, ignored: list[str]) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise wrong(where, "must be an object with name and input_schema")
    if tool.get("type", "custom") not in ("custom", None):
        raise wrong(f"{where}.type", f"{str(tool['type'])[:40]!r} runs on a server of its maker and is not offered here", "unsupported")
    schema = tool.get("input_schema")
    function = {
        "name": tool["name"],
        "description": text_or_null(f"{where}.description", tool.get("description")) or "",
        "parameters": {"type": "object"} if schema is None else object_at(f"{where}.input_schema", schema),
    }
    if tool.get("strict") is not None:
        function["strict"] = flag_at(f"{where}.strict", tool["strict"])
    ignore_others(ignored, where, tool, "name", "description", "input_schema", "type", "strict")
    return {"type": "function", "function": function}


def _choice(taken: Taken) -> tuple[object, bool]:
    """OpenAI's (tool_choice, parallel_tool_calls)."""
    choice = taken.mapping("tool_choice")
    if choice is None:
        return None, True
    several = not flag_at("tool_choice.disable_parallel_tool_use", choice.get("disable_parallel_tool_use"))
    words = {"auto": "auto", "any": "required", "none": "none"}
    if choice.get("type") == "tool":
        ignore_others(taken.ignored, "tool_choice", choice, "type", "name", "disable_parallel_tool_use")
        return {"type": "function", "function": {"name": text_at("tool_choice.name", choice.get("name"))}}, several
    if not isinstance(choice.get("type"), str) or choice["type"] not in words:
        raise wrong("tool_choice.type", "must be auto, any, tool or none", "invalid_value")
    ignore_others(taken.ignored, "tool_choice", choice, "type", "disable_parallel_tool_use")
    return words[choice["type"]], several


def _variables(taken: Taken, template: str) -> dict[str, Any]:
    """The template's variables for `thinking` and `output_config.effort`; what the template does not look at is named as ignored."""
    variables: dict[str, Any] = {}
    thinking = taken.mapping("thinking")
    if thinking is not None:
        kind = thinking.get("type")
        if kind not in ("enabled", "disabled", "adaptive"):
            raise wrong("thinking.type", "must be enabled, disabled or adaptive", "invalid_value")
        if "enable_thinking" in template:
            variables["enable_thinking"] = kind != "disabled"
        elif kind != "disabled":
            taken.ignored.append("thinking")
        ignore_others(taken.ignored, "thinking", thinking, "type")
    config = taken.mapping("output_config") or {}
    refuse_others("output_config", config, ("effort", "format"))
    effort = text_or_null("output_config.effort", config.get("effort"))
    if effort is not None:
        if "reasoning_effort" in template:
            variables["reasoning_effort"] = effort
        else:
            taken.ignored.append("output_config.effort")
    return template_variables(taken, variables)


def output_format(taken: Taken) -> object:
    """The constraint that `output_config.format` names; None: the answer is free."""
    value = (taken.mapping("output_config") or {}).get("format")
    return None if value is None else constraint_of("output_config.format", value, taken.ignored, kinds=("json_schema",))


def _check_context(taken: Taken) -> None:
    """`context_management`: to keep or to clear earlier thinking is the template's matter; edits that clear other things are refused by
    name."""
    management = taken.mapping("context_management") or {}
    ignore_others(taken.ignored, "context_management", management, "edits")
    for index, edit in enumerate(list_at("context_management.edits", management.get("edits"))):
        where = f"context_management.edits[{index}]"
        kind = text_at(f"{where}.type", object_at(where, edit).get("type"))
        if not kind.startswith("clear_thinking"):
            raise wrong(where, f"of type {kind[:40]!r} is not offered: nothing of a chat is left out here", "unsupported")
        taken.ignored.append(where)


def chat_of_messages(taken: Taken, template: str) -> Chat:
    """The chat of a body in Anthropic's form. A last message of the assistant is continued. Raises ApiError."""
    _check_context(taken)
    system = _text_of(taken.own.get("system"), "system", taken.ignored)
    messages = [*([{"role": "system", "content": system}] if system else []), *_messages(taken.own.get("messages"), taken.ignored)]
    continued = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
    choice, several = _choice(taken)
    return Chat(
        limits=taken.admission.limits,
        messages=plain_messages(messages, taken.ignored, taken.admission.limits),
        tools=_tools(taken),
        variables=_variables(taken, template),
        add_generation_prompt=not continued,
        continue_final_message=continued,
        tool_choice=choice,
        parallel_tool_calls=several,
        negative_prompt=taken.params.get("negative_prompt"),
    )
