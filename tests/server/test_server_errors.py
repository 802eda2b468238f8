"""Requests that cannot be answered because of what they themselves say: 400, whole and streamed, and no traceback in the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmi.errors import NonFiniteLogitsError, OutOfMemoryError, TokenizerError
from llmi.server import generation
from llmi.server.errors import api_error
from server_client import Client, tiny_llm

COMPLETIONS = "/v1/completions"
NAN = {str(layer): [3e38] * 64 for layer in range(3)}
EVERY_TOKEN = list(range(257))
GRAMMAR = {"structured_outputs": {"regex": "a"}}


@pytest.fixture(scope="module")
def client(tiny_path: Callable[..., Path]) -> Iterator[Client]:
    with tiny_llm(tiny_path) as llm:
        assert (llm.model_info.vocab_size, llm.model_info.hidden_size, llm.model_info.num_layers) == (257, 64, 3)
        yield Client(llm)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        ({**GRAMMAR, "min_tokens": 2}, None, "constraint", "min_tokens forbid all"),
        ({**GRAMMAR, "logit_bias": {"98": "-inf"}}, None, "constraint", "logit_bias forbid all"),
        ({**GRAMMAR, "bad_words": ["a"]}, None, "constraint", "bad_words forbid all"),
        ({**GRAMMAR, "num_beams": 2, "min_tokens": 2}, None, "constraint", "no beam is left"),
        ({"suppress_tokens": EVERY_TOKEN}, None, "non_finite_logits", "no token is left to draw"),
        ({"logit_bias": {"50": 1e30}, "temperature": 1e-30}, None, "non_finite_logits", "makes a logit infinite"),
        ({"num_beams": 2, "logit_bias": {"50": 3e38}, "repetition_penalty": 1e-30}, None, "non_finite_logits", "log-probability NaN or"),
        ({"steering": NAN}, "steering", "non_finite_logits", "logits hold NaN or infinity"),
        ({"steering": NAN, "max_tokens": 0, "prompt_logprobs": 0}, "steering", "non_finite_logits", "in the prompt"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bodies_that_leave_no_token(
    client: Client,
    body: dict[str, Any],
    param: str | None,
    code: str,
    message: str,
    stream: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = client.post(COMPLETIONS, {"prompt": "ab", "max_tokens": 3, "seed": 1, **body, "stream": stream})
    if stream and response.status_code == 200:  # it had a token, or took its time
        error = json.loads(response.text.split("data: ")[-2])["error"]
    else:
        assert response.status_code == 400, response.text
        error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert message in error["message"] and not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_stream_that_comes_to_such_a_place_late(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "GRACE_S", 0.0)
    body = {"prompt": "ab", "structured_outputs": {"regex": "[ab]{900}"}, "min_tokens": 1000, "max_tokens": 1000}
    [error] = [chunk["error"] for chunk in client.events(COMPLETIONS, body) if "error" in chunk]
    assert (error["type"], error["code"]) == ("invalid_request_error", "constraint")


def test_numbers_of_the_model_itself_are_no_fault_of_the_client() -> None:
    assert api_error(NonFiniteLogitsError("the model's logits hold NaN or infinity at position 3")).status == 500


def test_errors_say_whose_fault_they_are_whatever_their_sentence(client: Client) -> None:
    """The same class is 400 or 500 by its field; errors of the core carry it through the bindings."""
    answers = [api_error(NonFiniteLogitsError("x", fault)) for fault in ("request", "model")]
    assert [(answer.status, answer.code) for answer in answers] == [(400, "non_finite_logits"), (500, None)]
    assert [api_error(OutOfMemoryError("x", fault=fault)).status for fault in ("request", "machine")] == [400, 500]
    assert [api_error(TokenizerError("x", fault=fault)).status for fault in ("request", "model")] == [400, 500]
    for params, fault, parameter in (
        ({"suppress_tokens": EVERY_TOKEN}, "request", None),
        ({"steering": {0: [3e38] * 64, 1: [3e38] * 64, 2: [3e38] * 64}}, "request", "steering"),
    ):
        with pytest.raises(NonFiniteLogitsError) as caught:
            client.llm.generate("ab", max_tokens=2, **params)
        assert (caught.value.fault, caught.value.parameter) == (fault, parameter)
    with pytest.raises(OutOfMemoryError) as full:
        client.llm.generate([1] * 8, max_tokens=2000, beam_width=128, temperature=0)
    assert full.value.fault == "request"


def test_no_answer_tells_where_the_model_lies(client: Client) -> None:
    """Neither errors, of a template among others, nor lists, nor receipts."""
    place = str(client.llm.model_info.path)
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    bodies = [
        {**chat, "receipt": True},
        {**chat, "chat_template": "{{ raise_exception('no') }}"},
        {**chat, "chat_template": "{{"},
        {**chat, "chat_template": "{{ a.b.c }}"},
        {**chat, "chat_template": "{{ range(999999999) }}"},
        {**chat, "chat_template": "{{ 1 }}", "continue_final_message": True},
    ]
    answers = [client.post("/v1/chat/completions", body) for body in bodies]
    assert [answer.status_code for answer in answers] == [200, 400, 400, 400, 400, 400]
    assert "the chat template refuses these messages: no" in answers[1].json()["error"]["message"]
    answers += [
        client.get(path)
        for path in ("/v1/models", "/v1/models/tiny", "/metrics", "/health", "/ready", "/tokenizer_info", "/openapi.json", "/")
    ]
    assert [answer.text for answer in answers if place in answer.text or str(Path(place).parent) in answer.text] == []
    assert client.get("/v1/models/tiny").json()["root"] == "tiny"
