"""One request on one connection, without blocking: it notes what came and when, and parses nothing but the end."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable

READ_BYTES = 1 << 16


class Connection:
    """From the connect to the end of the answer. `pieces` are (time, bytes) as `recv` gave them; `failure` says why it ended early.

    The request says `Connection: close`, so the end of the answer is the end of the stream. The loop calls `ready` when the socket is.
    """

    def __init__(self, address: tuple[str, int], data: bytes) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self.failure: str | None = None
        self.sent_s: float | None = None
        self.wants = selectors.EVENT_WRITE
        self._unsent = memoryview(data)
        family, kind, protocol, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        self.socket = socket.socket(family, kind, protocol)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self.socket.connect_ex(place)
        if code not in (0, errno.EINPROGRESS):
            self.failure = f"connect: {os.strerror(code)}"

    def ready(self) -> bool:
        """Goes on as far as it can. True at the end, of whatever kind."""
        try:
            return self._send() if self._unsent else self._receive()
        except BlockingIOError:
            return False
        except OSError as error:
            self.failure = f"{'connect' if self.sent_s is None else 'connection'}: {error.strerror or error}"
            return True

    def _send(self) -> bool:
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self._unsent = self._unsent[self.socket.send(self._unsent) :]
        if not self._unsent:
            self.sent_s = time.perf_counter()
            self.wants = selectors.EVENT_READ
        return False

    def _receive(self) -> bool:
        data = self.socket.recv(READ_BYTES)
        if not data:
            return True
        self.pieces.append((time.perf_counter(), data))
        return False

    def close(self) -> None:
        """Frees the socket."""
        self.socket.close()


def request_bytes(address: tuple[str, int], path: str, body: bytes, api_key: str | None, more: Iterable[str] = ()) -> bytes:
    """The whole HTTP request. more: further lines of its head."""
    host, port = address
    shown = f"[{host}]" if ":" in host else host
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {shown}:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *more,
    ]
    lines += [f"Authorization: Bearer {api_key}"] if api_key else []
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
