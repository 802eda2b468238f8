"""The loop that sends each request at its time and notes when bytes come back. One thread, one `select` for all sockets."""

from __future__ import annotations

import dataclasses
import heapq
import selectors
import time

from llmi.loadtest.connection import Connection, request_bytes
from llmi.loadtest.events import Answer, read_answer
from llmi.loadtest.settings import ENDPOINTS, LoadSettings
from llmi.loadtest.workload import LoadRequest

_RETRIED = ("status 429", "status 503")


@dataclasses.dataclass
class Exchange:
    """A request and what came of it. `intended_s`, `sent_s` (None: never sent) and the answer's times are on one clock."""

    request: LoadRequest
    intended_s: float
    sent_s: float | None = None
    pieces: list[tuple[float, bytes]] = dataclasses.field(default_factory=list)
    failure: str | None = None
    attempts: int = 1
    answer: Answer = dataclasses.field(default_factory=Answer)


class LoadLoop:
    """Runs requests against a server. `run` may be called once.

    Open loop: the intended time is the arrival's, whether or not the client could send then (no coordinated omission). Closed loop: it is
    the moment at which a place became free.
    """

    def __init__(self, settings: LoadSettings, concurrency: int | None, is_closed: bool) -> None:
        self._settings, self._is_closed = settings, is_closed
        self._limit = concurrency or 1 << 30
        self._selector = selectors.DefaultSelector()
        self._active: dict[Connection, Exchange] = {}
        self._again: list[tuple[float, int, Exchange]] = []  # when it is sent again
        self.peak = 0
        self.start_s = self._next_check_s = 0.0

    def run(self, requests: list[LoadRequest]) -> list[Exchange]:
        """Sends all and returns when each has ended, in the order of the requests."""
        self.start_s = time.perf_counter()
        exchanges = [Exchange(request, self.start_s + request.time_s) for request in requests]
        position = 0
        with self._selector:
            while position < len(exchanges) or self._active or self._again:
                now = time.perf_counter()
                while self._again and self._again[0][0] <= now and len(self._active) < self._limit:
                    self._open(heapq.heappop(self._again)[2])
                while position < len(exchanges) and len(self._active) < self._limit:
                    exchange = exchanges[position]
                    if self._is_closed:
                        exchange.intended_s = time.perf_counter()
                    elif exchange.intended_s > now:
                        break
                    position += 1
                    self._open(exchange)
                self._wait(exchanges[position].intended_s if position < len(exchanges) else None)
        for exchange in exchanges:
            exchange.answer = exchange.answer if exchange.answer.failure else read_answer(exchange.pieces, exchange.failure)
        return exchanges

    def _open(self, exchange: Exchange) -> None:
        data = request_bytes(self._settings.address, ENDPOINTS[self._settings.endpoint], exchange.request.body, self._settings.api_key)
        try:
            connection = Connection(self._settings.address, data)
        except OSError as error:
            exchange.failure = f"connect: {error.strerror or error}"
            return
        if connection.failure is not None:
            exchange.failure = connection.failure
            connection.close()
            return
        self._active[connection] = exchange
        self.peak = max(self.peak, len(self._active))
        self._selector.register(connection.socket, connection.wants, connection)

    def _wait(self, next_s: float | None) -> None:
        """Until a socket is ready, the next request is due, or it is time to look for late ones."""
        until = time.perf_counter() + min(0.25, self._settings.timeout_s / 4)
        if len(self._active) < self._limit:
            until = min([until, *([] if next_s is None else [next_s]), *([self._again[0][0]] if self._again else [])])
        timeout = max(0.0, until - time.perf_counter())
        if not self._active:
            time.sleep(timeout)
            return
        for key, _ in self._selector.select(timeout):
            connection: Connection = key.data
            wanted = connection.wants
            if connection.ready():
                self._end(connection)
            elif connection.wants != wanted:
                self._selector.modify(connection.socket, connection.wants, connection)
        if time.perf_counter() >= self._next_check_s:
            self._end_late()

    def _end_late(self) -> None:
        """Ends what is older than the bound. It checks all connections, so this runs a few times a second only."""
        now = time.perf_counter()
        self._next_check_s = now + min(0.25, self._settings.timeout_s / 4)
        for connection, exchange in list(self._active.items()):
            if exchange.intended_s < now - self._settings.timeout_s:
                connection.failure = f"timeout: no end after {self._settings.timeout_s:g} s"
                self._end(connection)

    def _end(self, connection: Connection) -> None:
        exchange = self._active.pop(connection)
        self._selector.unregister(connection.socket)
        connection.close()
        exchange.pieces, exchange.failure = connection.pieces, connection.failure
        exchange.sent_s = exchange.sent_s or connection.sent_s
        refused = connection.pieces and b" 200 " not in connection.pieces[0][1][:20]
        if refused and exchange.attempts <= self._settings.retries:
            answer = read_answer(exchange.pieces, exchange.failure)
            if answer.retry_after_s is not None and (answer.failure or "").startswith(_RETRIED):
                exchange.attempts += 1
                heapq.heappush(self._again, (time.perf_counter() + answer.retry_after_s, exchange.request.index, exchange))
