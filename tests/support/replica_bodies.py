"""Requests of each endpoint for servers whose engines are elsewhere, and what their answers say."""

from __future__ import annotations

import json
import re
from typing import Any

from server_client import Client

TEMPLATE = (
    '{% if tools %}{{ tools | tojson }} <tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>\n{% endif %}'
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
ARGUMENTS: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 25, "chat_template": TEMPLATE, "num_threads": 2}
CHAT = [{"role": "user", "content": "hello there"}]
LONG = {"seed": 5, "ignore_eos": True, "temperature": 0.9}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{200}$"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
#: Bodies of each endpoint.
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": [5, 9, 2], "max_tokens": 700, "logprobs": 2, **LONG}),
    "prompts": ("/v1/completions", {"prompt": ["ab", [1, 2, 3]], "n": 2, "max_tokens": 500, "echo": True, **LONG}),
    "chat": ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 600, "n": 3, "logprobs": True, "top_logprobs": 1, **LONG}),
    "penalties": ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 600, "presence_penalty": 0.7, "mirostat": 2, **LONG}),
    "tools": (
        "/v1/chat/completions",
        {"messages": CHAT, "max_tokens": 600, "tools": [TOOL], "tool_choice": "required", "temperature": 0.9, "seed": 5},
    ),
    "responses": ("/v1/responses", {"input": "hello", "max_output_tokens": 600, **LONG}),
    "messages": ("/v1/messages", {"messages": CHAT, "max_tokens": 600, **LONG}),
}


def normal(value: Any) -> Any:
    """An answer without what is another one each time: ids and times."""
    if isinstance(value, dict):
        return {
            key: normal(entry)
            for key, entry in value.items()
            if key not in ("id", "created", "created_at", "item_id", "completed_at", "prompt_tokens_details")
        }
    return [normal(entry) for entry in value] if isinstance(value, list) else value


def stream(client: Client, path: str, body: dict[str, Any]) -> str:
    response = client.post(path, {**body, "stream": True})
    assert response.status_code == 200, response.text
    return response.text


def joined(text: str) -> tuple[int, dict[str, str]]:
    """(number of ids, what the events of a stream say together): how a text is cut depends on time."""
    ids = set(re.findall(r'"id":"((?:cmpl|chatcmpl|msg|resp)[^"]*)"', text))
    told: dict[str, str] = {}

    def add(place: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, entry in normal(value).items():
                add(f"{place}.{value['index']}.{key}" if "index" in value else f"{place}.{key}", entry)
        elif isinstance(value, list):
            for entry in value:
                add(place, entry)
        elif isinstance(value, str) and place.rpartition(".")[2] in ("text", "content", "delta", "finish_reason", "stop_reason", "message"):
            told[place] = told.get(place, "") + value

    for line in text.splitlines():
        if line.startswith("data: {"):
            add("", json.loads(line.removeprefix("data: ")))
    return len(ids), told
