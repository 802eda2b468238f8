"""Connections with deadlines: uvicorn's protocol waits for the rest of a header, and for a client that reads nothing, without end."""

from __future__ import annotations

import asyncio
import errno
import functools
import json
import logging
import math
from typing import Any, TypeAlias

from llmi.server.errors import error_body
from llmi.server.limits import Limits

log = logging.getLogger("llmi.server")
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: (reason phrase, what the client did) of answers that come before there is a request.
_REFUSALS = {
    400: ("Bad Request", "this is no HTTP/1.1 request"),
    408: ("Request Timeout", "the request's headers did not come within {limits.header_s:g} s"),
    431: ("Request Header Fields Too Large", "the request's headers have more than {limits.header_bytes:,} bytes"),
    503: ("Service Unavailable", "the server has {limits.num_connections:,} connections, as many as it may: try again soon"),
}


def refusal(status: int, limits: Limits) -> bytes:
    """A whole HTTP answer that ends its connection."""
    phrase, message = _REFUSALS[status]
    body = json.dumps(error_body(status, message.format(limits=limits))).encode()
    more = "retry-after: 1\r\n" if status == 503 else ""
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{more}\r\n"
    return head.encode() + body


#: An object of uvicorn's, which gives no types.
_Uvicorns: TypeAlias = Any


class Timed:
    """Laid over one of uvicorn's protocols: `limits` are checked before its parser has a request, and while its answer is not read.

    A subclass names the limits; uvicorn makes an object for each connection.
    """

    limits: Limits
    num_refused: dict[int, int]  # by status, of all connections
    # uvicorn's class, which comes behind this one among the bases, sets them.
    transport: _Uvicorns
    flow: _Uvicorns
    cycle: _Uvicorns
    connections: _Uvicorns
    timeout_keep_alive: float
    timeout_keep_alive_task: asyncio.TimerHandle | None  # while it is idle

    _header_timer: asyncio.TimerHandle | None = None
    _stuck_timer: asyncio.TimerHandle | None = None
    _num_header_bytes = 0
    _num_unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begins to wait for the first header. For one connection too many an idle one goes; if there is none, it is told so."""
        super().connection_made(transport)  # type: ignore[misc]
        self.timeout_keep_alive = self.limits.idle_s
        if len(self.connections) > self.limits.num_connections and not self._close_idle():
            self._refuse(503)
            return
        self._wait_for_header()

    def data_received(self, data: bytes) -> None:
        """Counts bytes that are neither a whole header nor a body: the parser keeps them."""
        before, num_before = self.cycle, self._num_body_bytes()
        super().data_received(data)  # type: ignore[misc]
        if self.transport is None or self.transport.is_closing():
            return
        if self.cycle is not before or self._num_body_bytes() > num_before:
            self._num_header_bytes = 0
            self._stop_waiting()
            return
        if self.flow.read_paused:  # nothing more comes until the answer is whole
            return
        self._num_header_bytes += len(data)
        if self._num_header_bytes > self.limits.header_bytes:
            self._refuse(431)
        elif self._header_timer is None and not self._has_request():
            self._wait_for_header()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no request."""
        self._refuse(400)

    def pause_writing(self) -> None:
        """The client does not read as fast as bytes come."""
        super().pause_writing()  # type: ignore[misc]
        self._num_unsent = self.transport.get_write_buffer_size()
        self._stuck_timer = asyncio.get_running_loop().call_later(self.limits.stuck_s, self._check_stuck)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()  # type: ignore[misc]
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the timers."""
        self._stop_waiting()
        if self._stuck_timer is not None:
            self._stuck_timer.cancel()
            self._stuck_timer = None
        super().connection_lost(exc)  # type: ignore[misc]

    def _close_idle(self) -> bool:
        """Closes the connection that has been idle longest; whether there was one."""
        idle = {
            each.timeout_keep_alive_task.when(): each
            for each in self.connections
            if each.timeout_keep_alive_task is not None and not each.transport.is_closing()
        }
        if not idle:
            return False
        idle[min(idle)].transport.close()
        return True

    def _num_body_bytes(self) -> int:
        """Bytes of the last request's body that the application has not taken yet."""
        return 0 if self.cycle is None else len(self.cycle.body)

    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_header(self) -> None:
        self._header_timer = asyncio.get_running_loop().call_later(self.limits.header_s, self._header_is_late)

    def _stop_waiting(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _header_is_late(self) -> None:
        self._header_timer = None
        if not self._has_request():
            self._refuse(408)

    def _check_stuck(self) -> None:
        """A client that has taken some bytes gets more time; one that has taken none is cut off, and what waits for it is dropped."""
        left = self.transport.get_write_buffer_size()
        if left < self._num_unsent:
            self._num_unsent = left
            self._stuck_timer = asyncio.get_running_loop().call_later(self.limits.stuck_s, self._check_stuck)
        else:
            self.transport.abort()

    def _refuse(self, status: int) -> None:
        """Ends the connection. In the middle of an answer nothing is written: it would be part of the answer."""
        if self.transport.is_closing():
            return
        self.num_refused[status] = self.num_refused.get(status, 0) + 1
        if self._has_request():
            self.transport.abort()
            return
        self.transport.write(refusal(status, self.limits))
        self.transport.close()


@functools.cache
def _uvicorn_protocol() -> type[asyncio.Protocol]:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Protocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Protocol  # type: ignore[assignment]
    return Protocol


def quiet_accepts(loop: asyncio.AbstractEventLoop) -> None:
    """asyncio reports each connection that it cannot accept for lack of open files, thousands in a row: one line a minute says so
    instead."""
    said_s = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal said_s
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _OUT_OF_FILES and "accept" in context.get("message", "")):
            loop.default_exception_handler(context)
        elif loop.time() - said_s >= 60:
            said_s = loop.time()
            log.warning("no open file is left for another connection, so clients wait: raise the limit (`ulimit -n`)")

    loop.set_exception_handler(handle)


def protocol_of(
    limits: Limits, base: type[asyncio.Protocol] | None = None, num_refused: dict[int, int] | None = None
) -> type[asyncio.Protocol]:
    """The class for uvicorn's `http`: its own protocol (`base`, or the fastest that is installed) under these limits.

    num_refused: what is refused here is counted there, by its status.
    """
    fields = {"limits": limits, "num_refused": {} if num_refused is None else num_refused}
    return type("TimedProtocol", (Timed, base or _uvicorn_protocol()), fields)
