"""Connections of a server on a real socket: headers that do not come, clients that do not read, one connection too many."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
import uvicorn

from held_clock import AheadLoop
from llmi.server.connections import protocol_of
from llmi.server.guard import Door, Guard, Origins
from llmi.server.limits import Limits
from waiting import HANG_S, wait_until

LIMITS = Limits(header_s=1000, header_bytes=4000, stuck_s=1000, num_connections=6, body_s=1000, body_bytes=5000, idle_s=100_000)
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


class Served:
    """A server in a thread, whose clock the tests set ahead."""

    def __init__(self, base: Any) -> None:
        self.door = Door(LIMITS, Origins())
        config = uvicorn.Config(
            Guard(app, self.door),
            http=protocol_of(LIMITS, base),
            ws="none",
            lifespan="off",
            log_level="critical",
            port=0,
        )
        self.server, self.loop = uvicorn.Server(config), AheadLoop()
        self._sock = socket.socket()
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._sock.setsockopt(socket.SOL_SOCKET, buffer, 1 << 16)  # connections have it, too
        self._sock.bind(("127.0.0.1", 0))
        self.port: int = self._sock.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        wait_until(lambda: self.server.started, "the server's start")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self.server.serve(sockets=[self._sock]))

    def connections(self) -> list[Any]:
        return list(self.server.server_state.connections)

    def wait_for_header(self) -> None:
        """Until the server waits for one."""
        wait_until(lambda: any(each._header_timer is not None for each in self.connections()), "the wait for a header")

    def end(self) -> None:
        self.server.should_exit = True
        self._thread.join()


@pytest.fixture(scope="module", params=bases(), ids=["h11", "httptools"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    served = Served(request.param)
    yield served
    served.end()


@pytest.fixture
def port(served: Served) -> int:
    wait_until(lambda: not served.connections() and not served.door.num_active, "the end of earlier connections")
    return served.port


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", port), timeout=HANG_S)) as sock:
        yield sock


def asked(sock: socket.socket) -> None:
    """Asks, and reads the whole answer."""
    sock.sendall(GET)
    answer = b""
    while not answer.endswith(b"0\r\n\r\n"):
        answer += sock.recv(1000)


def read_all(sock: socket.socket) -> bytes:
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


@pytest.mark.parametrize("part", [b"", GET[:10], GET[:-2]], ids=["nothing", "half a line", "half a header"])
def test_31_a_header_that_does_not_come(served: Served, port: int, part: bytes) -> None:
    with connected(port) as sock:
        sock.sendall(part)
        served.wait_for_header()
        served.loop.pass_time(900)
        assert served.connections(), "its time has not passed"
        served.loop.pass_time(101)
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 408 ") and b'"code": null' in answer


def test_31_one_byte_at_a_time(served: Served, port: int) -> None:
    """A byte is no more time."""
    with connected(port) as sock:
        for count, byte in enumerate(b"GET /", 1):
            sock.sendall(bytes([byte]))
            wait_until(lambda count=count: [each._num_header_bytes for each in served.connections()] == [count])  # type: ignore[misc]
            served.loop.pass_time(190)
        served.loop.pass_time(60)
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_31_half_of_a_second_header(served: Served, port: int) -> None:
    with connected(port) as sock:
        asked(sock)
        sock.sendall(GET[:12])
        served.wait_for_header()
        served.loop.pass_time(1001)
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
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, buffer, 1 << 16)
        sock.settimeout(0.3)
        sent = 0
        with pytest.raises(OSError):
            sock.sendall(begin)
            while sent < 64 << 20:
                sent += sock.send(b"x-more: " + b"y" * 1000 + b"\r\n")
    assert sent < 16 << 20, "no more than one read for each part of an answer that fits into the buffers"


def test_31_a_body_that_does_not_come(served: Served, port: int) -> None:
    with connected(port) as sock:
        sock.sendall(b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc")
        wait_until(lambda: served.door.bodies, "the wait for a body")
        served.loop.pass_time(1001)
        assert read_all(sock).startswith(b"HTTP/1.1 408 ")


def test_requests_in_a_pipeline_are_answered_in_order(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(GET + GET.replace(b"/x", b"/y") + GET[:-2] + b"Connection: close\r\n\r\n")
        assert read_all(sock).count(b"HTTP/1.1 200 ") == 3


@pytest.mark.parametrize(
    "head",
    [b"Content-Length: 3\r\nContent-Length: 4\r\n", b"Content-Length: -1\r\n", b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"],
)
def test_lengths_that_contradict_are_refused(served: Served, port: int, head: bytes) -> None:
    """At once, or as a body that does not come."""
    with connected(port) as sock:
        sock.sendall(b"POST /x HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\nabc")
        wait_until(lambda: served.door.bodies or select.select([sock], [], [], 0)[0])
        served.loop.pass_time(1001)
        assert read_all(sock)[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 408")


def test_16_one_connection_too_many_is_told(served: Served, port: int) -> None:
    open_ones = [socket.create_connection(("127.0.0.1", port), timeout=HANG_S) for _ in range(6)]
    try:
        wait_until(lambda: len(served.connections()) == 6)
        with connected(port) as sock:
            answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after" in answer
    finally:
        for sock in open_ones:
            sock.close()
    wait_until(lambda: not served.connections())
    with connected(port) as sock:
        sock.sendall(GET)
        assert sock.recv(100).startswith(b"HTTP/1.1 200 ")


def test_an_idle_connection_is_kept_as_long_as_the_limits_say(served: Served, port: int) -> None:
    with connected(port) as sock:
        asked(sock)
        wait_until(lambda: [each.timeout_keep_alive_task is not None for each in served.connections()] == [True])
        served.loop.pass_time(99_000)
        asked(sock)
        wait_until(lambda: [each.timeout_keep_alive_task is not None for each in served.connections()] == [True])
        served.loop.pass_time(100_001)
        assert sock.recv(100) == b""
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


def test_5_a_client_that_does_not_read_is_cut_off(served: Served, port: int) -> None:
    ENDED.clear()
    with connected(port) as stuck, connected(port) as reading:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(GET.replace(b"/x", b"/long"))
        reading.sendall(GET)
        assert reading.recv(100).startswith(b"HTTP/1.1 200 "), "others are served"
        for _ in range(100):  # what the system's buffers took since the last look was progress
            wait_until(lambda: "/long" in ENDED or any(each._stuck_timer is not None for each in served.connections()), "a full buffer")
            served.loop.pass_time(1001)
            if "/long" in ENDED:
                break
        wait_until(lambda: "/long" in ENDED, "the end of the connection")
