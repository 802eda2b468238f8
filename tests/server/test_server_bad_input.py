"""What a server must bear, over a real socket: bodies, headers, methods, sockets and clocks that are wrong. After each it answers as
before."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, AsyncLLM
from llmi.server.limits import Limits
from llmi.server.settings import ServerSettings
from server_client import tiny_llm
from soak.rounds import Running
from soak.wire import Answer, ask
from waiting import HANG_S, wait_until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RIGHT = {"model": "tiny", "prompt": "ab", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with tiny_llm(tiny_path) as llm:
        yield llm


def served(llm: LLM, **settings: Any) -> Iterator[Running]:
    server = Running({"tiny": AsyncLLM(llm=llm)}, ServerSettings(port=0, **settings))
    yield server
    server.tell_to_end()
    server.join()
    llm.reset_prefix_cache()
    stats = llm.get_metrics()
    assert stats["num_free_pages"] == stats["num_pages"] and stats["audit"] == ""


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Running]:
    """One with the default limits, but for the times."""
    yield from served(llm, limits=Limits(header_s=3.0, body_s=3.0))


@pytest.fixture(scope="module")
def roomy(llm: LLM) -> Iterator[Running]:
    """One that takes large bodies."""
    yield from served(llm, limits=Limits(body_bytes=1 << 27))


def post(server: Running, path: str, body: Any, **kwargs: Any) -> Answer:
    return asyncio.run(ask(server.port, path, body if isinstance(body, bytes) else json.dumps(body).encode(), **kwargs))


def works(server: Running) -> bool:
    answer = post(server, COMPLETIONS, RIGHT)
    return answer.status == 200 and answer.json()["usage"]["completion_tokens"] > 0


def raw(server: Running, data: bytes, half_close: bool = False) -> bytes:
    """What a server says to these bytes, until it closes the connection."""
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=HANG_S)) as sock:
        answer = b""
        try:
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(65536):
                answer += part
        except (ConnectionResetError, BrokenPipeError):
            pass
        return answer


def head(*lines: str, method: str = "POST", path: str = COMPLETIONS, host: str = "localhost") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *lines, "", ""]).encode("latin-1")


GZIPPED = gzip.compress(b'{"prompt": "' + b"a" * (100 << 20) + b'"}', 1)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head("Content-Length: 0"), 400),
        (head(), 400),
        (head(f"Content-Length: {len(GZIPPED)}", "Content-Encoding: gzip") + GZIPPED, 415),
        (head(f"Content-Length: {len(GZIPPED)}") + GZIPPED, 400),
        (head("Content-Length: 67108864"), 413),
        (head("Transfer-Encoding: chunked") + b"100000\r\n" + (b"x" * 0x100000 + b"\r\n100000\r\n") * 5, 413),
        (head("Transfer-Encoding: chunked") + b"1\r\n{\r\n" * 40_000, 408),
        (head("Content-Type: image/png", "Content-Length: 4") + b"\x89PNG", 400),
        (head("Content-Length: 10", "Transfer-Encoding: gzip") + b"0123456789", 400),
        (head("Host: 127.0.0.1", "Content-Length: 2") + b"{}", 400),
        (head("Content-Length: 2", host="elsewhere.example") + b"{}", 403),
        (head("X-Much: " + "y" * 66_000, "Content-Length: 2") + b"{}", 431),
        (head("Authorization: Bearer " + "k" * (1 << 20), "Content-Length: 2") + b"{}", 431),
        (head("Expect: 100-continue", "Content-Length: 2") + b"{}", 400),
        (head("Upgrade: websocket", "Content-Length: 2") + b"{}", 400),
    ],
    ids=["length 0", "no body", "gzip bomb", "gzip without its name", "64 MiB said", "endless chunks", "tiny chunks", "an image",
         "odd encoding", "two hosts", "another host", "66 kB header", "key of 1 MB", "expect", "upgrade"],
)  # fmt: skip
def test_requests(server: Running, data: bytes, status: int) -> None:
    answer = raw(server, data)
    # A client that still sends when it is refused may find its connection reset before it has read why.
    assert f"HTTP/1.1 {status} ".encode() in answer or (answer == b"" and status in (413, 431)), answer[:300]
    if answer:
        error = json.loads(answer[answer.index(b"\r\n\r\n{") :])["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"].isascii()
    assert works(server)


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("GET", "/" + "x" * 60_000, (404,)),
        ("GET", "/" + "x" * 70_000, (400, 431)),
        ("GET", "//v1//models", (404,)),
        ("GET", "/v1/models/../models", (404,)),
        ("GET", "/v1/models/%00%ff%2e%2e", (404,)),
        ("GET", "/v1/models/\xe9\xff", (400, 404)),
        ("GET", "http://localhost/v1/models", (200, 400, 404)),
        ("OPTIONS", "*", (400, 404, 405)),
        ("TRACE", COMPLETIONS, (400, 405)),
        ("CONNECT", "localhost:1", (400, 404, 405)),
        ("BREW", "/", (400, 405)),
        ("get", "/v1/models", (400, 405)),
        ("DELETE", COMPLETIONS, (405,)),
        ("HEAD", "/v1/models", (200, 405)),
        ("POST", "/health", (405,)),
        ("GET", "/v1/models?" + "&".join(f"a{i}=1" for i in range(5000)), (200,)),
        ("", "/", (400,)),
        ("GET", "", (400,)),
    ],
)
def test_methods_and_paths(server: Running, method: str, path: str, statuses: tuple[int, ...]) -> None:
    answer = raw(server, head(method=method, path=path))
    assert answer[:9] == b"HTTP/1.1 " and int(answer[9:12]) in statuses, answer[:200]
    assert works(server)


WRONG = [
    {"seed": 2**64},
    {"seed": 1.5},
    {"seed": "1"},
    {"seed": True},
    {"timeout_s": -1},
    {"timeout_s": "1"},
    {"timeout_s": 1e300 * 10},
    {"timeout_s": []},
    {"max_tokens": -1},
    {"max_tokens": 2**63},
    {"n": 0},
    {"n": 2**31},
    {"logprobs": 10**9},
    {"temperature": -1},
    {"temperature": 1e308},
    {"top_p": 0},
    {"prompt": {}},
    {"prompt": []},
    {"prompt": [-1]},
    {"prompt": [2**40]},
    {"prompt": None},
    {"stop": [""] * 100},
    {"logit_bias": {"1": "x"}},
    {"model": ["tiny"]},
    {"stream": 1},
    {"priority": 2**70},
    {"cache_salt": 5},
    {"request_id": "x" * 100_000},
    {"echo": "yes"},
    {"stream_options": []},
]


@pytest.mark.parametrize("more", WRONG, ids=str)
def test_fields_that_are_wrong(server: Running, more: dict[str, Any]) -> None:
    text = json.dumps({**RIGHT, **more})
    answer = post(server, COMPLETIONS, text.replace("Infinity", "1e999").encode())
    assert answer.status in (400, 404), answer
    error = answer.json()["error"]
    assert error["message"].isascii() and len(error["message"]) < 2100 and error["code"] != "null"


def healthy_while(server: Running, work: Callable[[], Any]) -> Any:
    """What `work` gives; while it runs, the server answers others."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    num_answers = 0
    while thread.is_alive():
        num_answers += asyncio.run(ask(server.port, "/health", b"", method="GET")).status == 200
    assert num_answers >= 3
    return result[0]


