"""The thread that takes events from the engine to their event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from llmi import _core
from llmi.online.request import OnlineRequest

_WAIT_S = 0.1  # how often the pump looks whether it is still wanted


class Pump:
    """The thread of one AsyncLLM. It knows no LLM: an AsyncLLM that nobody holds goes, and ends it.

    A loop is woken once for all events of a step. on_end gets each request that has ended, on the thread.
    """

    def __init__(self, on_end: Callable[[OnlineRequest], None], channel: _core.OutputChannel) -> None:
        self.channel = channel
        self.requests: dict[int, OnlineRequest] = {}  # by the core's request id
        self.lock = threading.Lock()  # of `requests`
        self.closed = False
        self._on_end = on_end
        self.thread = threading.Thread(target=self._run, name="llmi-async", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        _name_thread("llmi-async")
        events: list[_core.OutputEvent] = []
        while not self.closed:
            self.channel.wait(events, _WAIT_S)
            if events:
                self._deliver(events)
                events = []
        for request in list(self.requests.values()):
            with contextlib.suppress(RuntimeError):
                request.loop.call_soon_threadsafe(_close, request)

    def _deliver(self, events: list[_core.OutputEvent]) -> None:
        batches: dict[asyncio.AbstractEventLoop, list[tuple[OnlineRequest, _core.OutputEvent]]] = {}
        with self.lock:
            for event in events:
                request = self.requests.get(event.request_id)
                if request is None:
                    continue
                if event.finished:
                    self._end(request, event)
                batches.setdefault(request.loop, []).append((request, event))
        for loop, batch in batches.items():
            with contextlib.suppress(RuntimeError):  # the readers' loop has gone
                loop.call_soon_threadsafe(_take, batch)

    def _end(self, request: OnlineRequest, event: _core.OutputEvent) -> None:
        del self.requests[event.request_id]
        try:
            request.call.take(event)
        except BaseException as error:  # of a user's streamer, say: it is its reader's
            request.failure = error
        self._on_end(request)


def _name_thread(name: str) -> None:
    """Names the calling thread for the system's tools (`top -H`), where Linux lets it."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def _take(batch: list[tuple[OnlineRequest, _core.OutputEvent]]) -> None:
    for request, event in batch:
        request.take(event)
    for request in dict.fromkeys([request for request, _ in batch]):  # once, however many continuations have grown
        request.wake_for_news()


def _close(request: OnlineRequest) -> None:
    request.closed = True
    request.wake()
