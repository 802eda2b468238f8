"""A server in front of another that plants one fault: it may change a request on its way in and an answer on its way out."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from loopback_server import LoopbackServer


@dataclasses.dataclass
class Exchange:
    """A request and, later, its answer. `body` is the request's JSON, {} if it has none; `count` numbers requests; `beside` is how many
    others run."""

    method: str
    path: str
    data: bytes
    body: dict[str, Any]
    count: int
    beside: int
    status: int = 0
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    answer: bytes = b""

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    def edit(self, change: Callable[[Any], Any]) -> None:
        """Changes the answer's JSON, or that of each chunk; None drops a chunk."""
        if not self.is_stream:
            value = json.loads(self.answer)
            self.answer = json.dumps(change(value)).encode()
            return
        blocks = []
        for block in self.answer.decode().split("\n\n"):
            head, _, data = ("\n" + block).rpartition("\ndata: ")  # a name may stand before the data
            made = data if not data or data == "[DONE]" else change(json.loads(data))
            if data and made is not None:
                blocks.append(f"{head}\ndata: {made if isinstance(made, str) else json.dumps(made)}\n\n".removeprefix("\n"))
        self.answer = "".join(blocks).encode()


@dataclasses.dataclass(frozen=True)
class Fault:
    """`before` may change the request, `after` the answer."""

    before: Callable[[Exchange], None] = lambda _: None
    after: Callable[[Exchange], None] = lambda _: None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(1 << 20)
        http.client._MAXLINE = 1 << 20
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self.close_connection = True
        with contextlib.suppress(ConnectionError):
            self._forward()

    def _forward(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        exchange = self.server.enter(self.command, self.path, data, body if isinstance(body, dict) else {})
        try:
            self.server.fault.before(exchange)
            self.server.ask(exchange)
            self.server.fault.after(exchange)
        finally:
            self.server.leave()
        self.send_response_only(exchange.status)
        for name, value in {**exchange.headers, "content-length": str(len(exchange.answer)), "connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(exchange.answer)


class FaultyProxy(LoopbackServer):
    """Serves until the block is left; `fault` may be set anew for each case."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(_Handler)
        self.upstream = (host, port)
        self.fault = Fault()
        self.count = 0

    def enter(self, method: str, path: str, data: bytes, body: dict[str, Any]) -> Exchange:
        with self._lock:
            self.count += 1
            self.active += 1
            return Exchange(method, path, data, body, self.count, self.active - 1)

    def ask(self, exchange: Exchange) -> None:
        """The upstream's answer. A changed `body` is what is sent."""
        try:
            changed = exchange.body and exchange.body != json.loads(exchange.data)
        except (ValueError, RecursionError):
            changed = bool(exchange.body)
        data = json.dumps(exchange.body).encode() if changed else exchange.data
        connection = http.client.HTTPConnection(*self.upstream, timeout=60)
        try:
            connection.request(exchange.method, exchange.path, data or None, {"content-type": "application/json"})
            answer = connection.getresponse()
            exchange.status, exchange.answer = answer.status, answer.read()
            kept = ("content-type", "retry-after")
            exchange.headers = {name.lower(): value for name, value in answer.getheaders() if name.lower() in kept}
        finally:
            connection.close()

    def handle_error(self, request: object, client_address: object) -> None:
        pass


def stall(seconds: float) -> Callable[[Exchange], None]:
    """A server that stands still for a while."""
    return lambda _: time.sleep(seconds)
