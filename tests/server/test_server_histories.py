"""Chats whose history is what clients send with each turn: content in parts, calls that were cut off, the server's own output."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from llmi import LLM
from llmi.testing import tiny_model
from server_client import Client, Served

#: It knows no tools: they, calls and results become texts of the messages.
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"], "additionalProperties": False}
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """Its head has 300 rows, its tokenizer 257 tokens: some of what it draws has no text."""
    path = tiny_model(vocab_size=300, num_layers=1, max_position_embeddings=8192, path=tmp_path_factory.mktemp("histories"))
    with LLM(path, kv_cache_memory_bytes=1 << 24, chat_template=TEMPLATE) as llm:
        yield llm


@pytest.fixture(scope="module")
def client(llm: LLM) -> Client:
    return Client(llm)


def prompt_of(client: Client, messages: list[Any], **more: Any) -> str:
    tokens = client.ok("/tokenize", {"messages": messages, **more})["tokens"]
    text: str = client.ok("/detokenize", {"tokens": tokens})["prompt"]
    return text


def _chat(of: Callable[[str], Any]) -> list[Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    return [
        {"role": "system", "content": of("Be terse.")},
        {"role": "user", "content": of("Rome?")},
        {"role": "assistant", "content": of("Let me look."), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": of("18 degrees")},
        {"role": "tool", "tool_call_id": "c2", "content": of("19 degrees")},
        {"role": "user", "content": of("And?")},
    ]


def test_content_in_parts_is_the_same_chat_with_tools(client: Client) -> None:
    whole = prompt_of(client, _chat(str), tools=[TOOL])
    assert prompt_of(client, _chat(lambda text: [{"type": "text", "text": text}]), tools=[TOOL]) == whole
    assert whole.startswith("<system>Be terse.\n\nYou can call functions.") and whole.count("<system>") == 1
    assert 'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n' in whole
    assert "<user><tool_response>\n18 degrees\n</tool_response>\n<tool_response>\n19 degrees\n</tool_response>\n<user>And?" in whole
    two = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "<tool_response>\na\nb\n</tool_response>" in prompt_of(client, [{"role": "tool", "content": two}], tools=[TOOL])


def test_what_a_call_in_words_leaves_out_is_named(client: Client) -> None:
    answer = client.ok("/v1/chat/completions", {"messages": _chat(str), "tools": [TOOL], "max_tokens": 1})
    assert answer["llmi"]["ignored"] == ["the key 'name' of messages", "the key 'tool_call_id' of messages"]


def test_a_part_of_a_call_that_is_no_text_is_refused(llm: LLM) -> None:
    image = {"type": "image", "image": "x"}
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {}}}
    with pytest.raises(ValueError, match="text alone"):
        llm.chat([{"role": "assistant", "content": [image], "tool_calls": [call]}, {"role": "user", "content": "x"}], tools=[TOOL])


@pytest.mark.parametrize("arguments", ['{"city": "Ro', "Rome", "[1]", "[" * 100_000], ids=["cut off", "a word", "a list", "too deep"])
def test_a_call_with_malformed_arguments_is_its_text(client: Client, llm: LLM, arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    chat = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "user", "content": "y"},
    ]
    if len(arguments) < 100:
        answer = llm.chat(chat, tools=[TOOL], max_tokens=1, seed=1)[0]
        assert arguments.replace('"', '\\"') in (answer.prompt or "")
        told = client.ok("/v1/chat/completions", {"messages": chat, "tools": [TOOL], "max_tokens": 1, "seed": 1, "return_token_ids": True})
        assert told["prompt_token_ids"] == answer.prompt_token_ids
    item = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": arguments}
    asked = {"input": [{"role": "user", "content": "x"}, item, {"role": "user", "content": "y"}], "max_output_tokens": 1}
    response = client.post("/v1/responses", asked)
    assert response.status_code == 200 or "context_length_exceeded" in response.text


def test_a_template_that_goes_over_arguments_gets_an_object(client: Client) -> None:
    calls = "{% for c in m.tool_calls or [] %}{% for name, value in c.function.arguments|items %}{{ name }}={{ value }};{% endfor %}{% endfor %}"
    template = TEMPLATE.replace("\n{% endfor %}", calls + "\n{% endfor %}", 1)
    chat = [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
                for arguments in ('{"city": "Rome"}', '{"city": "Ro')
            ],
        },
    ]
    assert 'city=Rome;raw={"city": "Ro;' in prompt_of(client, chat, chat_template=template)
    assert client.error("/v1/chat/completions", {"messages": chat[:1], "chat_template": "{{ 1|items }}"})["code"] == "chat_template_error"


def test_tools_that_the_prompt_does_not_tell_of_are_named(client: Client) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "max_tokens": 1}
    assert client.ok("/v1/chat/completions", {**asked, "tool_choice": "none"})["llmi"]["ignored"] == ["tools"]
    assert client.ok("/v1/chat/completions", asked)["llmi"]["ignored"] == []


def test_tokens_without_text(client: Client) -> None:
    """Ids behind the tokenizer's last one are drawn, counted and given back; they have no text."""
    for seed in range(4):
        body = {"input": "hi", "max_output_tokens": 40, "temperature": 1, "seed": seed}
        assert client.ok("/v1/responses", body)["usage"]["output_tokens"] == 40
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "temperature": 1, "seed": 0, "return_token_ids": True}
    [choice] = client.ok("/v1/chat/completions", chat)["choices"]
    assert max(choice["token_ids"]) >= 257
    assert client.ok("/detokenize", {"tokens": choice["token_ids"], "skip_special_tokens": True})["prompt"] == choice["message"]["content"]
    assert "[0, 300)" in client.error("/detokenize", {"tokens": [300]})["message"]


