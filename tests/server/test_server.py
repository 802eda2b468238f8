"""The server's OpenAI endpoints: answers are those of LLM.generate, whole and streamed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import llmi
from llmi import LLM
from llmi.requests.results import ResultBuilder
from llmi.server import tokens
from llmi.server.completions import CompletionForm
from llmi.server.settings import ServerSettings
from server_client import Client, tiny_llm

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def client(tiny_path: Callable[..., Path]) -> Iterator[Client]:
    with tiny_llm(tiny_path) as llm:
        yield Client(llm)


def streamed_texts(chunks: list[dict[str, Any]], count: int) -> list[str]:
    texts = [""] * count
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    return texts


PARAMS = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 3, "n": 3},
    {"top_k": 20, "min_p": 0.01, "repetition_penalty": 1.2, "seed": 9},
    {"seed": 5, "stop": ["a", "é"], "n": 4, "include_stop_str_in_output": True},
    {"seed": 5, "logit_bias": {"98": 4.0, "99": "-inf"}, "ignore_eos": True},
    {"num_beams": 3, "num_return_sequences": 2},
    {"seed": 2**64 - 1, "mirostat": 2, "min_tokens": 4},
    {"seed": 5, "stop_regex": "[a-m].?[n-z]", "n": 4, "repetition_detection": {"max_pattern_size": 3, "min_count": 2}},
]


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_answers_are_those_of_generate(client: Client, params: dict[str, Any]) -> None:
    kwargs = dict(params)
    if "logit_bias" in kwargs:
        kwargs["logit_bias"] = {int(token): float(bias) for token, bias in kwargs["logit_bias"].items()}
    expected = client.llm.generate("ab", max_tokens=24, **kwargs)[0].outputs
    body = {"model": "tiny", "prompt": "ab", "max_tokens": 24, **params}
    whole = client.ok(COMPLETIONS, body)
    assert [choice["text"] for choice in whole["choices"]] == [output.text for output in expected]
    assert [choice["finish_reason"] for choice in whole["choices"]] == [output.finish_reason for output in expected]
    assert [choice["stop_reason"] for choice in whole["choices"]] == [output.stop_reason for output in expected]
    assert whole["usage"]["completion_tokens"] == sum(len(output.token_ids) for output in expected)
    chunks = client.events(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    assert streamed_texts(chunks, len(expected)) == [output.text for output in expected]
    ends = {choice["index"]: choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]}
    assert ends == {output.index: output.finish_reason for output in expected}
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1) and chunks[-1]["choices"] == []
    assert {**chunks[-1]["usage"], "prompt_tokens_details": 0} == {**whole["usage"], "prompt_tokens_details": 0}


@pytest.mark.parametrize("params", PARAMS[:5], ids=str)
def test_chats_are_those_of_chat(client: Client, params: dict[str, Any]) -> None:
    kwargs = dict(params)
    if "logit_bias" in kwargs:
        kwargs["logit_bias"] = {int(token): float(bias) for token, bias in kwargs["logit_bias"].items()}
    expected = client.llm.chat(MESSAGES, max_tokens=24, **kwargs)[0].outputs
    body = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 24, **params}
    whole = client.ok(CHAT, body)
    assert [choice["message"]["content"] for choice in whole["choices"]] == [output.text for output in expected]
    assert streamed_texts(client.events(CHAT, body), len(expected)) == [output.text for output in expected]


def test_log_probabilities_bit_for_bit(client: Client) -> None:
    expected = client.llm.generate("ab", seed=4, max_tokens=9, logprobs=3, temperature=0.7)[0].outputs[0]
    assert expected.logprobs is not None
    body = {"model": "tiny", "prompt": "ab", "seed": 4, "max_tokens": 9, "logprobs": 3, "temperature": 0.7}
    whole = client.ok(COMPLETIONS, body)["choices"][0]["logprobs"]
    assert whole["token_logprobs"] == [
        position[token].logprob for token, position in zip(expected.token_ids, expected.logprobs, strict=True)
    ]
    assert whole["llmi"]["processed_logprobs"] == [
        position[token].processed_logprob for token, position in zip(expected.token_ids, expected.logprobs, strict=True)
    ]
    joined: dict[str, list[Any]] = {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    for chunk in client.events(COMPLETIONS, body):
        for name, values in joined.items():
            values += (chunk["choices"][0]["logprobs"] or {name: []})[name]
    assert joined == {name: whole[name] for name in joined}


def test_log_probabilities_of_a_chat(client: Client) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "seed": 4, "max_tokens": 9, "logprobs": True, "top_logprobs": 2, "top_k": 3}
    expected = client.llm.chat(MESSAGES, seed=4, max_tokens=9, logprobs=2, top_k=3)[0].outputs[0]
    assert expected.logprobs is not None
    content = client.ok(CHAT, body)["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == [p[t].logprob for t, p in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert [bytes(entry["bytes"]) for entry in content] == [client.llm.tokenizer.vocab_bytes[token] for token in expected.token_ids]
    assert all([other["llmi"]["rank"] for other in entry["top_logprobs"]] == [1, 2] for entry in content)
    parts = [chunk["choices"][0]["logprobs"] for chunk in client.events(CHAT, body)]
    assert [entry for part in parts if part for entry in part["content"]] == content
    assert all(entry["top_logprobs"] == [] for entry in client.ok(CHAT, {**body, "top_logprobs": 0})["choices"][0]["logprobs"]["content"])


@pytest.mark.parametrize("name", ["logprob_token_ids", "token_ids_logprob"])
def test_log_probabilities_of_given_ids(client: Client, name: str) -> None:
    """They are among top_logprobs, in each form, with or without other alternatives; ids beyond the vocabulary are named."""
    chat = {"model": "tiny", "messages": MESSAGES, "seed": 4, "max_tokens": 5, name: [65, 7]}
    expected = client.llm.chat(MESSAGES, seed=4, max_tokens=5, logprobs=2, logprob_token_ids=[65, 7])[0].outputs[0].logprobs
    assert expected is not None
    for more, num_top in (({}, 0), ({"logprobs": True, "top_logprobs": 2}, 2)):
        content = client.ok(CHAT, {**chat, **more})["choices"][0]["logprobs"]["content"]
        for entry, position in zip(content, expected, strict=True):
            told = {other["llmi"]["token_id"]: other["logprob"] for other in entry["top_logprobs"]}
            assert {65, 7} <= {*told} and len(told) <= 2 + num_top
            assert all(position[token].logprob == value for token, value in told.items())
    body = {"model": "tiny", "prompt": "ab", "max_tokens": 3, name: [65]}
    text = client.llm.tokenizer.decode([65])
    assert all(text in top for top in client.ok(COMPLETIONS, body)["choices"][0]["logprobs"]["top_logprobs"])
    error = client.error(COMPLETIONS, {**body, name: [99_999]})
    assert error["param"] == "logprob_token_ids" and "outside" in error["message"]
    assert name in client.error("/v1/messages", {"model": "tiny", "messages": MESSAGES, "max_tokens": 3, name: [65]})["message"]


def test_ends_are_refused_by_name(client: Client) -> None:
    body = {"model": "tiny", "prompt": "ab", "max_tokens": 3}
    for name, value, says in (
        ("stop_regex", "(a{1000}){1000}", "1,024 states"),
        ("stop_regex", r"(a)\1", "backreferences"),
        ("repetition_detection", {"max_pattern_size": 3}, "min_count = 0"),
        ("thinking_token_budget", 3, "name thinking"),
        ("thinking_token_budget", "3", "must be"),
    ):
        error = client.error(COMPLETIONS, {**body, name: value})
        assert error["param"] == name and says in error["message"], error


def test_null_is_the_default_of_max_tokens(client: Client) -> None:
    body = {"prompt": "ab", "max_tokens": None, "ignore_eos": True}
    assert client.ok(COMPLETIONS, body)["usage"]["completion_tokens"] == 16
    assert client.ok(COMPLETIONS, {**body, "max_new_tokens": 3})["usage"]["completion_tokens"] == 3
    assert client.ok(COMPLETIONS, {**body, "max_tokens": 3, "max_new_tokens": None})["usage"]["completion_tokens"] == 3


def test_several_prompts_and_echo(client: Client) -> None:
    body = {"model": "tiny", "prompt": ["ab", [1, 2, 3], "é"], "n": 2, "max_tokens": 5, "seed": 7, "echo": True}
    whole = client.ok(COMPLETIONS, body)
    expected = client.llm.generate(["ab", [1, 2, 3], "é"], n=2, max_tokens=5, seed=7)
    echoed = ["ab", client.llm.tokenizer.decode([1, 2, 3]), "é"]
    texts = [echoed[index] + output.text for index, prompt in enumerate(expected) for output in prompt.outputs]
    assert [choice["text"] for choice in whole["choices"]] == texts and [c["index"] for c in whole["choices"]] == list(range(6))
    assert streamed_texts(client.events(COMPLETIONS, body), 6) == texts
    scored = client.ok(COMPLETIONS, {"model": "tiny", "prompt": "abc", "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0})
    prompt = client.llm.generate("abc", max_tokens=1, prompt_logprobs=1, temperature=0)[0].prompt_logprobs
    assert prompt is not None
    shown = scored["choices"][0]["logprobs"]
    values = [None, *(next(iter(position.values())).logprob for position in prompt[1:] if position)]
    assert shown["token_logprobs"][:3] == values and shown["tokens"][:3] == ["a", "b", "c"] and shown["text_offset"][:4] == [0, 1, 2, 3]
    assert shown["top_logprobs"][0] is None and len(shown["tokens"]) == 4
    body = {"model": "tiny", "prompt": ["abc", "é"], "max_tokens": 3, "echo": True, "logprobs": 2, "n": 2, "seed": 1}
    whole = client.ok(COMPLETIONS, {**body, "prompt_logprobs": 2})
    chunks = client.events(COMPLETIONS, {**body, "prompt_logprobs": 2})
    assert streamed_texts(chunks, 4) == [choice["text"] for choice in whole["choices"]]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined: list[list[Any]] = [[] for _ in range(4)]
        for chunk in chunks:
            for choice in chunk["choices"]:
                joined[choice["index"]] += (choice["logprobs"] or {name: []})[name]
        assert joined == [choice["logprobs"][name] for choice in whole["choices"]], name
    prompts = {choice["index"]: choice["prompt_logprobs"] for chunk in chunks for choice in chunk["choices"] if "prompt_logprobs" in choice}
    assert prompts == {choice["index"]: choice["prompt_logprobs"] for choice in whole["choices"]}


def test_a_drawn_seed_repeats_the_answer(client: Client) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20}
    first, second = client.ok(CHAT, body), client.ok(CHAT, body)
    assert first["llmi"]["seed"] != second["llmi"]["seed"] and first["llmi"]["seed"] < 2**53
    again = client.ok(CHAT, {**body, "seed": first["llmi"]["seed"]})
    assert again["choices"] == first["choices"] and again["system_fingerprint"] == first["system_fingerprint"] != ""
    chunks = client.events(CHAT, {**body, "seed": first["llmi"]["seed"]})
    assert streamed_texts(chunks, 1) == [first["choices"][0]["message"]["content"]]
    assert chunks[0]["llmi"] == chunks[-1]["llmi"] == {"seed": first["llmi"]["seed"], "ignored": [], "date": None}
    many = client.ok(COMPLETIONS, {"model": "tiny", "prompt": ["a", "a"], "max_tokens": 20})
    assert many["choices"][0]["text"] != many["choices"][1]["text"] and len(set(many["llmi"]["seeds"])) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_receipts_are_replayed(client: Client, stream: bool, tmp_path: Path) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "logprobs": True, "n": 2, "receipt": True}
    llmi_part = (client.events(CHAT, body)[-1] if stream else client.ok(CHAT, body))["llmi"]
    (tmp_path / "answer.json").write_text(json.dumps(llmi_part["receipt"]))
    receipt = llmi.Receipt.load(tmp_path / "answer.json")
    assert llmi.replay(receipt, client.llm)
    receipt.fields["seed"] += 1
    assert not llmi.replay(receipt, client.llm)


def test_whole_answers_are_replayed(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    for path, body in ((CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "a"}), ("/v1/messages", {"messages": MESSAGES})):
        file.write_text(json.dumps(client.ok(path, {**body, "model": "tiny", "max_tokens": 3, "receipt": True})))
        assert llmi.replay(file, client.llm)
    for body, says in (({"prompt": "a"}, "has none"), ({"prompt": ["a", "b"], "receipt": True}, "with 2 of them")):
        file.write_text(json.dumps(client.ok(COMPLETIONS, {**body, "model": "tiny", "max_tokens": 3})))
        with pytest.raises(llmi.InvalidParamsError, match=f"not a receipt .it is an answer .*{says}"):
            llmi.Receipt.load(file)


def test_receipts_in_a_folder(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Client(client.llm, ServerSettings(receipts=tmp_path))
    answer = other.ok(COMPLETIONS, {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 3})
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"{answer['id']}-0.json", f"{answer['id']}-1.json"]
    assert all(file.stat().st_mode & 0o777 == 0o600 and llmi.replay(file, client.llm) for file in files)
    assert "receipt" not in answer["llmi"]

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("llmi.base.whole_file.os.open", full)
    answer = other.ok(COMPLETIONS, {"model": "tiny", "prompt": "a", "max_tokens": 3})
    assert answer["llmi"]["receipt"] is None and "No space left" in answer["llmi"]["receipt_reason"]
    assert answer["choices"][0]["text"] and other.app.state.llmi.receipts.num_failed == 1
    assert (
        "llmi:receipts_failed_total 1\n" in other.get("/metrics").text and "llmi:receipts_failed_total 0\n" in client.get("/metrics").text
    )


def test_30_large_answers_are_made_off_the_loop(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[str] = []

    def note(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            places.append(f"{name}: {'loop' if threading.current_thread() is threading.main_thread() else 'thread'}")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    note(ResultBuilder, "output")
    note(CompletionForm, "whole")
    for max_tokens, place in ((3, "loop"), (300, "thread")):
        places.clear()
        client.ok("/v1/completions", {"prompt": [1], "max_tokens": max_tokens, "ignore_eos": True, "logprobs": 20, "seed": 1})
        assert places == [f"output: {place}", f"whole: {place}"]
    small = client.ok("/v1/completions", {"prompt": [1], "max_tokens": 3, "ignore_eos": True, "logprobs": 20, "seed": 1})
    large = client.ok("/v1/completions", {"prompt": [1], "max_tokens": 300, "ignore_eos": True, "logprobs": 20, "seed": 1})
    for name, values in small["choices"][0]["logprobs"].items():
        if name != "llmi":
            assert large["choices"][0]["logprobs"][name][:3] == values


def test_30_ids_to_detokenize_are_read_off_the_loop(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[bool] = []

    class Ids:
        @staticmethod
        def parse(name: str, value: Any) -> list[int]:
            places.append(threading.current_thread() is threading.main_thread())
            return list(value)

    monkeypatch.setattr(tokens, "TOKEN_IDS", Ids)
    assert client.ok("/detokenize", {"tokens": [97, 98]})["prompt"]
    assert client.error("/detokenize", {"tokens": [97, 1 << 20]})["param"] == "tokens"
    assert places == [False, False]


def test_what_never_fits_the_cache_is_the_requests_fault(tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 17) as llm:
        small = Client(llm)
        length = llm.model_info.max_model_len
        error = small.error(COMPLETIONS, {"prompt": [1] * 8, "max_tokens": length - 8, "beam_width": 16, "temperature": 0})
    assert error["code"] == "kv_cache_exceeded" and "beam_width = 16 needs" in error["message"]


def test_models_health_and_ready(client: Client, tiny_path: Callable[..., Path]) -> None:
    models = client.get("/v1/models").json()
    assert [entry["id"] for entry in models["data"]] == ["tiny"] and models["data"][0]["max_model_len"] == 2048
    assert client.get("/v1/models/tiny").json() == models["data"][0]
    assert client.get("/v1/models/other").status_code == 404
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    with tiny_llm(tiny_path) as llm:
        other = Client(llm)
        llm.close()
        assert other.get("/health").status_code == 503
        assert other.error(CHAT, {"model": "tiny", "messages": MESSAGES}, 503)["code"] == "engine_unavailable"


def test_a_dead_engine_leaves_the_others_alone(tiny_path: Callable[..., Path], client: Client) -> None:
    from llmi import AsyncLLM
    from llmi.server.app import make_app

    dying = LLM(tiny_path(), kv_cache_memory_bytes=1 << 22)
    both = Client(client.llm)
    both.app = make_app({"dying": AsyncLLM(llm=dying), "tiny": AsyncLLM(llm=client.llm)})
    assert both.ok(COMPLETIONS, {"model": "dying", "prompt": "a"})["model"] == "dying"
    dying.close()
    assert both.error(COMPLETIONS, {"model": "dying", "prompt": "a"}, 503)["code"] == "engine_unavailable"
    assert both.ok(COMPLETIONS, {"model": "tiny", "prompt": "a"})["model"] == "tiny"


def test_fingerprints_name_what_answers_depend_on(tiny_path: Callable[..., Path], client: Client) -> None:
    from llmi.server.fingerprint import fingerprint_of

    def of(path: Path, **kwargs: Any) -> str | None:
        with LLM(path, kv_cache_memory_bytes=1 << 22, **kwargs) as llm:
            return fingerprint_of(llm)

    path = tiny_path()
    base = of(path)
    assert base == of(path, num_threads=1, max_num_seqs=3, enable_prefix_caching=False)
    others = [of(tiny_path(seed=5)), of(path, chat_template="{{ messages }}"), of(path, dtype="bfloat16"), of(path, max_model_len=64)]
    assert base is not None and base.startswith("llmi-") and len({base, *others}) == 5
    assert of(path, speculative_config={"method": "ngram", "verification": "typical", "num_speculative_tokens": 2}) is None
