"""A small server with OpenAI's endpoints whose answers are a function of prompt and seed, with faults on request."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

from loopback_server import LoopbackServer


def words_of(body: dict[str, Any]) -> list[str]:
    """The answer's tokens: as many as max_tokens, named after prompt, seed and position."""
    text = json.dumps([body.get("messages", body.get("prompt")), body.get("seed")])
    return [hashlib.sha256(f"{text}{i}".encode()).hexdigest()[:4] + " " for i in range(body["max_tokens"])]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeOpenAI

    def log_message(self, *_: object) -> None:
        pass

    def _whole(self, status: int, value: object, **headers: str) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._whole(200, {"object": "list", "data": [{"id": "fake", "object": "model"}]})

    def do_POST(self) -> None:
        self.close_connection = True
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        index, fault = self.server.enter(body)
        try:
            self._answer(body, index, fault)
        except BrokenPipeError:
            pass
        finally:
            self.server.leave()

    def _answer(self, body: dict[str, Any], index: int, fault: str) -> None:
        if fault in ("429", "429 once"):
            return self._whole(429, {"error": {"message": "busy"}}, Retry_After="0.05")
        if fault == "500":
            return self._whole(500, {"error": {"message": "broken"}})
        if fault == "closed":
            return None
        if fault == "no http":
            self.wfile.write(b"hello\r\n\r\n")
            return None
        words = words_of(body) if fault != "other" else ["other"] * body["max_tokens"]
        usage = {"prompt_tokens": 7, "completion_tokens": len(words), "total_tokens": 7 + len(words)}
        if not body.get("stream") or fault == "in one":
            time.sleep(self.server.delay_s)
            return self._whole(200, {"choices": [{"message": {"content": "".join(words)}, "finish_reason": "length"}], "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in self._events(words, usage, fault):
            data = f"data: {event}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        if fault != "cut":
            self.wfile.write(b"0\r\n\r\n")
        return None

    def _events(self, words: list[str], usage: dict[str, int], fault: str) -> Iterator[str]:
        time.sleep(self.server.delay_s * (20 if fault == "slow" else 1))
        for position, word in enumerate(words):
            if position == 2 and fault in ("cut", "no done"):
                return
            if position == 2 and fault == "malformed":
                yield "{nonsense"
            if position == 2 and fault == "error":
                yield json.dumps({"error": {"message": "the engine is gone"}})
                return
            time.sleep(self.server.delay_s)
            if fault != "empty":
                yield json.dumps({"choices": [{"delta": {"content": word}, "finish_reason": None}]})
        yield json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}]})
        yield json.dumps({"choices": [], "usage": usage})
        yield "[DONE]"


class FakeOpenAI(LoopbackServer):
    """Serves until the block is left. `fault(index)` names what goes wrong with the request of this number."""

    def __init__(self, fault: Callable[[int], str] = lambda _: "", delay_s: float = 0.0) -> None:
        super().__init__(_Handler)
        self.fault, self.delay_s = fault, delay_s
        self.bodies: list[dict[str, Any]] = []
        self.peak = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def enter(self, body: dict[str, Any]) -> tuple[int, str]:
        with self._lock:
            self.bodies.append(body)
            self.active += 1
            self.peak = max(self.peak, self.active)
            return len(self.bodies) - 1, self.fault(len(self.bodies) - 1)