def test_responses_take_their_own_output(llm: LLM) -> None:
    """As OpenAI's client sends it: the objects of one answer, as they are, in the next turn's input."""
    served = Served(llm)
    try:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
            tool: Any = {"type": "function", "name": "weather", "parameters": CITY}
            turn: list[Any] = [{"role": "user", "content": "hi"}]
            for choice in ("required", "none", "required"):
                answer = client.responses.create(
                    model="tiny",
                    input=turn,
                    tools=[tool],
                    tool_choice=choice,
                    max_output_tokens=300,
                    parallel_tool_calls=False,
                    extra_body={"seed": 3},
                )
                turn += answer.output
                calls = [item for item in answer.output if item.type == "function_call"]
                turn += [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
                assert len(calls) == (choice == "required")
                turn.append({"role": "user", "content": "again"})
            ids = [item.call_id for item in turn if not isinstance(item, dict) and item.type == "function_call"]
            assert len(set(ids)) == len(ids) == 2
    finally:
        served.close()


LINES = "one\u2028two\x85three\u2029four"


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 99}, "text"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "content"),
        ("/v1/responses", {"input": "x"}, "delta"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 99}, "text"),
    ],
)
def test_an_event_is_one_line_for_every_client(client: Client, path: str, body: Any, kind: str) -> None:
    """httpx.iter_lines and str.splitlines end a line at U+2028, U+2029 and U+0085, too, which JSON takes as they are."""
    answer = client.post(path, {**body, "stream": True, "structured_outputs": {"choice": [LINES]}})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line.startswith("data: {")]
    told = "".join(text for event in events for text in _texts(event, kind))
    assert told == LINES
    whole = client.post(path, {**body, "structured_outputs": {"choice": [LINES]}})
    assert len(whole.text.splitlines()) == 1 and LINES in json.dumps(whole.json(), ensure_ascii=False)


def _texts(event: Any, kind: str) -> list[str]:
    if kind == "delta":
        return [event["delta"]] if event["type"] == "response.output_text.delta" else []
    if "choices" in event:
        return [(choice.get("delta") or choice).get(kind) or "" for choice in event["choices"]]
    return [event["delta"]["text"]] if event["type"] == "content_block_delta" else []