def test_30_a_body_of_64_mib(roomy: Running) -> None:
    body = b'{"model":"tiny","prompt":"' + b"word " * (64 * 1024 * 1024 // 5) + b'"}'
    answer = healthy_while(roomy, lambda: post(roomy, COMPLETIONS, body))
    assert answer.status == 400 and answer.json()["error"]["code"] in ("context_length_exceeded", "invalid_value")
    assert works(roomy)


def test_a_hundred_thousand_messages(roomy: Running) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}] * 100_000}
    answer = post(roomy, CHAT, body)
    assert answer.status == 400 and answer.json()["error"]["message"] == "messages has 100,000 entries, more than 10,000"
    assert works(roomy)


def test_a_half_closed_socket_is_a_client_that_has_gone(server: Running, llm: LLM) -> None:
    body = json.dumps({**RIGHT, "max_tokens": 1900, "ignore_eos": True}).encode()
    before = llm.get_metrics()["num_generated_tokens"]
    raw(server, head(f"Content-Length: {len(body)}") + body, half_close=True)
    assert llm.get_metrics()["num_generated_tokens"] - before < 1900
    assert works(server)


def test_one_byte_a_second(server: Running) -> None:
    """Many such clients: each is cut off by the deadline of headers, and nobody waits for them."""
    sockets = [socket.create_connection(("127.0.0.1", server.port), timeout=HANG_S) for _ in range(50)]
    try:
        for _ in range(20):
            for sock in sockets:
                with contextlib.suppress(OSError):
                    sock.send(b"G")
            assert works(server)
        for sock in sockets:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1000)[:12] in (b"HTTP/1.1 408", b"HTTP/1.1 400", b"")
    finally:
        for sock in sockets:
            sock.close()


