"""An answer that comes as a stream is the one that comes whole, in every form."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM
from llmi.outputs.results import RequestOutput
from llmi.server import generation
from server_client import Client, tiny_llm

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def client(tiny_path: Callable[..., Path]) -> Iterator[Client]:
    with tiny_llm(tiny_path) as llm:
        yield Client(llm)


class OneByOne:
    """Stands in for the reader of a request: its output comes token by token, with these texts."""

    def __init__(self, output: RequestOutput, texts: list[str]) -> None:
        [completion] = output.outputs
        assert len(texts) == len(completion.token_ids)
        self._whole = dataclasses.replace(output, outputs=[dataclasses.replace(completion, text="".join(texts))])
        last = len(texts) - 1
        self._steps = [
            dataclasses.replace(
                output,
                prompt_logprobs=output.prompt_logprobs if index == 0 else None,
                outputs=[
                    dataclasses.replace(
                        completion,
                        text=text,
                        token_ids=completion.token_ids[index : index + 1],
                        logprobs=None if completion.logprobs is None else completion.logprobs[index : index + 1],
                        finish_reason=completion.finish_reason if index == last else None,
                    )
                ],
                finished=index == last,
            )
            for index, text in enumerate(texts)
        ]
        self._on_news: Callable[[], None] = lambda: None

    async def start(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        on_news()

    def take(self) -> RequestOutput | None:
        asyncio.get_running_loop().call_soon(self._on_news)
        return self._steps.pop(0) if self._steps else None

    async def __anext__(self) -> RequestOutput:
        return self._whole

    async def aclose(self) -> None:
        self._steps = []


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[RequestOutput, list[str]], None]:
    def patched(output: RequestOutput, texts: list[str]) -> None:
        monkeypatch.setattr(generation.Job, "reader", lambda *_: OneByOne(output, texts))

    return patched


#: Writes calls as Qwen's templates do, and reasoning.
THINKS = (
    '{% if tools %}{{ tools | tojson }} <tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>\n{% endif %}'
    "{% for m in messages %}<{{ m['role'] }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def thinker(tiny_path: Callable[..., Path]) -> Iterator[Client]:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 24, chat_template=THINKS) as llm:
        yield Client(llm)


def typed_events(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream without [DONE]."""
    text = client.post(path, {**body, "stream": True}).text
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


def test_the_log_probability_of_an_end_of_text(client: Client, one_by_one: Callable[[RequestOutput, list[str]], None]) -> None:
    """It comes in a step of its own, without text."""
    given: dict[str, Any] = {"seed": 1, "allowed_token_ids": [98, 99, 100], "eos_token_id": [100], "min_tokens": 3}
    body = {"input": "hi", **given, "include": ["message.output_text.logprobs"]}
    output = client.llm.chat(HI, max_tokens=None, logprobs=0, **given)[0]
    ids = output.outputs[0].token_ids
    assert len(ids) > 2 and ids[-1] == 100
    entries = client.ok(RESPONSES, body)["output"][0]["content"][0]["logprobs"]
    assert [entry["llmi"]["token_id"] for entry in entries] == ids
    one_by_one(output, [*output.outputs[0].text, ""])
    events = typed_events(client, RESPONSES, body)
    assert [entry for event in events if event["type"] == "response.output_text.delta" for entry in event["logprobs"]] == entries
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == entries


CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
THOUGHT = "<think>hm</think>"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (f"{CALL}\n{CALL}<tool_call>{{", ["tool_use", "tool_use", "text"]),
        (f"a{CALL}b{CALL}", ["text", "tool_use", "text", "tool_use"]),
        (f"{THOUGHT}{CALL}", ["thinking", "tool_use"]),
        ("<think>hm", ["thinking"]),
        (f"{THOUGHT}a", ["thinking", "text"]),
        ("", ["text"]),
    ],
)
def test_blocks_of_messages(thinker: Client, text: str, kinds: list[str], one_by_one: Callable[[RequestOutput, list[str]], None]) -> None:
    """As many, in the same order, with the same content."""
    body = {
        "messages": HI,
        "max_tokens": 2,
        "seed": 1,
        "tools": [{"name": "weather", "description": "", "input_schema": {"type": "object"}}],
    }
    output = thinker.llm.generate("a", max_tokens=len(text) or 1, ignore_eos=True)[0]
    one_by_one(output, [*text] or [""])
    whole = thinker.ok(MESSAGES, body)
    assert [block["type"] for block in whole["content"]] == kinds
    blocks: list[dict[str, Any]] = []
    for event in typed_events(thinker, MESSAGES, body):
        if event["type"] == "content_block_start":
            blocks.append(
                {**event["content_block"], "input": ""} if event["content_block"]["type"] == "tool_use" else event["content_block"]
            )
        if event["type"] == "content_block_delta":
            for name, value in event["delta"].items():
                if name != "type":
                    blocks[event["index"]][{"partial_json": "input"}.get(name, name)] += value
        if event["type"] == "message_delta":
            assert event["delta"]["stop_reason"] == whole["stop_reason"]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"])
    assert blocks == whole["content"]
