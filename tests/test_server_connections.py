"""Connections of a server on a real socket: headers that do not come, clients that do not read, one connection too many."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
import uvicorn

from llmi.server.connections import protocol_of
from llmi.server.guard import Door, Guard, Origins
from llmi.server.limits import Limits

LIMITS = Limits(header_s=0.4, header_bytes=4000, stuck_s=0.4, num_connections=6, body_s=0.4, body_bytes=5000, idle_s=10_000)
GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
ENDED: list[str] = []


async def app(scope: Any, receive: Any, send: Any) -> None:
    """A short answer, after a second at /slow, or one without end at /long."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    try:
        if scope["path"] == "/slow":
            await asyncio.sleep(1)
        while scope["path"] == "/long":
            await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
            await asyncio.sleep(0)
            if scope["path"] == "/long" and (await asyncio.wait_for(_gone(receive), None)):
                return
    finally:
        ENDED.append(scope["path"])
    await send({"type": "http.response.body", "body": b"ok"})


async def _gone(receive: Any) -> bool:
    task = asyncio.ensure_future(receive())
    done, _ = await asyncio.wait({task}, timeout=0)
    task.cancel()
    return bool(done) and task.result()["type"] == "http.disconnect"


def bases() -> list[Any]:
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    return [H11Protocol, HttpToolsProtocol]


@pytest.fixture(scope="module", params=bases(), ids=["h11", "httptools"])
def server(request: pytest.FixtureRequest) -> Iterator[uvicorn.Server]:
    config = uvicorn.Config(
        Guard(app, Door(LIMITS, Origins())),
        http=protocol_of(LIMITS, request.param),
        ws="none",
        lifespan="off",
        log_level="critical",
        port=0,
    )
    server = uvicorn.Server(config)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server
    server.should_exit = True
    thread.join()


@pytest.fixture
def port(server: uvicorn.Server) -> int:
    number: int = server.servers[0].sockets[0].getsockname()[1]
    return number


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", port), timeout=10)) as sock:
        yield sock


def read_all(sock: socket.socket) -> bytes:
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize("part", [b"", GET[:10], GET[:-2]], ids=["nothing", "half a line", "half a header"])
def test_31_a_header_that_does_not_come(port: int, part: bytes) -> None:
    with connected(port) as sock:
        sock.sendall(part)
        begun = time.monotonic()
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 408 ") and b'"code": null' in answer and 0.2 < time.monotonic() - begun < 8


def test_31_one_byte_at_a_time(port: int) -> None:
    with connected(port) as sock:
        answer = b""
        try:
            for byte in (b"GET /" + b"x" * 500)[:200]:
                sock.sendall(bytes([byte]))
                time.sleep(0.02)
        except OSError:
            pass
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 408 ") or answer == b""


def test_31_half_of_a_second_header(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(GET)
        while not (answer := sock.recv(1000)).endswith(b"0\r\n\r\n"):
            pass
        sock.sendall(GET[:12])
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("ends", [b"", b"\r\n\r\n"], ids=["unfinished", "whole"])
def test_31_headers_that_are_too_large(port: int, ends: bytes) -> None:
    with connected(port) as sock:
        sock.sendall(GET[:-2] + b"x-much: " + b"y" * 65_000 + ends)
        assert read_all(sock)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")


@pytest.mark.parametrize(
    "begin",
    [
        GET.replace(b"/x", b"/long") + GET[:-2],
        GET.replace(b"/x", b"/slow") + GET[:-2],
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
    ],
    ids=["of a second request in a stream", "of a second request", "behind a body"],
)
def test_31_headers_without_end_while_a_request_runs(port: int, begin: bytes) -> None:
    """They are not taken in: after the limit the connection is cut, or nothing more is read."""
    with connected(port) as sock:
        sock.settimeout(0.3)
        sent = 0
        with pytest.raises(OSError):
            sock.sendall(begin)
            time.sleep(0.05)
            while sent < 64 << 20:
                sent += sock.send(b"x-more: " + b"y" * 1000 + b"\r\n")
    assert sent < 16 << 20, "no more than the system's buffers"


def test_31_a_body_that_does_not_come(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        assert read_all(sock).startswith(b"HTTP/1.1 408 ")


def test_requests_in_a_pipeline_are_answered_in_order(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(GET + GET.replace(b"/x", b"/y") + GET[:-2] + b"Connection: close\r\n\r\n")
        assert read_all(sock).count(b"HTTP/1.1 200 ") == 3


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 3\r\nContent-Length: 4\r\n", b"Content-Length: -1\r\n", b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"],
)
def test_lengths_that_contradict_are_refused(port: int, head: bytes) -> None:
    with connected(port) as sock:
        sock.sendall(b"POST /x HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\nabc")
        assert read_all(sock)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 408")


def test_16_one_connection_too_many_is_told(port: int) -> None:
    open_ones = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(6)]
    try:
        time.sleep(0.1)
        with connected(port) as sock:
            answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after" in answer
    finally:
        for sock in open_ones:
            sock.close()
    time.sleep(0.1)
    with connected(port) as sock:
        sock.sendall(GET)
        assert sock.recv(100).startswith(b"HTTP/1.1 200 ")


def asked(sock: socket.socket) -> None:
    """Asks, and reads the whole answer."""
    sock.sendall(GET)
    while not sock.recv(1000).endswith(b"0\r\n\r\n"):
        pass


def test_an_idle_connection_is_kept_as_long_as_the_limits_say(server: uvicorn.Server, port: int) -> None:
    with connected(port) as sock:
        asked(sock)
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            timers = [each.timeout_keep_alive_task for each in server.server_state.connections]
            if len(timers) == 1 and timers[0] is not None:
                break
            time.sleep(0.01)
        [timer] = timers
        assert timer.when() - time.monotonic() > 5_000  # of 10,000
        asked(sock)
    assert Limits().idle_s > 90, "longer than nginx, AWS and Go's clients keep one"


def test_the_longest_idle_connection_makes_room(port: int) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(connected(port)) for _ in range(2))
        for sock in (first, second):
            asked(sock)
        for _ in range(4):
            stack.enter_context(connected(port))  # they have not asked yet, and are not closed for others
        asked(stack.enter_context(connected(port)))
        assert first.recv(100) == b"", "the server has closed it"
        asked(second)


def test_5_a_client_that_does_not_read_is_cut_off(port: int) -> None:
    ENDED.clear()
    with connected(port) as stuck, connected(port) as reading:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(GET.replace(b"/x", b"/long"))
        reading.sendall(GET)
        assert reading.recv(100).startswith(b"HTTP/1.1 200 "), "others are served"
        deadline = time.monotonic() + 15
        while "/long" not in ENDED and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "/long" in ENDED
