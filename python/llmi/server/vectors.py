"""/v1/embeddings in OpenAI's form, /v1/rerank in Jina's and Cohere's, /v1/score in vLLM's."""

from __future__ import annotations

import base64
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.base.kinds import Choice, Maybe, Whole
from llmi.outputs.pooling import EmbeddingRequestOutput, ScoringRequestOutput
from llmi.pooling.calls import Asked
from llmi.pooling.calls import embed as embed_texts
from llmi.pooling.calls import score as score_pairs
from llmi.server.answer import new_id
from llmi.server.errors import ApiError
from llmi.server.fields import EMBEDDINGS, RERANK, SCORE, Taken
from llmi.server.nested import text_at, wrong
from llmi.server.respond import json_response
from llmi.server.served import Served
from llmi.server.state import prepare, take

_MOST_TEXTS = 2048
_POOL = "vectors"


def _asked(taken: Taken) -> Asked:
    return Asked(
        truncate_prompt_tokens=taken.own.get("truncate_prompt_tokens"),
        parse_special=taken.flag("parse_special"),
        check=taken.admission.caller.check_context,
    )


def _answer(model: Served, taken: Taken, prefix: str, num_tokens: int, **more: object) -> Response:
    head = {"id": new_id(prefix), "created": int(time.time()), "model": model.name}
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return json_response({**head, **more, "usage": usage, "llmi": {"ignored": taken.ignored}})


def _num_tokens(outputs: list[EmbeddingRequestOutput] | list[ScoringRequestOutput]) -> int:
    return sum(len(output.prompt_token_ids) for output in outputs)


async def embeddings(request: Request) -> Response:
    """Vectors of texts or token ids, as numbers or as base64 of their little-endian float32."""
    taken, model = await take(request, EMBEDDINGS)
    texts = taken.own.get("input")
    if texts is None:
        raise wrong("input", "is missing: give a string, a list of token ids, or a list of these", "missing_field")
    if not isinstance(texts, str | list) or not texts:
        raise wrong("input", "must be a string that is not empty, a list of token ids, or a list of these")
    _check_number("input", texts if isinstance(texts, list) and not isinstance(texts[0], int) else [])
    form = Maybe(Choice(("float", "base64"))).parse("encoding_format", taken.own.get("encoding_format"))
    size, name = taken.own.get("dimensions"), taken.own.get("prompt_name")

    def work() -> tuple[list[EmbeddingRequestOutput], list[dict[str, Any]]]:
        outputs = embed_texts(model.llm, texts, _asked(taken), name, size)
        vectors = (output.outputs.embedding.astype("<f4") for output in outputs)
        values = [base64.b64encode(vector.tobytes()).decode() if form == "base64" else vector.tolist() for vector in vectors]
        return outputs, [{"index": index, "object": "embedding", "embedding": value} for index, value in enumerate(values)]

    outputs, data = await prepare(request, taken, work, _POOL)
    return _answer(model, taken, "embd-", _num_tokens(outputs), object="list", data=data)


async def rerank(request: Request) -> Response:
    """Documents by how well they answer a query, the best first."""
    taken, model = await take(request, RERANK)
    query, documents = text_at("query", taken.own.get("query")), _documents(taken.own.get("documents"))
    most = Maybe(Whole(1, 2**31 - 1, "None or an integer of 1 or more")).parse("top_n", taken.own.get("top_n"))
    outputs = await prepare(request, taken, lambda: _scores(model, taken, query, documents), _POOL)
    order = sorted(range(len(outputs)), key=lambda index: (-outputs[index].outputs.score, index))[:most]
    shown = taken.flag("return_documents", True)
    results = [
        {"index": index, "relevance_score": outputs[index].outputs.score, **({"document": {"text": documents[index]}} if shown else {})}
        for index in order
    ]
    return _answer(model, taken, "rerank-", _num_tokens(outputs), results=results)


async def score(request: Request) -> Response:
    """Scores of pairs: one text with each of others, or as many of both."""
    taken, model = await take(request, SCORE)
    own = taken.own
    if ("text_1" in own or "text_2" in own) == ("queries" in own or "documents" in own):
        raise ApiError(400, "give text_1 and text_2, or queries and documents", param="text_1", code="contradiction")
    first, second = (own.get(name) for name in (("text_1", "text_2") if "text_1" in own else ("queries", "documents")))
    for name, given in (("text_1", first), ("text_2", second)):
        _check_number(name, given if isinstance(given, list) else [])
    outputs = await prepare(request, taken, lambda: _scores(model, taken, first, second), _POOL)
    data = [{"index": index, "object": "score", "score": output.outputs.score} for index, output in enumerate(outputs)]
    return _answer(model, taken, "score-", _num_tokens(outputs), object="list", data=data)


def _scores(model: Served, taken: Taken, queries: object, documents: object) -> list[ScoringRequestOutput]:
    return score_pairs(model.llm, queries, documents, _asked(taken), taken.own.get("instruction"))


def _documents(given: object) -> list[str]:
    """Texts, or objects with a text."""
    if not isinstance(given, list) or not given:
        raise wrong("documents", "must be a list of at least one text")
    _check_number("documents", given)
    texts = [entry.get("text") if isinstance(entry, dict) and set(entry) == {"text"} else entry for entry in given]
    return [text_at(f"documents[{index}]", text) for index, text in enumerate(texts)]


def _check_number(name: str, given: list[Any]) -> None:
    if len(given) > _MOST_TEXTS:
        raise wrong(name, f"has {len(given):,} entries, at most {_MOST_TEXTS:,} are taken in one request", "invalid_value")
