"""Tools, tokens and Anthropic's messages over HTTP; bodies as coding agents send them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent_bodies import claude_code_body, cline_body, codex_body
from llmi.server.parts import num_reasoning_tokens
from llmi.structured.thinking import Thinking
from llmi.testing import tiny_model
from llmi.tools.chat import ToolChat
from llmi.tools.stream import AnswerFormat
from server_client import Client

CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
#: Writes calls as Qwen's templates do, thinks where it is asked to, and tells the date.
TEMPLATE = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}\n{% endfor %}</tools> "
    '<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>\n{% endif %}'
    "{% if dated %}{{ strftime_now('%Y-%m-%d') }}\n{% endif %}"
    "{% for m in messages %}<{{ m['role'] }}>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endif %}"
    '{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}\n'
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
WEATHER = {"name": "weather", "description": "The weather.", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}}  # fmt: skip
TOOLS = [{"type": "function", "function": WEATHER}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    from llmi import LLM

    path = tiny_model(vocab_size=257, num_layers=2, max_position_embeddings=32768, path=tmp_path_factory.mktemp("agents"))
    with LLM(path, kv_cache_memory_bytes=1 << 26, chat_template=TEMPLATE) as llm:
        yield Client(llm)


def sse(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"])
def test_tool_calls_whole_and_streamed(client: Client, choice: Any) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": TOOLS,
        "tool_choice": choice,
        "seed": 3,
        "max_tokens": 200,
        "n": 2,
        "parallel_tool_calls": False,
    }
    expected = client.llm.chat(body["messages"], tools=TOOLS, tool_choice=choice, seed=3, max_tokens=200, n=2, parallel_tool_calls=False)[
        0
    ].outputs
    whole = client.ok(CHAT, body)
    chunks = client.events(CHAT, {**body, "logprobs": True})
    for completion, choice_ in zip(expected, whole["choices"], strict=True):
        [call] = choice_["message"]["tool_calls"]
        assert choice_["finish_reason"] == "tool_calls" and choice_["message"]["content"] is None
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
        assert (call["id"], call["function"]["arguments"]) == (completion.tool_calls[0].id, completion.tool_calls[0].arguments_text)
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == completion.index]
        told = [entry for part in own for entry in part["delta"].get("tool_calls", [])]
        assert told[0] == {**call, "index": 0, "function": {"name": "weather", "arguments": ""}}
        assert "".join(entry["function"]["arguments"] for entry in told) == call["function"]["arguments"]
        assert len([entry for part in own if part["logprobs"] for entry in part["logprobs"]["content"]]) == len(completion.token_ids)
        assert [part["finish_reason"] for part in own if part["finish_reason"]] == ["tool_calls"]
    answer = {"role": "assistant", "content": None, "tool_calls": whole["choices"][0]["message"]["tool_calls"]}
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "sunny"}
    client.ok(CHAT, {**body, "messages": [*body["messages"], answer, result], "tool_choice": "none"})
    assert client.error(CHAT, {**body, "response_format": {"type": "json_object"}})["code"] == "unsupported_combination"


@pytest.mark.parametrize(
    ("given", "matches"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"enum": [12, True]}}}},
            ["12", "true"],
        ),
        ({"structured_outputs": {"choice": ["ab", "cd"]}}, ["ab", "cd"]),
        ({"guided_choice": ["ab", "cd"]}, ["ab", "cd"]),
        ({"guided_regex": "x|y"}, ["x", "y"]),
        ({"guided_json": {"const": 7}}, ["7"]),
        ({"guided_grammar": 'start: "q"'}, ["q"]),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "z"}}, ["z"]),
    ],
    ids=str,
)
def test_structured_outputs_by_all_names(client: Client, given: dict[str, Any], matches: list[str]) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "n": 4, **given}
    whole = client.ok(CHAT, {**body, "seed": 1})
    assert {choice["message"]["content"] for choice in whole["choices"]} <= set(matches)
    whole = client.ok(COMPLETIONS, {"model": "tiny", "prompt": "a", "max_tokens": 20, **given})
    assert whole["choices"][0]["text"] in matches


def test_dates(client: Client) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "seed": 1,
        "chat_template_kwargs": {"dated": True},
    }
    first = client.ok(CHAT, body)
    date = first["llmi"]["date"]
    assert len(date) == 19
    again = client.ok(CHAT, {**body, "chat_template_kwargs": {"dated": True, "strftime_now": date}})
    assert again["choices"] == first["choices"] and again["llmi"]["date"] is None
    other = client.ok("/tokenize", {"messages": body["messages"], "chat_template_kwargs": {"dated": True, "strftime_now": "2001-02-03"}})
    assert "2001-02-03" in client.ok("/detokenize", {"tokens": other["tokens"]})["prompt"]


def test_chats_as_clients_write_them(client: Client) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "x"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "c"},
    ]
    plain = [
        {"role": "system", "content": "x"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "c"},
    ]
    body = {"model": "tiny", "seed": 2, "max_tokens": 8}
    assert client.ok(CHAT, {**body, "messages": messages})["choices"] == client.ok(CHAT, {**body, "messages": plain})["choices"]
    named = client.ok(CHAT, {**body, "messages": [{"role": "user", "content": "hi", "name": "me"}], "reasoning_effort": "low"})
    assert named["llmi"]["ignored"] == ["the argument 'reasoning_effort'", "the key 'name' of messages"]
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    assert "text alone" in client.error(CHAT, {**body, "messages": image})["message"]
    assert client.error(CHAT, {**body, "messages": plain, "chat_template": "/etc/passwd"})["param"] == "chat_template"


def test_tokens(client: Client) -> None:
    ids = client.llm.tokenizer.encode("aé")
    answer = client.ok("/tokenize", {"prompt": "aé", "return_token_strs": True})
    assert answer["tokens"] == ids and answer["count"] == len(ids) == len(answer["token_strs"]) and answer["max_model_len"] == 32768
    assert client.ok("/detokenize", {"model": "tiny", "tokens": ids})["prompt"] == "aé"
    assert client.ok("/tokenize", {"prompt": "<eos>", "parse_special": True})["tokens"] == [0]
    assert len(client.ok("/tokenize", {"prompt": "<eos>"})["tokens"]) == 5
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    usage = client.ok(CHAT, {"model": "tiny", "max_tokens": 1, **chat})["usage"]
    assert client.ok("/tokenize", chat)["count"] == usage["prompt_tokens"]
    info = client.get("/tokenizer_info").json()
    assert (info["eos_token"], info["vocab_size"], info["chat_template"]) == ("<eos>", 257, TEMPLATE)
    for body, param in (({}, "prompt"), ({"prompt": "a", "messages": []}, "prompt"), ({"prompt": "a", "temperature": 1}, "temperature")):
        assert client.error("/tokenize", body)["param"] == param
    assert client.error("/detokenize", {"tokens": [257]})["param"] == client.error("/detokenize", {"tokens": "a"})["param"] == "tokens"


def test_scoring_a_prompt(client: Client) -> None:
    """max_tokens: 0 with echo and logprobs gives the prompt's log-probabilities and no token."""
    body = {"model": "tiny", "prompt": ["abc", [5, 6]], "echo": True, "logprobs": 1}
    zero = client.ok(COMPLETIONS, {**body, "max_tokens": 0})
    one = client.ok(COMPLETIONS, {**body, "max_tokens": 1, "temperature": 0})
    for scored, longer in zip(zero["choices"], one["choices"], strict=True):
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert scored["logprobs"][name] == longer["logprobs"][name][:-1]
        assert scored["finish_reason"] == "length" and longer["text"].startswith(scored["text"])
    assert zero["usage"]["completion_tokens"] == 0 and zero["usage"]["prompt_tokens"] == 5
    assert client.error(COMPLETIONS, {"model": "tiny", "prompt": "a", "max_tokens": 0})["param"] == "max_tokens"
    assert client.error(COMPLETIONS, {**body, "max_tokens": 0, "n": 2})["param"] == "n"


