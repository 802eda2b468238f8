"""Too much, too large, too slow: what cannot be served is refused by status, and nobody else notices."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from llmi.conformance.case import case, each, expect, field
from llmi.conformance.errors import error_of
from llmi.conformance.target import CHAT, COMPLETIONS, Broken, Json, Reply, Target
from llmi.loadtest.connection import request_bytes

_HI = [{"role": "user", "content": "hi"}]
_BIG: dict[str, tuple[str, dict[str, Json], tuple[int, ...]]] = {
    "a prompt that is longer than any context": (COMPLETIONS, {"prompt": "word " * 400_000, "max_tokens": 1}, (400, 413)),
    "max_tokens of 1e12": (CHAT, {"messages": _HI, "max_tokens": 10**12}, (400, 422)),
    "n times max_tokens beyond all memory": (CHAT, {"messages": _HI, "n": 100_000, "max_tokens": 1000}, (400, 422)),
    "log-probabilities of a million tokens": (COMPLETIONS, {"prompt": "hi", "max_tokens": 1, "logprobs": 1_000_000}, (400, 422)),
    "100,000 stop strings": (CHAT, {"messages": _HI, "max_tokens": 1, "stop": [f"s{i}" for i in range(100_000)]}, (400, 413, 422)),
    "a body of 64 MiB": (CHAT, {"messages": [{"role": "user", "content": "x" * (64 << 20)}]}, (400, 413)),
}
_HEADERS = {
    "a header of 200,000 bytes": "X-Long: " + "x" * 200_000,
    "two lengths of the body": "Content-Length: 5",
    "a length below 0": "Content-Length: -1",
}


@each("limits", _BIG)
def too_big(target: Target, entry: tuple[str, dict[str, Json], tuple[int, ...]]) -> None:
    path, body, statuses = entry
    try:
        error_of(target.post(path, body), *statuses)
    except Broken as broken:
        if "no whole answer" not in str(broken) or 413 not in statuses:  # a server may close while a body comes that it does not want
            raise
    target.chat(max_tokens=1)


def _chat(target: Target, body: dict[str, Json], *headers: str) -> bytes:
    """The bytes of a chat's request, with further headers."""
    data = json.dumps({"model": target.model, "messages": _HI, **body}).encode()
    return request_bytes((target.host, target.port), CHAT, data, target.api_key, headers)


@each("limits", _HEADERS)
def bad_head(target: Target, more: str) -> None:
    first = target.raw(_chat(target, {"max_tokens": 1}, more))[:12]
    expect(first[9:10] == b"4" or not first, f"the answer begins with {first!r}, which is no 4xx")
    target.chat(max_tokens=1)


@case("limits", "64 requests at once are all answered, by 200 or by 429 with Retry-After")
def at_once(target: Target) -> None:
    def one(index: int) -> Reply:
        return target.post(CHAT, {"messages": [{"role": "user", "content": f"Say {index}."}], "max_tokens": 4})

    with ThreadPoolExecutor(64) as pool:
        for reply in pool.map(one, range(64)):
            expect(reply.status in (200, 429), f"status {reply.status}")
            expect(reply.status == 200 or "retry-after" in reply.headers, "a 429 without Retry-After")


@case("limits", "a reader that leaves a stream does not disturb the next request")
def leaver(target: Target) -> None:
    request = _chat(target, {"max_tokens": 512, "stream": True, "temperature": 0})
    for _ in range(8):
        with socket.create_connection((target.host, target.port), target.timeout_s) as connection:
            connection.sendall(request)
            connection.recv(64)
    begun = time.monotonic()
    target.chat(max_tokens=4)
    expect(time.monotonic() - begun < target.timeout_s / 2, "the next request waited for the readers that had gone")


@case("limits", "half a request does not stop others")
def half(target: Target) -> None:
    connections = [socket.create_connection((target.host, target.port), target.timeout_s) for _ in range(32)]
    try:
        for connection in connections:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
        target.chat(max_tokens=1)
    finally:
        for connection in connections:
            connection.close()


@case("limits", "health is 200 while the server works")
def health(target: Target) -> None:
    expect(target.send("GET", "/health").status == 200, "GET /health is not 200")


@case("limits", "max_tokens: 1 gives one token")
def one_token(target: Target) -> None:
    expect(field(target.complete(max_tokens=1), "usage.completion_tokens") == 1, "completion_tokens is not 1")
