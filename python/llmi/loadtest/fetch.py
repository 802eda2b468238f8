"""One request over the standard library's HTTP, with a deadline and a bound on the size of the whole answer."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import socket
import threading
import time
from collections.abc import Mapping

MOST_BYTES = 64 << 20


@dataclasses.dataclass
class Fetched:
    """An answer. headers: by their names in lower case."""

    status: int
    headers: dict[str, str]
    data: bytes


class UnboundedError(Exception):
    """The answer was not whole at its deadline, or is too large."""


def fetch(
    address: tuple[str, int], timeout_s: float, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Fetched:
    """One request on a connection of its own.

    A timeout of a socket is of one read, and a server that sends a byte now and then never meets it. So a timer closes the connection.

    Raises
    ------
    UnboundedError
        There is no whole answer after timeout_s, or it has more than MOST_BYTES.
    OSError, http.client.HTTPException
        The connection fails, or what comes is no HTTP.
    """
    late = threading.Event()
    end_s = time.monotonic() + timeout_s
    connection = http.client.HTTPConnection(*address, timeout=timeout_s)
    try:
        connection.connect()
        timer = threading.Timer(end_s - time.monotonic(), _cut, (connection.sock, late))
        timer.daemon = True
        timer.start()
        try:
            answer = _whole(connection, method, path, body, dict(headers or {}))
        finally:
            timer.cancel()
    except (OSError, http.client.HTTPException) as error:
        if not late.is_set() and not isinstance(error, TimeoutError):
            raise
        late.set()
    finally:
        connection.close()
    if late.is_set():  # a body that ends with its connection looks whole then
        raise UnboundedError(f"the answer was not whole after {timeout_s:g} s")
    return answer


def _cut(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):  # it may be closed already
        sock.shutdown(socket.SHUT_RDWR)


def _whole(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Fetched:
    connection.request(method, path, body, headers)
    with connection.getresponse() as answer:
        data = answer.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UnboundedError(f"the answer has more than {MOST_BYTES:,} bytes")
        if answer.length:  # what its Content-Length names beyond that
            raise http.client.IncompleteRead(data, answer.length)
        return Fetched(answer.status, {name.lower(): value for name, value in answer.getheaders()}, data)
