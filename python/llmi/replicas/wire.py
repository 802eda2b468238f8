"""Messages between processes of one machine: a length, then strict JSON, over a Unix socket. They are checked as files are."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
import threading
from typing import Any, NoReturn

MOST_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")
#: What a parameter or a log-probability is where JSON has no number for it.
_WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


class BrokenMessageError(ValueError):
    """What came is no message, or not one that may come now."""


def encode(message: dict[str, Any]) -> bytes:
    """A message with its length. Raises BrokenMessageError where it is too long."""
    data = json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(data) > MOST_BYTES:
        raise BrokenMessageError(f"a message of {len(data):,} bytes is longer than {MOST_BYTES:,}")
    return _LENGTH.pack(len(data)) + data


def decode(data: bytes) -> dict[str, Any]:
    """The message of these bytes, an object with a `kind`. Raises BrokenMessageError."""
    try:
        message = read_json(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise BrokenMessageError(f"a message is no JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise BrokenMessageError("a message is no object with a kind")
    return message


def read_json(text: str) -> Any:
    """Strict JSON. Raises ValueError and RecursionError."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def number_of(value: object) -> float:
    """A number as `strict_json` has it. Raises BrokenMessageError."""
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenMessageError(f"{str(value)[:40]!r} is no number")
    return float(value)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits:.40} is too large")
    return value


class Connection:
    """One end of a socket. Any thread may send; one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()

    def send(self, data: bytes) -> None:
        """Sends an encoded message. Raises OSError where the other side has gone."""
        with self._lock:
            self._socket.sendall(data)

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where the other side has gone. Raises BrokenMessageError."""
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        (size,) = _LENGTH.unpack(head)
        if size > MOST_BYTES:
            raise BrokenMessageError(f"a message of {size:,} bytes is longer than {MOST_BYTES:,}")
        data = self._read(size)
        return None if data is None else decode(data)

    def close(self) -> None:
        """Ends both directions: whoever waits here returns."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int) -> bytes | None:
        parts = []
        while size:
            try:
                part = self._socket.recv(min(size, 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
