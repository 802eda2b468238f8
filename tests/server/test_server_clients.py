"""OpenAI's and Anthropic's own clients, over a socket of this machine; what happens when a client goes; and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from server_client import Served, tiny_llm
from waiting import HANG_S, wait_until


@pytest.fixture(scope="module")
def served(tiny_path: Callable[..., Path]) -> Iterator[Served]:
    with tiny_llm(tiny_path) as llm:
        server = Served(llm)
        yield server
        server.close()


MESSAGES: Any = [{"role": "user", "content": "hi"}]


def test_openai(served: Served) -> None:
    expected = served.llm.chat(MESSAGES, seed=3, max_tokens=12, n=2)[0].outputs
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        whole = client.chat.completions.create(model="tiny", messages=MESSAGES, seed=3, max_tokens=12, n=2, logprobs=True, top_logprobs=1)
        assert [choice.message.content for choice in whole.choices] == [output.text for output in expected]
        assert (
            whole.usage is not None
            and whole.usage.prompt_tokens_details is not None
            and whole.usage.prompt_tokens_details.cached_tokens is not None
        )
        texts = ["", ""]
        with client.chat.completions.create(
            model="tiny", messages=MESSAGES, seed=3, max_tokens=12, n=2, stream=True, stream_options={"include_usage": True}
        ) as stream:
            chunks = list(stream)
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts == [output.text for output in expected] and chunks[-1].usage is not None
        text = client.completions.create(model="tiny", prompt="ab", seed=1, max_tokens=5, extra_body={"top_k": 3}).choices[0].text
        assert text == served.llm.generate("ab", seed=1, max_tokens=5, top_k=3)[0].text
        assert (
            client.responses.create(model="tiny", input="hi", max_output_tokens=12, extra_body={"seed": 3}).output_text == expected[0].text
        )
        choice = {"structured_outputs": {"choice": ["ab"]}}
        with client.responses.stream(model="tiny", input="hi", extra_body=choice) as events:
            assert events.get_final_response().output_text == "ab"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match="temprature"):
            client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"temprature": 1})


def test_anthropic(served: Served) -> None:
    expected = served.llm.chat(MESSAGES, temperature=0, max_tokens=12)[0]
    with anthropic.Anthropic(base_url=served.url, api_key="none") as client:
        whole = client.messages.create(model="tiny", messages=MESSAGES, max_tokens=12, extra_body={"temperature": 0})
        assert whole.content[0].type == "text" and whole.content[0].text == expected.text and whole.stop_reason == "max_tokens"
        with client.messages.stream(model="tiny", messages=MESSAGES, max_tokens=12, extra_body={"temperature": 0}) as stream:
            assert "".join(stream.text_stream) == expected.text
            assert stream.get_final_message().usage.output_tokens == len(expected.token_ids)
        assert client.messages.count_tokens(model="tiny", messages=MESSAGES).input_tokens == len(expected.prompt_token_ids)
        assert [model.id for model in client.models.list()] == ["tiny"]
        with pytest.raises(anthropic.BadRequestError, match="text alone"):
            client.messages.create(
                model="tiny",
                max_tokens=3,
                messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}],
            )


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_frees_its_blocks(served: Served, stream: bool) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1900, "ignore_eos": True, "stream": stream}
    before = served.llm.get_metrics()["num_generated_tokens"]
    with socket.create_connection(served.sock.getsockname()) as sock:
        data = json.dumps(body).encode()
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        wait_until(lambda: served.llm.get_metrics()["num_generated_tokens"] > before)
    wait_until(lambda: served.llm.get_metrics()["num_running"] == 0)
    assert served.llm.get_metrics()["num_generated_tokens"] - before < 1900


def test_deadlines(served: Served) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 1900, "ignore_eos": True, "timeout_s": 1.0}
    slow = served.llm.stream([1], max_tokens=1900, ignore_eos=True, stopping_criteria=[lambda context: time.sleep(0.01)])
    next(slow)  # from here on a step takes 10 ms
    response = httpx.post(f"{served.url}/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
    text = httpx.post(f"{served.url}/v1/chat/completions", json={**body, "stream": True}).text
    assert '"code":"timeout"' in text.split("\n\n")[-3] and '"finish_reason":"' not in text and text.endswith("data: [DONE]\n\n")
    slow.close()
    wait_until(lambda: served.llm.get_metrics()["num_running"] == 0)


def test_the_command(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "llmi",
        "serve",
        "-m",
        f"a={tiny_path()}",
        "-m",
        f"b={tiny_path('gemma3')}",
        "--num-threads",
        "1,1",
        "--port",
        "0",
        "--kv-cache-memory-bytes",
        "4000000",
        "--receipts",
        str(tmp_path),
    ]
    environment = os.environ | {"LLMI_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = [process.stdout.readline() for _ in range(3)]
        try:
            assert re.match(r"model a: llmi-[0-9a-f]{16}; weights .* MB, KV cache .* MB, [\d,]+ tokens", lines[0]), lines
            assert lines[1].startswith("model b: ") and lines[2].startswith("ready: http://127.0.0.1:")
            url = lines[2].removeprefix("ready: ").strip()
            answer = httpx.post(f"{url}/v1/completions", json={"model": "b", "prompt": "a", "max_tokens": 3}).json()
            assert answer["model"] == "b" and answer["system_fingerprint"] in lines[1]
        finally:
            process.send_signal(signal.SIGTERM)
            said, logged = process.communicate(timeout=HANG_S)
            assert process.returncode in (0, -signal.SIGTERM), logged
    assert said == "" and re.fullmatch(r"llmi: POST /v1/completions 200 \d+ ms key -\n", logged), logged
    assert len(list(tmp_path.glob("*.json"))) == 1
    assert len(json.loads((tmp_path / "cache" / "digests.json").read_text())) >= 4


def test_the_readmes_question(smollm_path: Path, tmp_path: Path) -> None:
    """The curl command of the README, sent to `llmi serve`, prints the README's answer."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    found = re.search(r"\$ llmi serve &\n\$ curl -s http://127\.0\.0\.1:8000(\S+) -d '(.*?)' \| .*\n(.*)\n", readme)
    assert found is not None
    path, body, answer = found.groups()
    command = [
        sys.executable,
        "-m",
        "llmi",
        "serve",
        "-m",
        str(smollm_path),
        "--port",
        "0",
        "--kv-cache-memory-bytes",
        "100000000",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(2)]
            url = lines[1].removeprefix("ready: ").strip()
            told = httpx.post(url + path, content=body.encode(), timeout=HANG_S).json()
            assert told["choices"][0]["message"]["content"] == answer
        finally:
            process.terminate()
            process.wait(HANG_S)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--port", "70000"], "--port"),
        (["--num-threads", "0"], "--num-threads"),
        (["--num-threads", "1,2,3"], "--num-threads"),
        (["-m", "x=a", "-m", "x=b"], "two models are named 'x'"),
        (["--receipts", "/nonexistent"], "--receipts"),
        (["--host", "203.0.113.77"], "no key would be needed: give --keys FILE"),
    ],
)
def test_wrong_flags_are_one_line(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    from llmi.cli.commands import main

    assert main(["serve", *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and says in lines[0]


def test_a_digest_is_read_from_the_cache_until_its_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llmi.models import digest_cache
    from llmi.models.files import open_model
    from llmi.testing import tiny_model

    monkeypatch.setenv("LLMI_CACHE", str(tmp_path / "cache"))
    path = tiny_model(path=tmp_path / "model", num_layers=1)
    first = open_model(path).digest()
    first.from_cache()
    assert first() == open_model(path).digest()()
    digest_cache.keep(dict.fromkeys(digest_cache.known_digests(), "0" * 64))
    planted = open_model(path).digest()
    planted.from_cache()
    assert planted() != first()  # it was read from the cache
    for file in path.iterdir():
        os.utime(file, ns=(1, 1))
    changed = open_model(path).digest()
    changed.from_cache()
    assert changed() == first()