def command(path: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "llmi", "serve", "-m", f"tiny={path}", "--port", "0", "--kv-cache-memory-bytes", "4000000", *options]


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready: "):
            return int(line.rsplit(":", 1)[1])
    raise AssertionError("it did not start")


def test_16_connections_up_to_the_limit_of_files(tiny_path: Callable[..., Path]) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    sockets: list[socket.socket] = []
    with subprocess.Popen(command(tiny_path()), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=few_files) as process:
        try:
            port = port_of(process)
            sockets += [socket.create_connection(("127.0.0.1", port), timeout=HANG_S) for _ in range(120)]
            told = 0
            for sock in sockets[64:]:
                sock.settimeout(HANG_S)
                told += sock.recv(100).startswith(b"HTTP/1.1 503 ")
            assert told == len(sockets) - 64
            for sock in sockets:
                sock.close()
            wait_until(lambda: asyncio.run(ask(port, COMPLETIONS, RIGHT)).status == 200, "a free connection")
        finally:
            for sock in sockets:
                sock.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0


def test_a_server_that_is_stopped_goes_on(tiny_path: Callable[..., Path], llm: LLM) -> None:
    """SIGSTOP in the middle of a stream: after SIGCONT it ends as if nothing had been, and a deadline that has passed meanwhile is told."""
    body = {**RIGHT, "max_tokens": 900, "ignore_eos": True, "stream": True}
    expected = llm.generate("ab", max_tokens=900, ignore_eos=True, temperature=0)[0].outputs[0].text
    with subprocess.Popen(command(tiny_path()), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            port = port_of(process)
            answers: list[Answer] = []
            threads = [
                threading.Thread(target=lambda more=more: answers.append(asyncio.run(ask(port, COMPLETIONS, {**body, **more}))))
                for more in ({}, {})
            ]  # type: ignore[misc]
            for thread in threads:
                thread.start()
            time.sleep(0.1)
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.5)
            process.send_signal(signal.SIGCONT)
            for thread in threads:
                thread.join(HANG_S)
            for answer in answers:
                assert "".join(choice["text"] for event in answer.events() for choice in event["choices"]) == expected
            assert len(answers) == 2 and asyncio.run(ask(port, "/health", b"", method="GET")).status == 200
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0


def test_a_clock_that_is_set_back(server: Running, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a day earlier: deadlines, rates and times of requests do not look at it."""
    days = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 1e9 - 86400 * next(days))
    expected = llm.generate("ab", max_tokens=200, ignore_eos=True, temperature=0)[0].outputs[0].text
    body = {**RIGHT, "max_tokens": 200, "ignore_eos": True, "timeout_s": 60}
    answer = post(server, COMPLETIONS, body)
    assert answer.status == 200 and answer.json()["choices"][0]["text"] == expected and answer.json()["created"] <= 10**9
    assert post(server, COMPLETIONS, {**body, "max_tokens": 1900, "timeout_s": 0.0}).status == 504
    assert post(server, "/metrics", b"", method="GET").status == 200
