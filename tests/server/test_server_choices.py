"""How many answers a request wants, by whatever name: their indices, their streams, and the limits on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmi.params.beams import BeamSearchParams, num_results, num_sequences
from llmi.server.limits import Limits
from llmi.server.settings import ServerSettings
from server_client import Client, tiny_llm

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
HI = [{"role": "user", "content": "hi"}]
#: There are two texts of one of two tokens, not three.
FEW = {"n": 3, "num_beams": 3, "allowed_token_ids": [98, 99], "eos_token_id": [], "max_tokens": 1}


@pytest.fixture(scope="module")
def client(tiny_path: Callable[..., Path]) -> Iterator[Client]:
    with tiny_llm(tiny_path) as llm:
        yield Client(llm)


@pytest.fixture(scope="module")
def twofold(tiny_path: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A model whose own defaults give two answers, of at most six tokens."""
    defaults = tmp_path_factory.mktemp("defaults") / "generation_config.json"
    defaults.write_text(json.dumps({"num_return_sequences": 2, "max_new_tokens": 6}))
    with tiny_llm(tiny_path, generation_config=defaults) as llm:
        yield Client(llm)


def choices_of(chunks: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """The choices of a stream's chunks, by index."""
    result: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            result.setdefault(choice["index"], []).append(choice)
    return result


def text_of(choice: dict[str, Any]) -> str:
    if "delta" in choice:
        return choice["delta"].get("content") or ""
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def check_stream(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """A stream has the whole answer's choices; each ends once, with its last chunk. Returns the whole answer's."""
    body = {"seed": 1, **body}
    whole: list[dict[str, Any]] = client.ok(path, body)["choices"]
    streamed = choices_of(client.events(path, body))
    assert sorted(streamed) == [choice["index"] for choice in whole]
    for choice in whole:
        parts = streamed[choice["index"]]
        assert "".join(map(text_of, parts)) == text_of(choice)
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [choice["finish_reason"]]
        assert parts[-1].get("score") == choice.get("score")
        if path == CHAT:
            assert [part["delta"].get("role") for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
    return whole


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({"n": 2}, 2),
        ({"num_return_sequences": 2}, 2),
        ({"beam_width": 3}, 3),
        ({"num_beams": 3}, 1),
        ({"num_beams": 3, "num_return_sequences": 2}, 2),
        ({"num_beams": 3, "beam_width": 3}, 3),
        ({"beam_width": 3, "num_beams": 3}, 3),
    ],
    ids=str,
)
def test_each_choice_has_its_own_index(client: Client, more: dict[str, Any], count: int) -> None:
    """Whatever name the number has: of several prompts, with echo, in chats."""
    body = {"prompt": ["ab", "cd"], "max_tokens": 4, "seed": 1, **more}
    whole = check_stream(client, COMPLETIONS, body)
    assert [choice["index"] for choice in whole] == list(range(2 * count))
    assert all(isinstance(choice["score"], float) if "beam" in str(more) else "score" not in choice for choice in whole)
    echoed = check_stream(client, COMPLETIONS, {**body, "echo": True})
    assert [text_of(choice) for choice in echoed] == [
        prompt + text_of(whole[index * count + j]) for index, prompt in enumerate(body["prompt"]) for j in range(count)
    ]
    check_stream(client, COMPLETIONS, {**body, "echo": True, "logprobs": 0})
    assert len(check_stream(client, CHAT, {"messages": HI, "max_tokens": 4, "seed": 1, **more})) == count


@pytest.mark.parametrize(
    ("path", "prompt"), [(COMPLETIONS, {"prompt": "ab"}), (COMPLETIONS, {"prompt": ["ab", "cd"], "echo": True}), (CHAT, {"messages": HI})]
)
def test_a_search_that_finds_fewer_than_n(client: Client, path: str, prompt: dict[str, Any]) -> None:
    num_prompts = 2 if isinstance(prompt.get("prompt"), list) else 1
    assert len(check_stream(client, path, {**prompt, **FEW})) < 3 * num_prompts


def test_the_models_own_number(twofold: Client) -> None:
    """It holds where several answers can be given, and nothing said; not for beams, as in transformers."""
    body = {"prompt": ["ab", "cd"], "max_tokens": 4, "seed": 1}
    assert [choice["index"] for choice in check_stream(twofold, COMPLETIONS, body)] == [0, 1, 2, 3]
    assert len(check_stream(twofold, CHAT, {"messages": HI})) == 2
    assert len(check_stream(twofold, CHAT, {"messages": HI, "num_beams": 2})) == 1
    assert twofold.ok(MESSAGES, {"messages": HI, "max_tokens": 4})["content"]
    assert twofold.ok(RESPONSES, {"input": "hi"})["output"]
    error = twofold.error(COMPLETIONS, {**body, "prompt": ["a"] * 65})
    assert (error["param"], "65 prompts with n = 2 are 130 answers" in error["message"]) == ("n", True)


@pytest.mark.parametrize(
    "more", [{"n": 2}, {"num_return_sequences": 2}, {"beam_width": 2}, {"num_beams": 3, "num_return_sequences": 2}], ids=str
)
def test_endpoints_of_one_answer_name_what_asks_for_more(client: Client, more: dict[str, int]) -> None:
    for path, body in ((MESSAGES, {"messages": HI, "max_tokens": 4}), (RESPONSES, {"input": "hi", "max_output_tokens": 4})):
        for stream in (False, True):
            error = client.error(path, {**body, **more, "stream": stream})
            assert (error["param"], error["code"]) == ([*more][-1], "unsupported")
        client.ok(path, {**body, "num_beams": 2})
        client.ok(path, {**body, "beam_width": 2, "n": 1})


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (
            {"prompt": ["a"] * 20, "num_return_sequences": 10},
            "num_return_sequences",
            "20 prompts with num_return_sequences = 10 are 200 answers",
        ),
        ({"prompt": ["a"] * 5, "beam_width": 100}, "beam_width", "beam_width = 100 are 500 answers"),
        ({"prompt": ["a"] * 5, "num_beams": 100, "n": 2}, "num_beams", "num_beams = 100 are 500 answers"),
        ({"prompt": "a", "n": 100, "max_new_tokens": 20_000}, "max_tokens", "2,000,000 tokens"),
        ({"prompt": "a", "num_return_sequences": 0}, "num_return_sequences", "must be an integer"),
        ({"prompt": "a", "num_beams": 2.5}, "num_beams", "must be an integer"),
    ],
)
def test_limits_count_the_sequences_that_run(client: Client, body: dict[str, Any], param: str, message: str) -> None:
    error = client.error(COMPLETIONS, {"max_tokens": 1, **body} if "max_new_tokens" not in body else body)
    assert error["param"] == param and message in error["message"]


