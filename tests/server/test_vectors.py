"""/v1/embeddings, /v1/rerank and /v1/score: under openai's own client, and what is refused."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from llmi import LLM, AsyncLLM, InvalidParamsError, LlmiError
from llmi.server.front import Front
from server_client import Client
from tiny_encoders import QUERY, TEXTS, make

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LLM]]:
    """A model for vectors and one for scores."""
    opened = {}
    for name in ("bert", "bert_scores"):
        path: Path = tmp_path_factory.mktemp("models") / name
        make(name, path)
        opened[name] = LLM(path, kv_cache_memory_bytes=1 << 24)
    yield opened
    for llm in opened.values():
        llm.close()


@pytest.fixture(scope="module")
def client(models: dict[str, LLM]) -> Client:
    return Client(models["bert"])


def test_openais_client(client: Client) -> None:
    import openai

    async def asked(**body: Any) -> Any:
        transport = httpx.ASGITransport(app=client.app)
        async with openai.AsyncOpenAI(
            api_key="none", base_url="http://127.0.0.1/v1", http_client=httpx.AsyncClient(transport=transport), max_retries=0
        ) as asking:
            return await asking.embeddings.create(model="tiny", **body)

    expected = client.llm.embed(TEXTS)
    for form in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):  # without one, the client asks for base64 and decodes it
        answer = asyncio.run(asked(input=TEXTS, **form))
        assert [entry.index for entry in answer.data] == list(range(len(TEXTS))) and answer.object == "list" and answer.model == "tiny"
        for entry, output in zip(answer.data, expected, strict=True):
            values = entry.embedding
            if isinstance(values, str):
                values = np.frombuffer(base64.b64decode(values), "<f4")
            assert np.array_equal(np.asarray(values, np.float32), output.outputs.embedding)
        num_tokens = sum(len(output.prompt_token_ids) for output in expected)
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (num_tokens, num_tokens)
    ids = expected[0].prompt_token_ids
    for given in (ids, [ids]):
        [entry] = asyncio.run(asked(input=given)).data
        assert np.array_equal(np.float32(entry.embedding), expected[0].outputs.embedding)
    [entry] = asyncio.run(asked(input="a", dimensions=5, user="x")).data
    assert np.array_equal(np.float32(entry.embedding), client.llm.embed("a", dimensions=5)[0].outputs.embedding)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "prompts"),
        ({"input": 3}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [300]}, "prompts"),
        ({"input": "a", "dimensions": 65}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a" * 700}, None),
        ({"input": "a", "prompt_name": "query"}, "prompt_name"),
        ({"input": "a", "temperature": 1}, "temperature"),
    ],
)
def test_wrong_bodies(client: Client, body: dict[str, Any], param: str | None) -> None:
    response = client.post("/v1/embeddings", body)
    assert response.status_code == 400, response.text
    if param:
        assert response.json()["error"]["param"] == param


def test_long_texts_are_cut_where_the_body_says_so(client: Client) -> None:
    cut = client.ok("/v1/embeddings", {"input": "a" * 700, "truncate_prompt_tokens": -1})
    assert cut["usage"]["prompt_tokens"] == 640


def test_rerank_and_score(models: dict[str, LLM]) -> None:
    client = Client(models["bert_scores"])
    scores = [output.outputs.score for output in client.llm.score(QUERY, TEXTS)]
    answer = client.ok("/v1/rerank", {"query": QUERY, "documents": [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]], "top_n": 3})
    best = sorted(range(len(TEXTS)), key=lambda index: -scores[index])[:3]
    assert [(entry["index"], entry["relevance_score"]) for entry in answer["results"]] == [(index, scores[index]) for index in best]
    assert answer["results"][0]["document"] == {"text": TEXTS[best[0]]} and answer["usage"]["total_tokens"] > 0
    bare = client.ok("/v1/rerank", {"query": QUERY, "documents": TEXTS, "return_documents": False})
    assert len(bare["results"]) == len(TEXTS) and "document" not in bare["results"][0]
    for names in (("text_1", "text_2"), ("queries", "documents")):
        answer = client.ok("/v1/score", dict(zip(names, (QUERY, TEXTS), strict=True)))
        assert [entry["score"] for entry in answer["data"]] == scores
    for path, body in (
        ("/v1/rerank", {"query": QUERY, "documents": []}),
        ("/v1/rerank", {"query": "", "documents": ["a"]}),
        ("/v1/rerank", {"query": QUERY, "documents": [3]}),
        ("/v1/rerank", {"query": QUERY, "documents": ["a"], "top_n": 0}),
        ("/v1/score", {"text_1": "a"}),
        ("/v1/score", {"text_1": "a", "documents": ["b"]}),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b", "instruction": "c"}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/completions", {"prompt": "a"}),
    ):
        response = client.post(path, body)
        assert response.status_code == 400, (path, body, response.text)


def test_async(models: dict[str, LLM]) -> None:
    async def both() -> None:
        server = AsyncLLM(llm=models["bert"])
        vectors, more = await asyncio.gather(server.embed(TEXTS), server.embed(TEXTS[0]))
        assert [output.outputs for output in vectors] == [output.outputs for output in models["bert"].embed(TEXTS)]
        assert more[0].outputs == vectors[0].outputs
        [scored] = await AsyncLLM(llm=models["bert_scores"]).score(QUERY, TEXTS[0])
        assert scored.outputs == models["bert_scores"].score(QUERY, TEXTS[0])[0].outputs

    asyncio.run(both())


def test_replicas_make_the_same_vectors(models: dict[str, LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes share a call's parts; the part of one that dies is the other's."""
    llm = models["bert"]
    wanted = [output.outputs.embedding for output in llm.embed(TEXTS * 2, dimensions=8)]
    with Front(
        llm.model_info.path, data_parallel_size=2, kv_cache_memory_bytes=1 << 24, num_threads=2, max_num_batched_tokens=256
    ) as front:

        def check() -> None:
            for output, vector in zip(front.embed(TEXTS * 2, dimensions=8), wanted, strict=True):
                assert np.array_equal(output.outputs.embedding, vector)

        check()
        first = front._front_router.replicas[0]
        killed: list[int] = []
        send = first.send

        def kill(message: dict[str, Any]) -> None:
            if message["kind"] == "pool" and not killed:
                killed.append(first.pid)
                first.kill()
            else:
                send(message)

        monkeypatch.setattr(first, "send", kill)
        check()
        assert killed
        with pytest.raises(LlmiError, match="999"):
            front._front_router.pool([{"inputs": [[[5, 999], None, 0]], "size": None, "scores": False}])


def test_a_replica_scores(models: dict[str, LLM]) -> None:
    llm = models["bert_scores"]
    with Front(llm.model_info.path, data_parallel_size=1, kv_cache_memory_bytes=1 << 24, num_threads=1) as front:
        assert [one.outputs for one in front.score(QUERY, TEXTS)] == [one.outputs for one in llm.score(QUERY, TEXTS)]
        with pytest.raises(InvalidParamsError, match="empty text"):
            front.score("", "a")
