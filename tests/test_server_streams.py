"""An answer that comes as a stream is the one that comes whole, in every form."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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
        assert "".join(texts) == completion.text and len(texts) == len(completion.token_ids)
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

    async def aclose(self) -> None:
        self._steps = []


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Callable[[RequestOutput, list[str]], None]:
    def patched(output: RequestOutput, texts: list[str]) -> None:
        monkeypatch.setattr(generation.Job, "reader", lambda *_: OneByOne(output, texts))

    return patched


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