def test_messages_are_chats(client: Client) -> None:
    body = {"model": "tiny", "max_tokens": 12, "seed": 5, "system": "s", "messages": [{"role": "user", "content": "hi"}]}
    expected = client.llm.chat([{"role": "system", "content": "s"}, *body["messages"]], seed=5, max_tokens=12)[0]
    whole = client.ok(MESSAGES, body)
    assert whole["content"] == [{"type": "text", "text": expected.text}] and whole["stop_reason"] == "max_tokens"
    assert client.ok("/v1/messages/count_tokens", {**body, "max_tokens": 1})["input_tokens"] == len(expected.prompt_token_ids)
    used = whole["usage"]
    assert used["input_tokens"] + used["cache_read_input_tokens"] == len(expected.prompt_token_ids)
    events = sse(client.post(MESSAGES, {**body, "stream": True}).text)
    assert [e["type"] for e in events if e["type"] != "content_block_delta"] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == expected.text
    continued = client.ok(MESSAGES, {**body, "messages": [*body["messages"], {"role": "assistant", "content": "ab"}]})
    tail = client.llm.chat(
        [{"role": "system", "content": "s"}, *body["messages"], {"role": "assistant", "content": "ab"}],
        seed=5,
        max_tokens=12,
        continue_final_message=True,
    )
    assert continued["content"][0]["text"] == tail[0].text
    stopped = client.ok(MESSAGES, {**body, "stop_sequences": [expected.text[3]]})
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", expected.text[3])
    assert client.ok(MESSAGES, {**body, "max_tokens": 10**6, "stop_sequences": [expected.text[3]]})["llmi"]["max_tokens"] < 32769
    error = client.post(MESSAGES, {**body, "foo": 1}).json()
    assert error["type"] == "error" and error["error"]["param"] == "foo"


