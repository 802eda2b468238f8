"""Requests to servers: HTTP/1.1 on connections of their own, read as they come, without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from llmi.errors import InvalidParamsError
from llmi.replicas.wire import MOST_BYTES

#: What the reader of an answer may raise where there is none.
BROKEN = (OSError, EOFError, ValueError, RecursionError, asyncio.LimitOverrunError)


class UnreachedError(OSError):
    """Nothing was sent: nobody listens there."""


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a server is."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Address:
        """The address of http://HOST:PORT. Raises InvalidParamsError."""
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError as error:
            raise InvalidParamsError(f"{url[:200]!r} is no URL: {error}", "url") from None
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username is not None:
            raise InvalidParamsError(f"{url[:200]!r} must be http://HOST:PORT, where `llmi serve` listens", "url")
        return cls(parts.hostname.lower(), port)

    def __str__(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclasses.dataclass
class HttpAnswer:
    """Status and headers of an answer, and its body's bytes as they come."""

    status: int
    headers: dict[str, str]
    body: AsyncIterator[bytes]

    async def whole(self) -> bytes:
        """The body in one. Raises one of BROKEN."""
        data = b""
        async for piece in self.body:
            data += piece
            if len(data) > MOST_BYTES:
                raise ValueError(f"an answer has more than {MOST_BYTES:,} bytes")
        return data

    async def events(self) -> AsyncIterator[bytes]:
        """The data of each server-sent event. Raises one of BROKEN."""
        waiting = b""
        async for piece in self.body:
            *found, waiting = (waiting + piece).split(b"\n\n")
            if len(waiting) > MOST_BYTES:
                raise ValueError(f"an event has more than {MOST_BYTES:,} bytes")
            for event in found:
                if event.startswith(b"data: "):
                    yield event.removeprefix(b"data: ")


@contextlib.asynccontextmanager
async def request(address: Address, method: str, path: str, key: str | None, body: bytes = b"") -> AsyncIterator[HttpAnswer]:
    """An answer whose head has come. Raises one of BROKEN; leaving it ends the request."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {str(address).removeprefix('http://')}", "Connection: close"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [] if key is None else [f"Authorization: Bearer {key}"]
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port)
    except OSError as error:
        raise UnreachedError(f"nobody listens there: {error.strerror or error}") from None
    try:
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
        await writer.drain()
        first, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ValueError(f"no status line: {first[:80]!r}")
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        yield HttpAnswer(int(rest[:3]), headers, _pieces(reader, headers))
    finally:
        writer.transport.abort()


async def _pieces(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        yield await reader.readexactly(_size(headers.get("content-length", ""), 10))
        return
    while size := _size((await reader.readuntil(b"\r\n")).decode("latin-1").partition(";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


def _size(text: str, base: int) -> int:
    size = int(text, base)
    if not 0 <= size <= MOST_BYTES:
        raise ValueError(f"a part of an answer has {size:,} bytes")
    return size
