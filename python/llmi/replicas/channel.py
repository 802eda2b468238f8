"""News of requests that run in several engines, for one reader."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmi import _core


class Channel:
    """A queue with the calls of the core's OutputChannel."""

    def __init__(self) -> None:
        self._events: collections.deque[_core.OutputEvent] = collections.deque()
        self._ready = threading.Condition()

    def push(self, events: Iterable[_core.OutputEvent]) -> None:
        """Adds events, in order, and wakes the reader."""
        with self._ready:
            self._events.extend(events)
            self._ready.notify_all()

    def wait(self, events: list[_core.OutputEvent], timeout_s: float) -> None:
        """Waits until there is an event, at most timeout_s, and appends all that have come."""
        with self._ready:
            self._ready.wait_for(lambda: self._events, timeout_s)
            events.extend(self._events)
            self._events.clear()
