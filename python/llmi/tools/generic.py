"""For models whose template knows no tools: the system message tells of them, and calls are written as Hermes does."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from llmi.tools.functions import Function
from llmi.tools.hermes import HERMES

_RULES = """You can call functions. These are their JSON schemas, one a line, between <tools> and </tools>:
<tools>
{tools}
</tools>
To call a function, answer with its name and arguments as JSON between <tool_call> and </tool_call>, like this:
<tool_call>
{{"name": "a name", "arguments": {{"an argument": "a value"}}}}
</tool_call>
The result comes in the next message, between <tool_response> and </tool_response>."""


def _instructions(functions: list[Function]) -> str:
    return _RULES.format(tools="\n".join(json.dumps(function.given["function"], ensure_ascii=False) for function in functions))


GENERIC = dataclasses.replace(HERMES, name="generic", knows=lambda template: False, instructions=_instructions)


def in_words(messages: list[Any], instructions: str) -> list[Any]:
    """The messages for a template that knows no tools: calls and results are texts, and the instructions, where there are any, stand in the system message.

    Results that follow each other become one message: templates want user and assistant alternately.
    """
    result: list[Any] = []
    was_result = False
    for message in messages:
        is_result = isinstance(message, dict) and message.get("role") == "tool" and isinstance(message.get("content"), str)
        words = _in_words(message) if isinstance(message, dict) else message
        if is_result and was_result:
            result[-1] = {**words, "content": f"{result[-1]['content']}\n{words['content']}"}
        else:
            result.append(words)
        was_result = is_result
    if not instructions:
        return result
    first = result[0] if result else None
    if isinstance(first, dict) and first.get("role") in ("system", "developer") and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{instructions}"}, *result[1:]]
    return [{"role": "system", "content": instructions}, *result]


def _in_words(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool" and isinstance(message.get("content"), str):
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    return _with_calls(message)


def calls_in_words(message: object) -> object:
    """A message whose calls are part of its text."""
    return _with_calls(message) if isinstance(message, dict) else message


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if message.get("role") == "assistant" and isinstance(calls, list) and calls:
        texts = [message["content"]] if isinstance(message.get("content"), str) and message["content"] else []
        texts += [f"<tool_call>\n{_call(call)}\n</tool_call>" for call in calls]
        rest = {key: value for key, value in message.items() if key not in ("tool_calls", "content")}
        return {**rest, "content": "\n".join(texts)}
    return message


def _call(call: object) -> str:
    function = call.get("function", call) if isinstance(call, dict) else {}
    name, arguments = (function.get(key) for key in ("name", "arguments")) if isinstance(function, dict) else (None, None)
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
