"""Requests in the shapes that load generators send: a fixed number of tokens, streamed, with usage in each chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server_client import Client, tiny_llm

COMMON = {"model": "tiny", "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stop": None, "ignore_eos": True}


@pytest.fixture(scope="module")
def client(tiny_path: Callable[..., Path]) -> Iterator[Client]:
    with tiny_llm(tiny_path) as llm:
        yield Client(llm)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "ab", "max_tokens": 9}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}]}], "max_tokens": 9, "max_completion_tokens": 9},
        ),
    ],
)
def test_a_load_of_a_fixed_length(client: Client, path: str, body: dict[str, Any]) -> None:
    """guidellm's: usage grows with each chunk, and the last one has all of it."""
    chunks = client.events(path, {**COMMON, **body})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 9 and chunks[-1]["choices"] == []
    ended = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert ended == ["length"]


def test_vllms_and_sglangs_own_loads(client: Client) -> None:
    vllm = {
        "model": "tiny",
        "prompt": "ab",
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 5,
        "logprobs": None,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    sglang = {"model": "tiny", "prompt": "ab", "temperature": 0.0, "best_of": 1, "max_tokens": 5, "ignore_eos": True}
    assert client.events("/v1/completions", vllm)[-1]["usage"]["completion_tokens"] == 5
    texts = [
        "".join(choice["text"] for chunk in client.events("/v1/completions", body) for choice in chunk["choices"])
        for body in (vllm, sglang)
    ]
    assert texts[0] == texts[1]
