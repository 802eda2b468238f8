"""For models whose template knows no tools: the system message tells of them, and calls are written as Hermes does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
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


_NO_ID = object()
GENERIC = dataclasses.replace(HERMES, name="generic", knows=lambda template: False, instructions=_instructions)


def in_words(messages: list[Any], instructions: str) -> list[Any]:
    """The messages for a template that knows no tools: calls and results are texts, and the instructions, where there are any, stand in the
    system message.

    Results that follow each other become one message: templates want user and assistant alternately.
    """
    result: list[Any] = []
    runs: list[tuple[int, list[str]]] = []  # where one message is made of several results, and their texts
    was_result = False
    ids: Iterator[object] = iter(())  # of the calls whose results come next
    for message in messages:
        is_result = isinstance(message, dict) and message.get("role") == "tool" and _text_of(message) is not None
        words = _in_words(message) if isinstance(message, dict) else message
        if not is_result:
            ids = _ids(message)
        elif message.get("tool_call_id") == next(ids, _NO_ID):
            words.pop("tool_call_id", None)  # their order says the same
        if is_result and was_result:
            result[-1] |= words
            runs[-1][1].append(words["content"])
        else:
            result.append(words)
            if is_result:
                runs.append((len(result) - 1, [words["content"]]))
        was_result = is_result
    for place, texts in runs:
        result[place]["content"] = "\n".join(texts)
    if not instructions:
        return result
    first = result[0] if result else None
    if isinstance(first, dict) and first.get("role") in ("system", "developer") and (text := _text_of(first)) is not None:
        return [{**first, "content": f"{text}\n\n{instructions}"}, *result[1:]]
    return [{"role": "system", "content": instructions}, *result]


def _text_of(message: dict[str, Any]) -> str | None:
    """A message's content as one text, parts joined as for a template that takes strings. None: it has none, or holds what is no text."""
    content = message.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [text for text in parts if isinstance(text, str)]
    return "\n".join(texts) if len(texts) == len(parts) else None


def _ids(message: object) -> Iterator[object]:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return (call.get("id") for call in calls if isinstance(call, dict)) if isinstance(calls, list) else iter(())


def _in_words(message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") == "tool" and (text := _text_of(message)) is not None:
        return {**message, "role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
    return _with_calls(message)


def calls_in_words(message: object) -> object:
    """A message whose calls are part of its text."""
    return _with_calls(message) if isinstance(message, dict) else message


def _with_calls(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    text = "" if message.get("content") is None else _text_of(message)
    if text is None:  # content that is no text is refused later, by its name
        return message
    if message.get("role") == "assistant" and isinstance(calls, list) and calls:
        texts = [text] if text else []
        texts += [f"<tool_call>\n{_call(call)}\n</tool_call>" for call in calls]
        rest = {key: value for key, value in message.items() if key not in ("tool_calls", "content")}
        return {**rest, "content": "\n".join(texts)}
    return message


def _call(call: object) -> str:
    function = call.get("function", call) if isinstance(call, dict) else {}
    name, arguments = (function.get(key) for key in ("name", "arguments")) if isinstance(function, dict) else (None, None)
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
