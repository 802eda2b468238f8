"""Requests in the shapes that coding agents send, with the fields of their public sources and of published captures. Every field is
understood or named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM
from server_client import Client
from test_server_tools import TEMPLATE

EPHEMERAL = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"command": {"type": "string", "description": "x"}},
    "required": ["command"],
    "additionalProperties": False,
}
TITLE = {
    "type": "object",
    "properties": {"title": {"type": "string", "enum": ["A", "B"]}},
    "required": ["title"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(tiny_path: Callable[..., Path]) -> Iterator[Client]:
    with LLM(tiny_path(vocab_size=257), kv_cache_memory_bytes=1 << 25, chat_template=TEMPLATE) as llm:
        yield Client(llm)


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def anthropic_turn() -> dict[str, Any]:
    """A turn in Anthropic's form: adaptive thinking with an effort, edits of the context, cached blocks, a user id that is JSON in a
    string."""
    return {
        "model": "tiny",
        "max_tokens": 32000,
        "stream": True,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": json.dumps({"device_id": "0", "account_uuid": "", "session_id": "1"})},
        "system": [{"type": "text", "text": "x-header: y"}, {"type": "text", "text": "You work on code.", **EPHEMERAL}],
        "messages": [
            {"role": "user", "content": "<available-deferred-tools>\nA\n</available-deferred-tools>"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>\nx\n</system-reminder>"},
                    {"type": "text", "text": "What is here?"},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "", "signature": "c2ln"},
                    {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}, "caller": {"type": "direct"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"tool_use_id": "toolu_1", "type": "tool_result", "content": "a.py", "is_error": False, **EPHEMERAL},
                    {"type": "text", "text": "<system-reminder>y</system-reminder>"},
                ],
            },
        ],
        "tools": [{"name": "Bash", "description": "Runs.", "input_schema": SCHEMA, "eager_input_streaming": True}],
    }


HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "context-management-2025-06-27,effort-2025-11-24",
    "x-api-key": "none",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "anthropic-dangerous-direct-browser-access": "true",
    "accept-language": "*",
    "user-agent": "claude-cli/2.1.69 (external, cli)",
}


def test_turns_in_anthropics_form(client: Client) -> None:
    body = {**anthropic_turn(), "seed": 1, "stop_sequences": ["e", "\n", " "]}
    answer = client.send("POST", "/v1/messages?beta=true", json=body, headers=HEADERS)
    events = events_of(answer.text)
    assert answer.status_code == 200 and events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop", answer.text[-500:]
    ignored = next(event["llmi"]["ignored"] for event in events if event["type"] == "message_delta")
    assert {"metadata", "tools[0].eager_input_streaming", "context_management.edits[0]"} <= set(ignored)
    count = {name: value for name, value in anthropic_turn().items() if name in ("model", "messages", "system", "tools", "thinking")}
    counted = client.send("POST", "/v1/messages/count_tokens?beta=true", json=count, headers=HEADERS).json()
    assert (
        counted["input_tokens"] == events[0]["message"]["usage"]["input_tokens"] + events[0]["message"]["usage"]["cache_read_input_tokens"]
    )


def test_a_title_in_anthropics_form(client: Client) -> None:
    body = {
        "model": "tiny",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "hi"}],
        "system": [{"type": "text", "text": "Name it."}],
        "tools": [],
        "thinking": {"type": "disabled"},
        "temperature": 1,
        "output_config": {"format": {"type": "json_schema", "schema": TITLE}},
        "stream": True,
    }
    events = events_of(client.send("POST", "/v1/messages?beta=true", json=body, headers=HEADERS).text)
    text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
    assert json.loads(text)["title"] in ("A", "B")


def responses_turn() -> dict[str, Any]:
    """A turn of an agent that speaks /v1/responses: all the fields of its request, some of them null."""
    return {
        "model": "tiny",
        "instructions": "You work on code.",
        "stream": True,
        "store": False,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions instructions/>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "YQ=="},
            {"type": "function_call", "name": "shell_command", "arguments": '{"command":"ls"}', "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "a.py"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "There is a.py."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go on."}]},
        ],
        "tools": [{"type": "function", "name": "shell_command", "description": "Runs.", "strict": False, "parameters": SCHEMA}],
        "reasoning": None,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "service_tier": "auto",
        "text": {"verbosity": "medium"},
    }


def test_turns_of_responses(client: Client) -> None:
    answer = client.post("/v1/responses", {**responses_turn(), "seed": 1, "max_output_tokens": 30})
    events = events_of(answer.text)
    assert answer.status_code == 200 and events[-1]["type"] in ("response.completed", "response.incomplete"), answer.text[-500:]
    assert {"store", "include", "prompt_cache_key", "service_tier", "text.verbosity"} <= set(events[-1]["response"]["llmi"]["ignored"])
    searching = {**responses_turn(), "tools": [{"type": "web_search", "external_web_access": False}]}
    assert client.error("/v1/responses", searching)["param"] == "tools[0].type"


def test_an_answer_of_responses_with_a_schema(client: Client) -> None:
    form = {"format": {"type": "json_schema", "strict": True, "schema": TITLE, "name": "codex_output_schema"}}
    events = events_of(client.post("/v1/responses", {**responses_turn(), "tools": [], "text": form}).text)
    assert json.loads(events[-1]["response"]["output"][0]["content"][0]["text"])["title"] in ("A", "B")


def chat_turn() -> dict[str, Any]:
    """A turn of an agent that speaks OpenAI's chats through an adapter for any provider."""
    return {
        "model": "tiny",
        "max_tokens": 48,
        "temperature": 0,
        "top_p": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tool_choice": "auto",
        "messages": [
            {"role": "system", "content": "You work on code."},
            {"role": "user", "content": [{"type": "text", "text": "What is here?"}]},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "I look.",
                "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "a.py"},
        ],
        "tools": [{"type": "function", "function": {"name": "bash", "description": "Runs.", "parameters": SCHEMA, "strict": False}}],
    }


def test_turns_of_chats(client: Client) -> None:
    chunks = client.events("/v1/chat/completions", chat_turn())
    assert chunks[-1]["choices"] == [] and 0 < chunks[-1]["usage"]["completion_tokens"] <= 48
    assert client.events(
        "/v1/chat/completions", {**chat_turn(), "reasoning_effort": "high", "store": False, "max_tokens": None, "max_completion_tokens": 9}
    )
