"""From the pieces of a connection to status, headers and body, after the run: chunked or not, whole or cut."""

from __future__ import annotations

import dataclasses


class HttpError(ValueError):
    """Bytes that are no HTTP answer."""


@dataclasses.dataclass
class HttpAnswer:
    """An answer: each piece of the body with the time at which it came. `whole`: its end was seen."""

    status: int
    headers: dict[str, str]
    body: list[tuple[float, bytes]]
    whole: bool

    @property
    def data(self) -> bytes:
        """The body in one."""
        return b"".join(part for _, part in self.body)


def parse_answer(pieces: list[tuple[float, bytes]]) -> HttpAnswer:
    """Raises HttpError for what is no HTTP/1.x answer, or ends within its head."""
    head = bytearray()
    for index, (when, data) in enumerate(pieces):
        head += data
        end = head.find(b"\r\n\r\n")
        if end >= 0:
            rest = [(when, bytes(head[end + 4 :])), *pieces[index + 1 :]]
            status, headers = _head(bytes(head[:end]))
            return _body(status, headers, rest)
    raise HttpError("the answer ended within its head" if head else "the connection was closed without an answer")


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ", 2)
    if not parts[0].startswith("HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():
        raise HttpError(f"no status line: {first[:80]!r}")
    return int(parts[1]), {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _body(status: int, headers: dict[str, str], pieces: list[tuple[float, bytes]]) -> HttpAnswer:
    pieces = [piece for piece in pieces if piece[1]]
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body, whole = _unchunked(pieces)
        return HttpAnswer(status, headers, body, whole)
    length = headers.get("content-length")
    if length is not None and not length.isdigit():
        raise HttpError(f"Content-Length is {length[:40]!r}")
    size = sum(len(data) for _, data in pieces)
    return HttpAnswer(status, headers, pieces, length is None or size >= int(length))


def _unchunked(pieces: list[tuple[float, bytes]]) -> tuple[list[tuple[float, bytes]], bool]:
    """The chunks' data, each with the time of its last byte."""
    body: list[tuple[float, bytes]] = []
    waiting = bytearray()
    for when, data in pieces:
        waiting += data
        while True:
            line = waiting.find(b"\r\n")
            if line < 0:
                break
            try:
                size = int(bytes(waiting[:line]).split(b";")[0], 16)
            except ValueError:
                raise HttpError(f"a chunk's size is {bytes(waiting[:line])[:40]!r}") from None
            if size == 0:
                return body, True
            if len(waiting) < line + 2 + size + 2:
                break
            body.append((when, bytes(waiting[line + 2 : line + 2 + size])))
            del waiting[: line + 2 + size + 2]
    return body, False
