"""What a server holds and counts while others make it wait: slow readers, silent streams, bodies that take their time, keys that share an
engine."""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from held_clock import run_skipping
from llmi import LLM, AsyncLLM, SamplingParams, _core
from llmi.cli.serve import add_options, load
from llmi.outputs.completion import RequestMetrics
from llmi.requests.prepare import CallOptions
from llmi.server import event_stream
from llmi.server.keys import Caller
from llmi.server.limits import Limits
from llmi.server.settings import ServerSettings
from server_client import tiny_llm
from soak.rounds import Running
from soak.wire import Connection, ask, request_bytes
from waiting import HANG_S, wait_until

COMPLETIONS = "/v1/completions"
LONG = {"model": "tiny", "prompt": "ab", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with tiny_llm(tiny_path, max_num_seqs=8) as llm:
        yield llm


def has_begun(llm: LLM) -> Callable[[], bool]:
    """Whether tokens were generated since now: a request that begins and ends between two looks has begun."""
    before = llm.get_metrics()["num_generated_tokens"]
    return lambda: bool(llm.get_metrics()["num_generated_tokens"] > before)


class Serving:
    """A server for a block."""

    def __init__(self, llm: LLM, **settings: Any) -> None:
        self.server = Running({"tiny": AsyncLLM(llm=llm)}, ServerSettings(port=0, **settings))

    def __enter__(self) -> Running:
        return self.server

    def __exit__(self, *_: object) -> None:
        self.server.tell_to_end()
        self.server.join()


@pytest.mark.parametrize("prompts", ["ab", ["ab", "cd", "ef"]], ids=["one prompt", "several"])
def test_5_what_waits_for_a_slow_reader_is_bounded(llm: LLM, prompts: Any) -> None:
    """A client that reads nothing for a while: its request ends when more than the limit waits for it, and it is told so when it reads
    again."""
    body = {**LONG, "prompt": prompts, "stream": True, "logprobs": 20}
    limits = Limits(unread_bytes=96 * 21 * 200)  # 200 tokens with twenty alternatives each

    async def run(server: Running) -> bytes:
        begun = has_begun(llm)
        connection = await Connection.open(server.port, (4096, 0.0))
        await connection.send(request_bytes(COMPLETIONS, json.dumps(body).encode(), close=True))
        await asyncio.to_thread(wait_until, begun)
        await asyncio.to_thread(wait_until, lambda: llm.get_metrics()["num_running"] == 0, "the end of the request")
        assert llm.get_metrics()["num_free_pages"] >= llm.get_metrics()["num_pages"] - llm.get_metrics()["num_cached_pages"]
        answer = await connection.answer()
        connection.close()
        return answer.body

    with Serving(llm, limits=limits) as server:
        data = asyncio.run(run(server))
        assert asyncio.run(ask(server.port, COMPLETIONS, {**LONG, "max_tokens": 3})).status == 200
    assert b'"code":"slow_reader"' in data and data.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' not in data


def test_5_a_slow_reader_below_the_bound_gets_all(llm: LLM) -> None:
    expected = llm.generate("ab", max_tokens=1900, ignore_eos=True, temperature=0)[0].outputs[0]

    async def run(server: Running) -> Any:
        begun = has_begun(llm)
        connection = await Connection.open(server.port, (4096, 0.0))
        await connection.send(request_bytes(COMPLETIONS, json.dumps({**LONG, "stream": True, "return_token_ids": True}).encode()))
        await asyncio.to_thread(wait_until, begun)
        await asyncio.to_thread(wait_until, lambda: llm.get_metrics()["num_running"] == 0)
        answer = await connection.answer()
        connection.close()
        return answer

    with Serving(llm) as server:
        events = asyncio.run(run(server)).events()
    ids = [token for event in events for choice in event["choices"] for token in choice.get("token_ids") or ()]
    assert ids == expected.token_ids


@pytest.mark.parametrize("waits", ["in the queue", "for its tokens"])
def test_23_silent_streams_get_comments(llm: LLM, waits: str) -> None:
    limits = Limits(keep_alive_s=0.05)
    body = {**LONG, "stream": True}
    if waits == "for its tokens":  # nothing is told before the stop string can be ruled out
        body |= {"stop": ["\x01" * 30], "logit_bias": {"2": 100.0}, "max_tokens": 25}

    async def run(server: Running) -> bytes:
        others = [await Connection.open(server.port) for _ in range(8 if waits == "in the queue" else 0)]
        for other in others:
            await other.send(request_bytes(COMPLETIONS, json.dumps({**body, "n": 1}).encode()))
        if others:
            await asyncio.to_thread(wait_until, lambda: llm.get_metrics()["num_running"] == 8)
        connection = await Connection.open(server.port)
        if others:
            await connection.send(request_bytes(COMPLETIONS, json.dumps(body).encode()))
        data = b""
        while others and b": keep-alive\n\n" not in data:
            data += (part := await connection.read())
            assert part, "the answer ended without a comment"
        for each in (*others, connection):
            each.close(reset=True)
        return data

    if waits == "in the queue":
        with Serving(llm, limits=limits) as server:
            data = asyncio.run(run(server))
        assert b"HTTP/1.1 200" in data and b": keep-alive\n\n" in data
        return
    sent: list[bytes] = []

    async def events() -> Any:
        await asyncio.sleep(0.12)
        yield b"data: 1\n\n"

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    run_skipping(streamed(events(), send, limits))
    assert sent[1:4] == [b": keep-alive\n\n"] * 2 + [b"data: 1\n\n"]


async def streamed(events: Any, send: Any, limits: Limits) -> None:
    """Sends a stream to a client that stays."""

    async def receive() -> Any:
        await asyncio.sleep(1e6)

    await event_stream.EventStream(events, limits.keep_alive_s)({"type": "http"}, receive, send)


def test_23_the_silence_counts_from_the_last_event() -> None:
    """And not from the last time that somebody looked."""
    sent: list[tuple[float, bytes]] = []

    async def events() -> Any:
        await asyncio.sleep(4)
        yield b"data: 1\n\n"
        await asyncio.sleep(26)

    async def send(message: Any) -> None:
        sent.append((asyncio.get_running_loop().time(), message.get("body", b"")))

    run_skipping(streamed(events(), send, Limits(keep_alive_s=10)))
    assert sent[1:] == [(4, b"data: 1\n\n"), (14, b": keep-alive\n\n"), (24, b": keep-alive\n\n"), (30, b"")]


def test_5_a_slow_reader_that_makes_progress_is_not_cut() -> None:
    """One write takes longer than a client may read nothing."""
    sent: list[bytes] = []

    async def events() -> Any:
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    async def send(message: Any) -> None:
        await asyncio.sleep(0.1 if message.get("body") == b"data: 1\n\n" else 0)
        sent.append(message.get("body", b""))

    run_skipping(streamed(events(), send, Limits(stuck_s=0.02, keep_alive_s=0.02)))
    assert b"data: 2\n\n" in sent and sent[-1] == b""


def keys_file(folder: Path, **more: dict[str, object]) -> Path:
    path = folder / "keys.toml"
    lines = []
    for name, fields in more.items():
        entries = {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), **fields}
        lines += ["[[keys]]", *(f"{key} = {json.dumps(value)}" for key, value in entries.items())]
    path.write_text("\n".join(lines))
    return path