def test_bodies_of_coding_agents(client: Client) -> None:
    limited = {**claude_code_body(), "seed": 1, "stop_sequences": ["e", "\n", " "]}
    events = sse(client.post(MESSAGES, limited).text)
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop", events
    ignored = events[-2]["llmi"]["ignored"]
    assert {"metadata", "thinking", "thinking.budget_tokens", "tools[0].cache_control", "context_management.edits[0]"} <= set(ignored)
    count = {
        name: value
        for name, value in claude_code_body().items()
        if name in ("model", "messages", "system", "tools", "thinking", "tool_choice")
    }
    assert client.ok("/v1/messages/count_tokens", count)["input_tokens"] > 100
    chunks = client.events(CHAT, cline_body())
    assert chunks[-1]["usage"]["completion_tokens"] <= 64
    assert {"store", "prompt_cache_key"} <= set(chunks[-1]["llmi"]["ignored"])


def test_tool_use_in_messages(client: Client) -> None:
    tools = [{"name": "weather", "description": "", "input_schema": WEATHER["parameters"]}]
    body = {"model": "tiny", "max_tokens": 200, "seed": 3, "messages": [{"role": "user", "content": "hi"}], "tools": tools,
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}  # fmt: skip
    whole = client.ok(MESSAGES, body)
    [block] = whole["content"]
    assert whole["stop_reason"] == "tool_use" and block["name"] == "weather" and block["input"]["city"] in ("Paris", "Rome")
    events = sse(client.post(MESSAGES, {**body, "stream": True}).text)
    started = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert started == [{**block, "input": {}}]
    assert json.loads("".join(e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta")) == block["input"]
    assert client.post(MESSAGES, {**body, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}).status_code == 400


def test_responses_are_chats(client: Client) -> None:
    body = {"model": "tiny", "input": "hi", "instructions": "s", "max_output_tokens": 12, "seed": 5}
    expected = client.llm.chat([{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}], seed=5, max_tokens=12)[0]
    whole = client.ok("/v1/responses", body)
    assert whole["output"][0]["content"][0]["text"] == expected.text and whole["status"] == "incomplete"
    assert whole["usage"]["output_tokens"] == 12 and whole["usage"]["input_tokens"] == len(expected.prompt_token_ids)
    events = sse(client.post("/v1/responses", {**body, "stream": True}).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta") == expected.text
    last = events[-1]["response"]
    assert [{**item, "id": ""} for item in last["output"]] == [{**item, "id": ""} for item in whole["output"]]
    for field in (
        {"previous_response_id": "x"},
        {"background": True},
        {"logprobs": 1},
        {"foo": 1},
        {"max_tokens": 3},
        {"input": []},
        {"n": [1]},
        {"n": 2},
    ):
        assert client.error("/v1/responses", {**body, **field})["param"] == next(iter(field))


def test_log_probabilities_in_responses(client: Client) -> None:
    """Bit for bit those of the engine, in the whole answer, in its deltas, and in the part that a stream ends with."""
    body = {
        "model": "tiny",
        "input": "hi",
        "max_output_tokens": 12,
        "seed": 5,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    expected = client.llm.chat([{"role": "user", "content": "hi"}], seed=5, max_tokens=12, logprobs=2)[0].outputs[0]
    assert expected.logprobs is not None
    entries = client.ok("/v1/responses", body)["output"][0]["content"][0]["logprobs"]
    assert [entry["logprob"] for entry in entries] == [p[t].logprob for t, p in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    events = sse(client.post("/v1/responses", {**body, "stream": True}).text)
    assert [entry for event in events if event["type"] == "response.output_text.delta" for entry in event["logprobs"]] == entries
    assert next(event for event in events if event["type"] == "response.output_text.done")["logprobs"] == entries
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == entries
    without = client.ok("/v1/responses", {**body, "include": [], "top_logprobs": None})
    assert without["output"][0]["content"][0]["logprobs"] == [] and without["llmi"]["ignored"] == []
    tool = {"type": "function", "name": "weather", "parameters": WEATHER["parameters"]}
    assert client.error("/v1/responses", {**body, "tools": [tool]})["code"] == "unsupported_combination"
    for wrong in ({"include": [1]}, {"include": "x"}, {"top_logprobs": "2"}, {"top_logprobs": -1}):
        assert client.error("/v1/responses", {**body, **wrong})["param"].startswith(next(iter(wrong)))


def test_calls_and_codex_in_responses(client: Client) -> None:
    tool = {"type": "function", "name": "weather", "parameters": WEATHER["parameters"]}
    body = {"model": "tiny", "input": "hi", "seed": 3, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    [call] = client.ok("/v1/responses", body)["output"]
    assert call["type"] == "function_call" and json.loads(call["arguments"])["city"] in ("Paris", "Rome")
    events = sse(client.post("/v1/responses", {**body, "stream": True}).text)
    assert "".join(event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta") == call["arguments"]
    events = sse(client.post("/v1/responses", {**codex_body(), "seed": 1, "max_output_tokens": 40}).text)
    assert events[-1]["type"] in ("response.completed", "response.incomplete"), events[-1]
    ignored = set(events[-1]["response"]["llmi"]["ignored"])
    assert {"store", "include", "prompt_cache_key", "text.verbosity", "reasoning.summary", "the argument 'reasoning_effort'"} <= ignored


def test_openapi_names_every_route_and_field(client: Client) -> None:
    from llmi.params.sampling import SAMPLING
    from llmi.server.app import ROUTES
    from llmi.server.fields import NOT_OVER_HTTP

    document = client.get("/openapi.json").json()
    assert {(method.lower(), path.replace(":path", "")) for method, path, _ in ROUTES} <= {
        (m, p) for p, ms in document["paths"].items() for m in ms
    }
    fields = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert set(SAMPLING) - set(NOT_OVER_HTTP) <= set(fields) and fields["audio"]["description"].startswith("Not offered")


BAD: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"{", None),
    (b"[]", None),
    (b'"a"', None),
    (b'{"model": "tiny", "n": NaN}', None),
    (b'{"a": 1e400}', None),
    (b"\xef\xbb\xbf{}", None),
    (b'{"model": "\xff"}', None),
    (b'{"model": "\\ud800"}', None),
    (b'{"n": 1, "n": 2}', "n"),
    (b'{"stream_options": {"a": 1, "a": 1}}', "a"),
    (b"[" * 200_000, None),
    (b'{"a":' * 100_000, None),
    (b'{"n": ' + b"9" * 5000 + b"}", None),
    (b"{} {}", None),
    (b'{"model": 3}', "model"),
    (b'{"model": "tiny", "messages": {}}', "messages"),
    (b'{"model": "tiny", "messages": []}', "messages"),
    (b'{"model": "tiny", "messages": [1]}', "messages[0]"),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "n": "3"}', "n"),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "n": 3.0}', "n"),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "n": 1000000}', "n"),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "seed": 18446744073709551616}', "seed"),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "stream": "yes"}', "stream"),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 99999999}', "max_tokens"),
    (
        b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "max_completion_tokens": 2}',
        "max_completion_tokens",
    ),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}', "top_logprobs"),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "logit_bias": {"a": 1}}', "logit_bias"),
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "stream_options": {"include_usage": true}}', "stream_options"),
    (
        b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema"}}',
        "response_format.json_schema.schema",
    ),
]


@pytest.mark.parametrize(("data", "param"), BAD, ids=[str(index) for index in range(len(BAD))])
def test_bad_bodies(client: Client, data: bytes, param: str | None) -> None:
    response = client.send("POST", CHAT, content=data)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert error["message"].isascii() and len(error["message"]) < 2100


def test_methods_and_paths(client: Client) -> None:
    for method, path, status in [
        ("GET", "/nope", 404),
        ("GET", CHAT, 405),
        ("POST", f"{CHAT}/", 404),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/models/é", 405),
        ("PUT", "/health", 405),
    ]:
        response = client.send(method, path)
        assert response.status_code == status and set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("text", "expected"), [("<think>ab</think>cd", 9), ("<think>ab", 9), ("abc", 0), ("<think></think>x", 0), ("", 0)])
def test_reasoning_tokens_are_counted(text: str, expected: int) -> None:
    """Tokens of one letter: up to the last of the reasoning, its opening mark included."""
    tools = ToolChat(None, {}, None, AnswerFormat(None, frozenset(), Thinking("<think>", "</think>")))
    ids = list(text.encode())
    assert num_reasoning_tokens(ids, lambda part: tools.read(bytes(part).decode(), 0, 0).reasoning or "") == expected
