"""HTTP as clients write it, well or badly: a connection whose every byte and pause the caller chooses."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
from typing import Any

_CHUNK = 1 << 16


class CutError(Exception):
    """The server closed the connection before its answer was whole. num_bytes: of the answer that came."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"the connection ended after {num_bytes} bytes of the answer")
        self.num_bytes = num_bytes


@dataclasses.dataclass(slots=True)
class Answer:
    """One whole answer. `headers` have names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:  # Any: whatever the server says
        """The body's value."""
        return json.loads(self.body)

    def events(self) -> list[dict[str, Any]]:
        """The JSON values of a stream's events, without [DONE] and comments."""
        lines = (line.removeprefix("data: ") for line in self.body.decode().split("\n") if line.startswith("data: "))
        return [json.loads(line) for line in lines if line != "[DONE]"]


def request_bytes(path: str, body: bytes, method: str = "POST", close: bool = False) -> bytes:
    """A request with its body."""
    end = "connection: close\r\n" if close else ""
    return (
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{end}\r\n".encode()
        + body
    )


class Connection:
    """One TCP connection. pace: (bytes, seconds) of a reader that takes that number of bytes and then pauses; None reads at once."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: tuple[int, float] | None) -> None:
        self._reader, self._writer, self._pace = reader, writer, pace
        self.num_read = 0  # bytes of the answer under way

    @classmethod
    async def open(cls, port: int, pace: tuple[int, float] | None = None) -> Connection:
        """Connects to a port of this machine."""
        if pace is None:
            return cls(*await asyncio.open_connection("127.0.0.1", port), pace)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=sock, limit=4096), pace)

    async def send(self, data: bytes, pieces: int = 1, pause_s: float = 0.0) -> None:
        """Writes data in `pieces` parts with pauses between them."""
        size = max(1, -(-len(data) // pieces))
        for begin in range(0, len(data), size):
            if begin and pause_s:
                await asyncio.sleep(pause_s)
            self._writer.write(data[begin : begin + size])
            await self._writer.drain()

    async def read(self, size: int = _CHUNK) -> bytes:
        """Bytes that have come; b"" at the end."""
        if self._pace is not None:
            size = min(size, self._pace[0])
            await asyncio.sleep(self._pace[1])
        try:
            data = await self._reader.read(size)
        except OSError:
            return b""
        self.num_read += len(data)
        return data

    async def answer(self) -> Answer:
        """The next answer, whole. Raises CutError."""
        self.num_read = 0
        data = b""
        while b"\r\n\r\n" not in data:
            data += await self._more()
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        status = int(lines[0].split()[1])
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, await self._chunked(data))
        length = int(headers.get("content-length", "0"))
        parts, size = [data], len(data)
        while size < length:
            parts.append(await self._more())
            size += len(parts[-1])
        return Answer(status, headers, b"".join(parts))

    async def _chunked(self, data: bytes) -> bytes:
        parts: list[bytes] = []
        while True:
            while b"\r\n" not in data:
                data += await self._more()
            line, _, data = data.partition(b"\r\n")
            size = int(line, 16)
            while len(data) < size + 2:
                data += await self._more()
            if size == 0:
                return b"".join(parts)
            parts.append(data[:size])
            data = data[size + 2 :]

    async def _more(self) -> bytes:
        if data := await self.read():
            return data
        raise CutError(self.num_read)

    def end_writing(self) -> None:
        """Closes the client's half."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def close(self, reset: bool = False) -> None:
        """Goes. reset: at once, so that the server's next write fails."""
        transport = self._writer.transport
        transport.abort() if reset else transport.close()


async def ask(port: int, path: str, body: dict[str, Any] | bytes, method: str = "POST") -> Answer:
    """One request on a connection of its own."""
    connection = await Connection.open(port)
    try:
        await connection.send(request_bytes(path, body if isinstance(body, bytes) else json.dumps(body).encode(), method, close=True))
        return await connection.answer()
    finally:
        connection.close()