def with_key(port: int, key: str, body: dict[str, Any]) -> Any:
    data = request_bytes(COMPLETIONS, json.dumps(body).encode(), close=True).replace(
        b"\r\n", f"\r\nauthorization: Bearer {key}\r\n".encode(), 1
    )

    async def run() -> Any:
        connection = await Connection.open(port)
        await connection.send(data)
        answer = await connection.answer()
        connection.close()
        return answer.json()

    return asyncio.run(run())


def test_36_cached_tokens_are_those_of_the_keys_own_salt(llm: LLM, tmp_path: Path) -> None:
    """Always told, 0 on a miss; a key's second request hits, another key's never does, and `cache_salt` narrows within a key."""
    prompt = {"model": "tiny", "prompt": "the same long beginning of a prompt, " * 4, "max_tokens": 2, "temperature": 0}
    with Serving(llm, keys=keys_file(tmp_path, alice={}, bob={})) as server:

        def cached(key: str, **more: object) -> int:
            answer = with_key(server.port, key, {**prompt, **more})
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [cached("alice"), cached("alice") > 0, cached("bob"), cached("bob") > 0] == [0, True, 0, True]
        assert [cached("alice", cache_salt="x"), cached("alice", cache_salt="x") > 0, cached("bob", cache_salt="x")] == [0, True, 0]
        texts = {with_key(server.port, key, prompt)["choices"][0]["text"] for key in ("alice", "bob")}
    assert len(texts) == 1, "a salt changes no token"


