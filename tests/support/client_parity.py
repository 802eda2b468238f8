"""Clients that are too large for the tests, over HTTP: what they show is what LLM.chat and LLM.generate give. `python
tests/support/client_parity.py`.

Needs `pip install langchain-openai` and the extra `server`. lm-evaluation-harness has a command of its own, tests/support/lm_eval_parity.py;
OpenAI's and Anthropic's clients are in tests/server/test_server_clients.py, and the requests that guidellm sends in tests/server/test_server_loads.py.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from llmi import LLM, AsyncLLM
from llmi.server.settings import ServerSettings
from llmi.testing import tiny_model
from server_client import TEMPLATE
from soak.rounds import Running

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


def with_langchain(url: str, llm: LLM) -> None:
    """Chats whole, streamed and with log-probabilities, completions, and an answer with a schema."""
    from langchain_openai import ChatOpenAI, OpenAI

    common: dict[str, Any] = {
        "base_url": f"{url}/v1",
        "api_key": "none",
        "model": "tiny",
        "max_tokens": 12,
        "temperature": 0.8,
        "max_retries": 0,
    }
    expected = llm.chat(CHAT, seed=3, max_tokens=12, temperature=0.8, logprobs=2)[0].outputs[0]
    pairs = [(message["role"], message["content"]) for message in CHAT]
    chat = ChatOpenAI(**common, seed=3, logprobs=True, top_logprobs=2)
    answer = chat.invoke(pairs)
    assert answer.content == expected.text
    assert expected.logprobs is not None
    told = [entry["logprob"] for entry in answer.response_metadata["logprobs"]["content"]]
    assert told == [position[token].logprob for token, position in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] == len(expected.token_ids)
    assert "".join(chunk.text for chunk in ChatOpenAI(**common, seed=3, stream_usage=True).stream(pairs)) == expected.text
    text = OpenAI(**common, seed=3).invoke("ab")
    assert text == llm.generate("ab", seed=3, max_tokens=12, temperature=0.8)[0].text
    schema = {
        "title": "Colour",
        "type": "object",
        "properties": {"name": {"enum": ["red", "blue"]}},
        "required": ["name"],
        "additionalProperties": False,
    }
    shaped = ChatOpenAI(**{**common, "max_tokens": 60}).with_structured_output(schema, method="json_schema").invoke(pairs)
    assert shaped["name"] in ("red", "blue")


def main() -> int:
    with (
        tempfile.TemporaryDirectory() as folder,
        LLM(tiny_model(vocab_size=257, path=Path(folder)), kv_cache_memory_bytes=1 << 24, chat_template=TEMPLATE) as llm,
    ):
        server = Running({"tiny": AsyncLLM(llm=llm)}, ServerSettings(port=0))
        try:
            with_langchain(f"http://127.0.0.1:{server.port}", llm)
            print("langchain-openai: equal")
        finally:
            server.tell_to_end()
            server.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
