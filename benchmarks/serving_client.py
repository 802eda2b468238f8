"""The client of benchmarks/serving.py: a process of its own that sends all its requests at once and notes when bytes come back.

It reads a plan (JSON) from standard input and writes what it saw (JSON) to standard output. Times are by CLOCK_MONOTONIC, as the engine's
are.

plan: {"port": 8000, "requests": [{"path": "/v1/completions", "body": {...}, "repeat": 1}, ...], "marks": [100, 200], "pid": 1234}
- repeat: so often in a row over the same connection.
- marks: numbers of tokens, counted over all streams, at which the CPU times of the process `pid` are noted, by threads' names.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from pathlib import Path
from typing import Any

READ_BYTES = 1 << 18


def thread_times(pid: int) -> dict[str, float]:
    """CPU seconds of a process's threads, by name; "loop" is the first one."""
    times: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = "loop" if task.name == str(pid) else (task / "comm").read_text().strip()
            times[name] = times.get(name, 0.0) + int((task / "schedstat").read_text().split()[0]) * 1e-9
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            pass
    return times


class Stream:
    """One connection and the answers on it."""

    def __init__(self, port: int, request: dict[str, Any]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps(request["body"]).encode()
        head = (
            f"POST {request['path']} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._data = head.encode() + body
        self._left = request.get("repeat", 1)
        self._mark = b'"content":"' if "chat" in request["path"] else b'"text":"'
        self._is_stream = bool(request["body"].get("stream"))
        self._counted = b'"top_logprobs"' if request["body"].get("logprobs") else b"\n\n"
        self.sent_s = self.first_s = self.end_s = 0.0
        self.num_events = 0
        self.tail = b""

    def send(self) -> None:
        """Sends the next request."""
        self.tail, self.first_s = b"", 0.0
        self._left -= 1
        self.sent_s = time.monotonic()
        self.socket.sendall(self._data)

    def receive(self) -> bool:
        """Takes what has come; True at the end of the last answer."""
        data = self.socket.recv(READ_BYTES)
        now = time.monotonic()
        if not data:
            raise SystemExit(f"the server closed a connection: {self.tail[-300:]!r}")
        seen = self.tail[-64:] + data
        if not self.first_s and (not self._is_stream or self._has_text(seen)):
            self.first_s = now
        self.num_events += data.count(self._counted)
        self.tail = (self.tail + data)[-600:]
        if not self.tail.endswith(b"\r\n0\r\n\r\n" if self._is_stream else b"}"):
            return False
        self.end_s = now
        if self._left:
            self.send()
            return False
        return True

    def _has_text(self, data: bytes) -> bool:
        """Whether a chunk with text is among it (the first one of a chat has the role alone)."""
        return any(not data[at + len(self._mark) :].startswith(b'"') for at in _places(data, self._mark))


def _places(data: bytes, mark: bytes) -> list[int]:
    places, at = [], data.find(mark)
    while at >= 0:
        places.append(at)
        at = data.find(mark, at + 1)
    return places


def main() -> None:
    plan = json.load(sys.stdin)
    streams = [Stream(plan["port"], request) for request in plan["requests"]]
    marks, notes = list(plan.get("marks", [])), []
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        begun = time.process_time()
        for stream in streams:
            stream.send()
        left = len(streams)
        while left:
            for key, _ in selector.select():
                if key.data.receive():
                    selector.unregister(key.fileobj)
                    left -= 1
            if marks and sum(stream.num_events for stream in streams) >= marks[0]:
                count = sum(stream.num_events for stream in streams)
                notes.append({"tokens": count, "time_s": time.monotonic(), "threads": thread_times(plan["pid"])})
                marks = [mark for mark in marks if mark > count]
    answers = [
        {"sent_s": stream.sent_s, "first_s": stream.first_s, "end_s": stream.end_s, "events": stream.num_events} for stream in streams
    ]
    json.dump({"cpu_s": time.process_time() - begun, "answers": answers, "marks": notes}, sys.stdout)


if __name__ == "__main__":
    main()