def test_a_body_may_lower_its_keys_priority_and_never_raise_it(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = AsyncLLM.generate

    def generate(self: AsyncLLM, *args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["priority"])
        return original(self, *args, **kwargs)

    monkeypatch.setattr(AsyncLLM, "generate", generate)
    with Serving(llm, keys=keys_file(tmp_path, alice={"priority": 3}, bob={"priority": -2})) as server:
        for key, more in (("alice", {}), ("alice", {"priority": 9}), ("alice", {"priority": -9}), ("bob", {}), ("bob", {"priority": 0})):
            answer = with_key(server.port, key, {**LONG, "max_tokens": 1, **more})
            assert answer["choices"] and answer["llmi"]["ignored"] == ["priority"], "this engine's policy is fcfs"
    assert seen == [3, 9, 3, -2, 0]


def test_the_command_serves_by_priority(tiny_path: Callable[..., Path]) -> None:
    """One seat: of the requests that wait, the urgent one runs first, and those of equal priority in the order in which they came."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    arguments = parser.parse_args(["--max-num-seqs", "1", "--kv-cache-memory-bytes", str(1 << 26)])
    engine = load(arguments, str(tiny_path(max_position_embeddings=1 << 16)), 1, None)
    order: list[str] = []

    async def answered(port: int, name: str, **more: Any) -> None:
        body = (await ask(port, COMPLETIONS, {**LONG, **more})).json()
        assert body["llmi"]["ignored"] == []
        order.append(name)

    async def run(port: int) -> None:
        tasks = []
        for name, priority, max_tokens in (("running", 0, 60_000), ("low 1", 10, 5), ("low 2", 10, 5), ("urgent", 0, 5)):
            tasks.append(asyncio.ensure_future(answered(port, name, priority=priority, max_tokens=max_tokens)))
            while len(engine.live().requests) < len(tasks):
                await asyncio.sleep(0.001)
        tasks[0].cancel()
        await asyncio.gather(*tasks[1:])

    try:
        server = Running({"tiny": engine}, ServerSettings(port=0))
        try:
            asyncio.run(run(server.port))
        finally:
            server.tell_to_end()
            server.join()
    finally:
        engine.llm.close()
    assert order == ["urgent", "low 1", "low 2"]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["unstreamed", "streamed"])
@pytest.mark.parametrize("end", ["a deadline", "no reader"])
def test_requests_that_end_early_are_paid_for(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool, end: str) -> None:
    paid: list[int] = []
    monkeypatch.setattr(Caller, "spend", lambda self, num_tokens: paid.append(num_tokens))
    body = {**LONG, "prompt": [[7] * 30] * 16, "n": 8, "stream": stream, "timeout_s": 3.0 if end == "a deadline" else 600}

    async def run(server: Running) -> None:
        begun = has_begun(llm)
        connection = await Connection.open(server.port)
        data = request_bytes(COMPLETIONS, json.dumps(body).encode(), close=True)
        await connection.send(data.replace(b"\r\n", b"\r\nauthorization: Bearer alice\r\n", 1))
        await asyncio.to_thread(wait_until, begun)
        await asyncio.sleep(0.1)
        if end == "a deadline":
            assert b"timeout_s" in (await connection.answer()).body
        connection.close(reset=True)
        await asyncio.to_thread(wait_until, lambda: len(paid) == 16)

    with Serving(llm, keys=keys_file(tmp_path, alice={})) as server:
        before = llm.get_metrics()["num_generated_tokens"]
        asyncio.run(run(server))
        written = llm.get_metrics()["num_generated_tokens"] - before
    assert len(paid) == 16 and 16 * 30 < sum(paid) <= 16 * 30 + written


def test_a_negative_prompt_is_part_of_what_a_key_may_and_pays(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paid: list[int] = []
    monkeypatch.setattr(Caller, "spend", lambda self, num_tokens: paid.append(num_tokens))
    body = {**LONG, "prompt": [5] * 10, "max_tokens": 4, "guidance_scale": 2.0}
    with Serving(llm, keys=keys_file(tmp_path, alice={"max_context": 100})) as server:
        refused = with_key(server.port, "alice", {**body, "negative_prompt": [6] * 90})["error"]
        assert refused["code"] == "invalid_value" and "104 tokens, more than the 100 of this key" in refused["message"]
        assert with_key(server.port, "alice", {**body, "negative_prompt": [6] * 86})["choices"]
    assert paid == [100]


def test_18_the_time_of_the_body_counts(llm: LLM) -> None:
    """A body that takes its time: the deadline counts from the headers."""
    data = request_bytes(COMPLETIONS, json.dumps({**LONG, "timeout_s": 0.4}).encode(), close=True)

    async def run(server: Running) -> Any:
        connection = await Connection.open(server.port)
        await connection.send(data[:-1])
        await asyncio.to_thread(wait_until, lambda: server.server.config.app.state.llmi.door.num_active == 1, "the headers")
        await asyncio.sleep(0.4)  # its deadline passes
        await connection.send(data[-1:])
        answer = await connection.answer()
        connection.close()
        return answer

    before = llm.get_metrics()["num_generated_tokens"]
    with Serving(llm) as server:
        answer = asyncio.run(run(server))
    assert answer.status == 504 and answer.json()["error"]["code"] == "timeout" and "0 tokens" in answer.json()["error"]["message"]
    assert llm.get_metrics()["num_generated_tokens"] == before


def test_refusals_of_connections_are_counted(llm: LLM) -> None:
    def raw(port: int, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as sock:
            sock.sendall(data)
            answer = b""
            while part := sock.recv(65536):
                answer += part
            return answer

    with Serving(llm, limits=Limits(header_s=2.0, body_s=0.2)) as server:
        answer = raw(server.port, b"no request at all\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ") and json.loads(answer.split(b"\r\n\r\n")[1])["error"]["type"] == "invalid_request_error"
        assert raw(server.port, b"GET /").startswith(b"HTTP/1.1 408 ")
        assert raw(server.port, b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nx").startswith(b"HTTP/1.1 408 ")
        metrics = asyncio.run(ask(server.port, "/metrics", b"", method="GET")).body.decode()
    assert 'llmi:http_requests_refused_total{status="400"} 1\n' in metrics
    assert 'llmi:http_requests_refused_total{status="408"} 2\n' in metrics


#: Packages whose objects a request makes. RequestMetrics are kept, of the last ones.
OURS = ("llmi", "asyncio", "_asyncio", "uvicorn", "starlette", "httptools")


def test_32_requests_leave_no_objects_behind(llm: LLM) -> None:
    """Of whatever end: whole, streamed, refused, cut."""

    async def some(port: int, count: int) -> None:
        for number in range(count):
            body = {**LONG, "max_tokens": 3, "stream": number % 2 == 0}
            assert (await ask(port, COMPLETIONS, body)).status == 200
            assert (await ask(port, COMPLETIONS, {**body, "n": 0})).status == 400
            connection = await Connection.open(port)
            await connection.send(request_bytes(COMPLETIONS, json.dumps({**LONG, "stream": number % 2 == 0}).encode()))
            connection.close(reset=True)

    def count() -> int:
        wait_until(lambda: llm.get_metrics()["num_running"] == 0)
        gc.collect()
        kinds = [type(each) for each in gc.get_objects()]
        return sum(str(kind.__module__).partition(".")[0] in OURS and kind is not RequestMetrics for kind in kinds)

    with Serving(llm) as server:
        asyncio.run(some(server.port, 30))
        before = count()
        asyncio.run(some(server.port, 60))
        wait_until(lambda: count() - before < 60, "the end of connections, so that 60 of each kind leave fewer than 60 objects,")


def test_3_an_end_is_no_abort(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that end by themselves ask the engine to abort nothing."""
    aborted: list[Any] = []
    from llmi.requests import call

    original = call.Call.abort

    def abort(self: Any) -> None:
        if self.pending:
            aborted.append(sorted(self.pending))
        original(self)

    monkeypatch.setattr(call.Call, "abort", abort)
    with Serving(llm) as server:
        for stream in (False, True):
            for n in (1, 3):
                assert asyncio.run(ask(server.port, COMPLETIONS, {**LONG, "max_tokens": 5, "stream": stream, "n": n})).status == 200
    assert aborted == []


def test_9_the_core_refuses_continuations_of_no_token(llm: LLM) -> None:
    """max_tokens = 0 scores the prompt: with n above 1 the engine would wait for continuations that never begin."""
    for n in (1, 2):
        given = SamplingParams(n=n, prompt_logprobs=0, max_tokens=1)
        submission = llm._call(["abc"], given, {}, CallOptions()).submissions[0]
        llm._builder.build(submission, 1 << 40, max_tokens=0)
        if n == 1:
            llm._engine.check(submission.built)
            continue
        with pytest.raises(_core.CoreError, match="n = 2 needs max_tokens of 1 or more"):
            llm._engine.check(submission.built)


def test_34_a_server_without_work_makes_no_steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step, and the thread that waits for events looks ten times a second. The share of a core is measured by benchmarks/serving.py."""
    from llmi.online import pump

    looks: list[tuple[float, Any]] = []

    with Serving(llm) as server:
        assert asyncio.run(ask(server.port, COMPLETIONS, {**LONG, "max_tokens": 3})).status == 200
        wait_until(lambda: llm.get_metrics()["num_running"] == 0)
        running = server.models["tiny"]._running
        original = running.channel

        class Channel:
            def wait(self, events: Any, timeout_s: float) -> Any:
                looks.append((timeout_s, found := original.wait(events, timeout_s)))
                return found

        steps = llm.get_metrics()["num_steps"]
        running.channel = Channel()  # type: ignore[assignment]
        wait_until(lambda: len(looks) == 5, "five looks")
        running.channel = original
        assert llm.get_metrics()["num_steps"] == steps
    assert all(timeout_s == pump._WAIT_S >= 0.1 and not found for timeout_s, found in looks), looks
