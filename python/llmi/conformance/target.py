"""The server under test: requests, whole and streamed, over the standard library's HTTP."""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import time
from typing import Any, TypeAlias

from llmi.loadtest.events import BadAnswer, sse_events
from llmi.loadtest.fetch import MOST_BYTES, UnboundedError, fetch

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


#: A value of a body in JSON: a server may send anything.
Json: TypeAlias = Any


class Broken(AssertionError):
    """The server differs from what a case expects; the text says how."""


@dataclasses.dataclass
class Reply:
    """One answer."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Json:
        """The body's JSON. Raises Broken."""
        try:
            return json.loads(self.data)
        except ValueError:
            raise Broken(f"status {self.status}, and the body is no JSON: {self.data[:80]!r}") from None

    @property
    def events(self) -> list[str]:
        """The data of each server-sent event. Raises Broken for what is no stream of events."""
        kind = self.headers.get("content-type", "")
        if self.status != 200 or not kind.startswith("text/event-stream"):
            raise Broken(f"the request names a stream; the answer has status {self.status} and content-type {kind!r}: {self.data[:120]!r}")
        try:
            return [data for _, data in sse_events([(0.0, self.data)]) if data]
        except BadAnswer as error:
            raise Broken(str(error)) from None


@dataclasses.dataclass(frozen=True)
class Target:
    """A server: host, port, the model's name, a key, and how long one whole answer may take."""

    host: str
    port: int
    model: str
    api_key: str | None = None
    timeout_s: float = 60.0

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection of its own. Raises Broken if no whole HTTP answer comes, or none in time."""
        sent = {"Content-Type": "application/json"} if body is not None else {}
        sent |= {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        try:
            answer = fetch((self.host, self.port), self.timeout_s, method, path, body, sent | (headers or {}))
            return Reply(answer.status, answer.headers, answer.data)
        except UnboundedError as error:
            raise Broken(f"{method} {path}: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            raise Broken(f"{method} {path}: no whole answer came: {type(error).__name__} {error}") from None

    def post(self, path: str, body: dict[str, Json]) -> Reply:
        """A POST of JSON, with the model's name filled in."""
        return self.send("POST", path, json.dumps({"model": self.model, **body}).encode())

    def ok(self, path: str, body: dict[str, Json]) -> Json:
        """The JSON of an answer that must have status 200."""
        reply = self.post(path, body)
        if reply.status != 200:
            raise Broken(f"status {reply.status}, not 200: {reply.data[:200].decode('utf-8', 'replace')}")
        return reply.json

    def chat(self, text: str = "Say something.", **more: Json) -> Json:
        """A chat of one question, answered by at most 8 tokens unless `more` says otherwise."""
        return self.ok(CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0, **more})

    def complete(self, prompt: Json = "one two three", **more: Json) -> Json:
        """A completion of at most 8 tokens unless `more` says otherwise."""
        return self.ok(COMPLETIONS, {"prompt": prompt, "max_tokens": 8, "temperature": 0, **more})

    def stream(self, path: str, body: dict[str, Json]) -> list[Json]:
        """The chunks of a stream, which must end with [DONE]. Raises Broken."""
        events = self.post(path, {**body, "stream": True}).events
        if not events or events[-1] != "[DONE]":
            raise Broken(f"the last event is {events[-1:]}, not [DONE]")
        try:
            return [json.loads(event) for event in events[:-1]]
        except ValueError:
            raise Broken("an event is no JSON") from None

    def chat_stream(self, text: str = "Say something.", **more: Json) -> list[Json]:
        """The chunks of a streamed chat."""
        return self.stream(CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0, **more})

    def raw(self, data: bytes) -> bytes:
        """The bytes that come back for these, until the server closes or is silent for two seconds. Raises Broken if they do not end."""
        end_s = time.monotonic() + self.timeout_s
        with socket.create_connection((self.host, self.port), self.timeout_s) as connection:
            connection.sendall(data)
            connection.settimeout(2)
            came = b""
            try:
                while time.monotonic() < end_s and len(came) <= MOST_BYTES:
                    if not (part := connection.recv(1 << 16)):
                        return came
                    came += part
            except (TimeoutError, ConnectionError):
                return came
        raise Broken(f"{len(came):,} bytes came within {self.timeout_s:g} s, and no end of them")
