"""The lists of fields: every field of the published request schemas is in one, and all parameters are understood."""

from __future__ import annotations

from typing import Any

import pytest

from llmi.errors import InvalidParamsError
from llmi.params.options import SAMPLING
from llmi.server.errors import ApiError
from llmi.server.fields import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, NOT_OVER_HTTP, RESPONSES, Endpoint

ENDPOINTS = {"chat": CHAT, "completions": COMPLETIONS, "messages": MESSAGES, "responses": RESPONSES}


def published(kind: type) -> set[str]:
    """The names of a TypedDict's fields, inherited ones too."""
    return {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})} | set(getattr(kind, "__annotations__", {}))


def schemas() -> list[tuple[Endpoint, set[str]]]:
    from anthropic.types import message_count_tokens_params, message_create_params
    from anthropic.types.beta import message_create_params as beta_params
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_params
    from openai.types.responses import response_create_params

    return [
        (CHAT, published(chat_params.CompletionCreateParamsNonStreaming) | published(chat_params.CompletionCreateParamsStreaming)),
        (COMPLETIONS, published(completion_create_params.CompletionCreateParamsNonStreaming) | {"stream"}),
        (MESSAGES, published(message_create_params.MessageCreateParamsBase) | published(beta_params.MessageCreateParamsBase) | {"stream"}),
        (COUNT_TOKENS, published(message_count_tokens_params.MessageCountTokensParams)),
        (RESPONSES, published(response_create_params.ResponseCreateParamsBase) | {"stream"}),
    ]


@pytest.mark.parametrize("index", range(5), ids=["chat", "completions", "messages", "count_tokens", "responses"])
def test_every_published_field_is_in_a_list(index: int) -> None:
    endpoint, names = schemas()[index]
    assert len(names) > 10
    assert sorted(name for name in names if not endpoint.knows(name)) == []


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=ENDPOINTS)
def test_every_parameter_is_in_a_list(endpoint: Endpoint) -> None:
    assert [name for name in SAMPLING if not endpoint.knows(name)] == []
    for name in NOT_OVER_HTTP:
        with pytest.raises(InvalidParamsError, match=f"{name} = 'x' is not offered"):
            endpoint.take({name: "x"})
    assert not set(endpoint.own) & set(endpoint.foreign)


def test_unknown_inert_and_refused() -> None:
    with pytest.raises(ApiError, match=r"has no field 'temprature' \(did you mean 'temperature'\?\)") as caught:
        CHAT.take({"temprature": 1})
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "temprature", "unknown_field")
    taken = CHAT.take(
        {"user": "x", "store": False, "metadata": None, "prediction": {"type": "content"}, "top_k": 3, "modalities": ["text"]}
    )
    assert taken.ignored == ["user", "store", "prediction"] and taken.params == {"top_k": 3}
    refused: list[tuple[str, Any]] = [
        ("audio", {}),
        ("modalities", ["audio"]),
        ("functions", [{}]),
        ("store", 1),
        ("user", 3),
        ("best_of", 2),
    ]
    for name, value in refused:
        with pytest.raises(InvalidParamsError, match=name):
            CHAT.take({name: value})