def test_log_probabilities_of_the_whole_vocabulary_and_copies_count(client: Client) -> None:
    """Whole prompts come once in a chat, and with each choice of a completion, with echo a second time."""
    small = Client(client.llm, ServerSettings(limits=Limits(answer_bytes=100_000)))
    chat = {"messages": [{"role": "user", "content": "a" * 10}], "max_tokens": 1}
    small.ok(CHAT, {**chat, "prompt_logprobs": 5, "n": 8})
    error = small.error(CHAT, {**chat, "prompt_logprobs": -1})
    assert (error["param"], "6,966 of their prompts" in error["message"]) == ("prompt_logprobs", True), error
    body = {"prompt": [5] * 50, "echo": True, "logprobs": 5, "max_tokens": 1}
    small.ok(COMPLETIONS, {**body, "n": 3})
    assert "48 log-probabilities of the answers and 2,400 of their prompts" in small.error(COMPLETIONS, {**body, "n": 8})["message"]
    small.ok(COMPLETIONS, {**body, "prompt_logprobs": 5})
    assert "1,800 of their prompts" in small.error(COMPLETIONS, {**body, "prompt_logprobs": 5, "n": 3})["message"]


def test_limits_know_every_name_of_max_tokens(client: Client, twofold: Client) -> None:
    """The model's own default, too; without one an answer may go on to the end of the context."""
    settings = ServerSettings(limits=Limits(num_tokens=1000))
    Client(client.llm, settings).ok(COMPLETIONS, {"prompt": "a", "n": 100, "max_new_tokens": 5})
    Client(twofold.llm, settings).ok(CHAT, {"messages": HI, "n": 100})
    assert "more than 1,000" in Client(client.llm, settings).error(CHAT, {"messages": HI})["message"]


def test_keywords_that_count() -> None:
    """The order of keys plays no part."""
    for given, results, sequences in (
        ({}, (4, "n"), (4, "n")),
        ({"n": 2}, (2, "n"), (2, "n")),
        ({"num_beams": 1}, (4, "n"), (4, "n")),
        ({"num_return_sequences": 3}, (3, "num_return_sequences"), (3, "num_return_sequences")),
        ({"beam_width": 3}, (3, "beam_width"), (3, "beam_width")),
        ({"num_beams": 3}, (1, "num_beams"), (3, "num_beams")),
        ({"num_beams": 3, "beam_width": 3}, (3, "beam_width"), (3, "beam_width")),
        ({"num_beams": 3, "n": 3}, (3, "n"), (3, "n")),
        ({"num_beams": 3, "n": 2}, (2, "n"), (3, "num_beams")),
    ):
        assert (num_results(given, 4), num_sequences(given, 4)) == (results, sequences), given
    both = {"beam_width": 3, "num_beams": 3}
    for keys in (["beam_width", "num_beams"], ["num_beams", "beam_width"]):
        assert BeamSearchParams(**{key: both[key] for key in keys}).n is None  # type: ignore[arg-type]
