"""Streams as OpenAI's and Anthropic's own clients put them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from llmi import LLM
from server_client import Served

MESSAGES: Any = [{"role": "user", "content": "hi"}]
#: It knows no tools: they, calls and results become texts of the messages.
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture(scope="module")
def served(tiny_path: Callable[..., Path]) -> Iterator[Served]:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 24, chat_template=TEMPLATE) as llm:
        server = Served(llm)
        yield server
        server.close()


_FUNCTION: Any = {
    "name": "weather",
    "description": "The weather.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def test_calls_by_the_clients_own_accumulators(served: Served) -> None:
    """Each client puts the pieces of a stream together itself: what it makes of two calls is what LLM.chat made."""
    tools: Any = [{"type": "function", "function": _FUNCTION}]
    for seed in range(100):
        expected = served.llm.chat(MESSAGES, tools=tools, tool_choice="required", seed=seed, max_tokens=400)[0].outputs[0]
        if len(expected.tool_calls) == 2:
            break
    calls = [(call.id, call.name, call.arguments) for call in expected.tool_calls]
    assert len(calls) == 2
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        with client.chat.completions.stream(
            model="tiny", messages=MESSAGES, tools=tools, tool_choice="required", seed=seed, max_tokens=400
        ) as stream:
            events = list(stream)
            told = stream.get_final_completion().choices[0].message.tool_calls
        assert told is not None
        assert [(call.id, call.function.name, call.function.parsed_arguments) for call in told] == calls
        done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
        assert [(event.name, event.parsed_arguments) for event in done] == [call[1:] for call in calls]
        entries = [event.chunk.choices[0].delta.tool_calls or [] for event in events if event.type == "chunk"]
        assert {len(each) for each in entries} == {0, 1}  # instructor, among others, reads the first entry alone
        with client.responses.stream(
            model="tiny",
            input="hi",
            tools=[{"type": "function", **_FUNCTION}],
            tool_choice="required",
            max_output_tokens=400,
            extra_body={"seed": seed},
        ) as answer:
            output = answer.get_final_response().output
        assert [(item.call_id, item.name, item.parsed_arguments) for item in output if item.type == "function_call"] == calls
    tool: Any = {"name": "weather", "description": "The weather.", "input_schema": _FUNCTION["parameters"], "strict": True}
    with anthropic.Anthropic(base_url=served.url, api_key="none") as claude:
        any_tool: Any = {"type": "any"}
        with claude.messages.stream(
            model="tiny", messages=MESSAGES, tools=[tool], tool_choice=any_tool, max_tokens=400, extra_body={"seed": seed}
        ) as message:
            blocks = message.get_final_message().content
    assert [(block.id, block.name, block.input) for block in blocks if block.type == "tool_use"] == calls
