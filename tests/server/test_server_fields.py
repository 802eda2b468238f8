"""The fields of bodies: every field of the published request schemas is in a list, all parameters are understood, and so is what stands
inside them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_bodies import CLIENT_BODIES, claude_code_body, cline_body, codex_body
from llmi.errors import InvalidParamsError, LlmiError
from llmi.params.sampling import SAMPLING
from llmi.server.anthropic_chat import chat_of_messages, output_format
from llmi.server.errors import ApiError
from llmi.server.fields import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, NOT_OVER_HTTP, RENDERING, RESPONSES, Endpoint
from llmi.server.prompts import Chat, chat_of
from llmi.server.responses_chat import chat_of_response, text_format
from server_client import TEMPLATE, Client, tiny_llm

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


@pytest.fixture(scope="module")
def client(tiny_path: Callable[..., Path]) -> Iterator[Client]:
    with tiny_llm(tiny_path) as llm:
        yield Client(llm)


HI = [{"role": "user", "content": "hi"}]
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
#: path, the field that is wrong, and the place that the error names.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/messages", {"context_management": {"edits": 5}}, "context_management.edits"),
    ("/v1/messages", {"context_management": {"edits": ["clear_thinking"]}}, "context_management.edits[0]"),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text"),
    (
        "/v1/messages",
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": 5}]}, *HI]},
        "messages[0].content[0].thinking",
    ),
    (
        "/v1/messages",
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": []}]}, *HI]},
        "messages[0].content[0].input",
    ),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": "no"}]}]},
        "messages[0].content[0].is_error",
    ),
    ("/v1/messages", {"tools": [{**TOOL, "input_schema": []}]}, "tools[0].input_schema"),
    ("/v1/messages", {"tools": [{**TOOL, "input_schema": ""}]}, "tools[0].input_schema"),
    ("/v1/messages", {"tools": [{**TOOL, "description": []}]}, "tools[0].description"),
    (
        "/v1/messages",
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": "yes"}},
        "tool_choice.disable_parallel_tool_use",
    ),
    ("/v1/messages", {"output_config": {"effort": 3}}, "output_config.effort"),
    ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": {}, "foo": 1}}}, "output_config.format.foo"),
    ("/v1/messages/count_tokens", {"output_config": {"format": "x"}}, "output_config.format"),
    ("/v1/responses", {"input": [{"type": "reasoning", "summary": 5}]}, "input[0].summary"),
    ("/v1/responses", {"input": [{"type": "reasoning", "summary": ["x"]}]}, "input[0].summary[0]"),
    ("/v1/responses", {"input": [{"type": "reasoning", "summary": []}]}, "input"),
    ("/v1/responses", {"input": [{"type": "message", "role": "user", "content": 5}]}, "input[0].content"),
    (
        "/v1/responses",
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": 5}]}]},
        "input[0].content[0].text",
    ),
    ("/v1/responses", {"input": [{"type": "function_call", "name": "f", "arguments": [1]}]}, "input[0].arguments"),
    (
        "/v1/responses",
        {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "text": "x"}]}]},
        "input[0].output[0].type",
    ),
    ("/v1/responses", {"reasoning": {"effort": 3}}, "reasoning.effort"),
    ("/v1/responses", {"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
    ("/v1/responses", {"text": {"format": {"type": "grammar", "grammar": "x"}}}, "text.format.type"),
    ("/v1/chat/completions", {"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    ("/v1/chat/completions", {"response_format": {"type": "json_object", "foo": 1}}, "response_format.foo"),
    ("/v1/chat/completions", {"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema"),
    (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "foo": 1}}},
        "response_format.json_schema.foo",
    ),
    ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}, "foo": 1}}, "response_format.foo"),
    (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": "x"}}},
        "response_format.json_schema.strict",
    ),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]}]},
        "messages[0].tool_calls[0].type",
    ),
    ("/v1/chat/completions", {"include_reasoning": "x"}, "include_reasoning"),
    ("/v1/chat/completions", {"add_special_tokens": "x"}, "add_special_tokens"),
    ("/v1/chat/completions", {"reasoning_effort": 5}, "reasoning_effort"),
    (
        "/v1/chat/completions",
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
        "chat_template_kwargs.reasoning_effort",
    ),
    ("/v1/chat/completions", {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ("/v1/messages", {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ("/v1/responses", {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ("/v1/chat/completions", {"logit_bias": {"50": 1, "050": -5}}, "logit_bias"),
    ("/v1/chat/completions", {"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ("/tokenize", {"parse_special": True}, "parse_special"),
    ("/tokenize", {"messages": None, "prompt": [300_000]}, "prompt"),
    ("/v1/completions", {"prompt": [300_000]}, "prompt"),
    ("/v1/completions", {"prompt": ["a", [1, 300_000]]}, "prompt[1]"),
    ("/v1/responses", {"max_output_tokens": 999_999}, "max_output_tokens"),
    ("/v1/chat/completions", {"max_tokens": None, "max_completion_tokens": 999_999}, "max_completion_tokens"),
    ("/v1/chat/completions", {"max_tokens": None, "max_completion_tokens": "5"}, "max_completion_tokens"),
    *(
        ("/tokenize", {"messages": None, "prompt": "a", name: value}, name)
        for name, value in zip(RENDERING, ([], True, False, "x", {}, []), strict=True)
    ),
]


def body_of(path: str, more: dict[str, Any]) -> dict[str, Any]:
    """A body that is right, with these fields."""
    if path == "/v1/responses":
        return {"input": "hi", "max_output_tokens": 2, "seed": 1, **more}
    if path == "/v1/completions":
        return {"max_tokens": 2, "seed": 1, **more}
    return {"messages": HI, **({} if path == "/tokenize" else {"max_tokens": 2, "seed": 1}), **more}


@pytest.mark.parametrize(("path", "more", "param"), WRONG, ids=[f"{path}-{param}" for path, _, param in WRONG])
def test_what_is_wrong_inside_a_field_is_named_by_its_place(client: Client, path: str, more: dict[str, Any], param: str) -> None:
    assert client.error(path, body_of(path, more))["param"] == param


HERMES = '{{ tools }}<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>{{ messages }}'


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where values stand inside a value, from the outside in."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield (*at, key)
        yield from places(entry, (*at, key))


def anthropic(body: dict[str, Any]) -> Chat:
    taken = MESSAGES.take(body)
    output_format(taken)
    return chat_of_messages(taken, "enable_thinking reasoning_effort")


def response(body: dict[str, Any]) -> Chat:
    taken = RESPONSES.take(body)
    text_format(taken)
    return chat_of_response(taken)


FORMAT = {"type": "json_schema", "name": "x", "schema": {}}
READERS: dict[str, tuple[Callable[[dict[str, Any]], Chat], dict[str, Any]]] = {
    "messages": (anthropic, {**claude_code_body(), "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}}}),
    "responses": (response, {**codex_body(), "text": {"verbosity": "low", "format": FORMAT}}),
    "chat": (lambda body: chat_of(CHAT.take(body)), cline_body()),
}
ODD = [
    None,
    5,
    -1.5,
    True,
    "",
    "x",
    [],
    {},
    [5],
    ["x"],
    [None],
    [[]],
    {"type": "text"},
    {"type": 5},
    {"type": []},
    [{"type": "text", "text": 5}],
    "[1]",
]


@pytest.mark.parametrize("name", READERS)
def test_whatever_stands_in_a_chat_is_read_or_refused(name: str) -> None:
    read, body = READERS[name]
    assert read(body).messages
    for at in list(places(body)):
        for value in ODD:
            changed = copy.deepcopy(body)
            inner: Any = changed
            for key in at[:-1]:
                inner = inner[key]
            inner[at[-1]] = value
            with contextlib.suppress(LlmiError):
                assert read(changed).messages


NO_CACHE = {"cache_control": {"type": "ephemeral"}}
#: path, fields with keys that nobody knows, and where these stand.
UNKNOWN: list[tuple[str, dict[str, Any], set[str]]] = [
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **NO_CACHE, "foo": None}]}]},
        {"messages[0].content[0].cache_control"},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                *HI,
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "a", "type": "function", "index": 0, "function": {"name": "f", "arguments": "", "x": 1}}],
                },
                *HI,
            ]
        },
        {"messages[1].tool_calls[0].index", "messages[1].tool_calls[0].function.x"},
    ),
    (
        "/v1/chat/completions",
        {
            "chat_template": HERMES,
            "tools": [{"type": "function", "foo": 1, "function": {"name": "f"}}],
            "tool_choice": {"type": "function", "foo": 1, "function": {"name": "f", "x": 1}},
        },
        {"tools[0].foo", "tool_choice.foo", "tool_choice.function.x"},
    ),
    (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "description": "y", "schema": {"enum": [1]}}}},
        {"response_format.json_schema.description"},
    ),
    ("/v1/messages", {"system": [{"type": "text", "text": "s", **NO_CACHE}]}, {"system[0].cache_control"}),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **NO_CACHE}], "id": "m"}]},
        {"messages[0].id", "messages[0].content[0].cache_control"},
    ),
    (
        "/v1/messages",
        {
            "messages": [
                *HI,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "a", "signature": "s"},
                        {"type": "thinking", "thinking": "a", "signature": ""},
                        {"type": "redacted_thinking", "data": "x"},
                        {"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": {}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", **NO_CACHE}]},
            ]
        },
        {
            "messages[1].content[0].signature",
            "messages[1].content[2]",
            "messages[1].content[3].caller",
            "messages[2].content[0].cache_control",
            "the key 'reasoning_content' of messages",
            "the key 'tool_call_id' of messages",
        },
    ),
    (
        "/v1/messages",
        {"tools": [{**TOOL, **NO_CACHE}], "tool_choice": {"type": "none", "foo": 1}},
        {"tools[0].cache_control", "tool_choice.foo"},
    ),
    ("/v1/messages", {"context_management": {"foo": 1}}, {"context_management.foo"}),
    (
        "/v1/responses",
        {
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "id": "a",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "x", "annotations": []}],
                }
            ]
        },
        {"input[0].id", "input[0].status", "input[0].content[0].annotations"},
    ),
    (
        "/v1/responses",
        {
            "input": [
                {
                    "type": "reasoning",
                    "content": [{"type": "reasoning_text", "text": "a"}],
                    "summary": [{"type": "summary_text", "text": "b"}],
                    "encrypted_content": "e",
                },
                {"role": "user", "content": "x"},
            ]
        },
        {"input[0].summary", "input[0].encrypted_content", "the key 'reasoning_content' of messages"},
    ),
    ("/v1/responses", {"tools": [{"type": "function", "name": "f", "foo": 1}], "tool_choice": "none"}, {"tools[0].foo"}),
]


@pytest.mark.parametrize(("path", "more", "ignored"), UNKNOWN, ids=[str(index) for index in range(len(UNKNOWN))])
def test_keys_inside_a_field_that_nobody_knows_are_named_as_ignored(
    client: Client, path: str, more: dict[str, Any], ignored: set[str]
) -> None:
    assert set(client.ok(path, body_of(path, more))["llmi"]["ignored"]) == ignored


@pytest.mark.parametrize("name", CLIENT_BODIES)
def test_bodies_of_clients_that_were_made_for_other_servers(client: Client, name: str) -> None:
    body, ignored = CLIENT_BODIES[name]
    body = {**body, "stop": ["e", "a", " "], "timeout_s": 60}
    if body.pop("stream", False):
        found = client.events("/v1/chat/completions", {**body, "stream": True})[-1]["llmi"]["ignored"]
    else:
        found = client.ok("/v1/chat/completions", body)["llmi"]["ignored"]
    assert set(found) == ignored


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("options", {"temperature": 0}, "by themselves"),
        ("params", {"top_k": 1}, "by themselves"),
        ("think", False, "enable_thinking"),
        ("format", "json", "response_format"),
        ("repeat_penalty", 1.1, "repetition_penalty"),
        ("typ_p", 0.9, "typical_p"),
        ("n_predict", 9, "max_tokens"),
        ("t_max_predict_ms", 100, "timeout_s"),
        ("reasoning_format", "none", "include_reasoning"),
        ("files", [{"id": "x"}], "texts as messages"),
        ("tool_ids", ["x"], "give tools"),
        ("min_keep", 2, "logits processor"),
    ],
)
def test_fields_of_other_servers_that_would_change_an_answer(client: Client, field: str, value: Any, says: str) -> None:
    error = client.error("/v1/chat/completions", {"messages": HI, "max_tokens": 2, field: value})
    assert says in error["message"] and error["param"] == field


def test_llama_cpps_form_of_a_schema(client: Client) -> None:
    schema = {"enum": [12, True]}
    body = body_of("/v1/chat/completions", {"response_format": {"type": "json_object", "schema": schema}, "max_tokens": 9})
    assert client.ok("/v1/chat/completions", body)["choices"][0]["message"]["content"] in ("12", "true")
    response = body_of("/v1/responses", {"text": {"format": {"type": "json_object", "schema": schema}}, "max_output_tokens": 9})
    assert client.ok("/v1/responses", response)["output"][0]["content"][0]["text"] in ("12", "true")


def test_empty_messages_of_a_user_stay(client: Client) -> None:
    def text(content: Any) -> str:
        messages = [*HI, {"role": "assistant", "content": "b"}, {"role": "user", "content": content}]
        return str(client.ok("/v1/messages", body_of("/v1/messages", {"messages": messages, "max_tokens": 9}))["content"][0]["text"])

    assert text([]) == text("")
    counts = [client.ok("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": content}]}) for content in ([], "")]
    assert counts[0] == counts[1]


def test_reasoning_is_left_out_where_it_is_not_wanted(client: Client) -> None:
    path = "/v1/chat/completions"
    thinking = "{% for m in messages %}{{ m['content'] }}{% endfor %}<think>{# ends with </think> #}"
    body = body_of(path, {"chat_template": thinking, "max_tokens": 6, "ignore_eos": True})
    told = client.ok(path, body)["choices"][0]["message"]
    assert (
        told["reasoning_content"]
        and "reasoning_content" not in client.ok(path, {**body, "include_reasoning": False})["choices"][0]["message"]
    )
    deltas = [
        [chunk["choices"][0]["delta"] for chunk in client.events(path, {**body, "include_reasoning": wanted})] for wanted in (True, False)
    ]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas[0]) == told["reasoning_content"]
    assert [delta for delta in deltas[1] if delta] == [{"role": "assistant", "content": ""}]


def test_a_chat_without_the_models_own_first_tokens(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = client.ok("/tokenize", {"messages": HI})["tokens"]
    monkeypatch.setattr(client.llm.tokenizer._loaded, "prefix", [1])
    assert (
        client.ok("/tokenize", {"messages": HI})["tokens"]
        == client.ok("/tokenize", {"messages": HI, "add_special_tokens": True})["tokens"]
        == [1, *plain]
    )
    assert client.ok("/tokenize", {"messages": HI, "add_special_tokens": False})["tokens"] == plain
    used = client.ok("/v1/chat/completions", body_of("", {"add_special_tokens": False}))["usage"]
    assert used["prompt_tokens"] == len(plain)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
def test_a_date_repeats_the_answer_in_every_form_of_a_chat(client: Client, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dated = "{{ strftime_now('%Y-%m-%d') }}" + TEMPLATE
    monkeypatch.setattr(client.llm.tokenizer, "template_for", lambda name, variables: dated)
    name = "content" if path == "/v1/messages" else "output"
    first = client.ok(path, body_of(path, {}))
    again = client.ok(path, body_of(path, {"chat_template_kwargs": {"strftime_now": first["llmi"]["date"]}}))
    assert again["llmi"]["date"] is None and [{**e, "id": ""} for e in again[name]] == [{**e, "id": ""} for e in first[name]]
    assert client.error(path, body_of(path, {"chat_template_kwargs": {"strftime_now": "x"}}))["code"] == "chat_template_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_negative_prompt_may_be_messages(client: Client, path: str) -> None:
    negative = [{"role": "system", "content": "Rhyme."}, {"role": "user", "content": [{"type": "text", "text": "ho"}]}]
    params: dict[str, Any] = {"guidance_scale": 3.0, "temperature": 0}
    [expected] = client.llm.chat(HI, max_tokens=12, negative_prompt=negative, **params)[0].outputs
    assert expected.text != client.llm.chat(HI, max_tokens=12, **params)[0].outputs[0].text
    limit = {"/v1/responses": "max_output_tokens"}.get(path, "max_tokens")
    answer = client.ok(path, body_of(path, {**params, limit: 12, "negative_prompt": negative}))
    if path == "/v1/chat/completions":
        assert answer["choices"][0]["message"]["content"] == expected.text
    else:
        parts = answer["content"] if path == "/v1/messages" else answer["output"][0]["content"]
        assert [part["text"] for part in parts] == [expected.text]
    wrong = body_of(path, {**params, "negative_prompt": [{"role": "user", "content": 5}]})
    assert client.error(path, wrong)["param"] == "negative_prompt[0].content"
