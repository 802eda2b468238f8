"""How many requests may wait, and when there will be room."""

from __future__ import annotations

import collections
import time

from llmi import _core
from llmi.errors import QueueFullError
from llmi.requests.call import Router

_WINDOW_S = 60.0  # of the ends that the rate is measured by
_MOST_ENDS = 256
_UNKNOWN_S = 1.0  # to the next try, while nothing has ended lately
_LONGEST_S = 60.0


class EndRate:
    """How fast requests have ended lately."""

    def __init__(self) -> None:
        self._ends: collections.deque[float] = collections.deque(maxlen=_MOST_ENDS)

    def note_end(self) -> None:
        """A request has ended."""
        self._ends.append(time.monotonic())

    def seconds_for(self, num_requests: int) -> float:
        """Seconds in which this number of requests ends, by the rate of the last minute; at least 0.1 and at most 60."""
        now = time.monotonic()
        ends = [end for end in list(self._ends) if now - end < _WINDOW_S]
        if not ends:
            return _UNKNOWN_S
        rate = len(ends) / max(now - ends[0], 1e-3)
        return min(_LONGEST_S, max(0.1, num_requests / rate))


class Queue:
    """The bound of an engine's queue. max_queue: None for no bound; num_seats: sequences in a batch at most."""

    def __init__(self, engine: _core.Engine | Router, max_queue: int | None, num_seats: int) -> None:
        self.max_queue = max_queue
        self.num_preparing = 0  # requests that will be submitted: their texts are on the way to tokens
        self._engine = engine
        self._num_seats = num_seats
        self.rate = EndRate()

    @property
    def num_waiting(self) -> int:
        """Requests that no step has begun."""
        return self._engine.num_queued + self.num_preparing

    def check(self, num_submitted: int) -> None:
        """Raises QueueFullError if one more may not wait. num_submitted: requests that the engine has."""
        if self.max_queue is None:
            return
        stats = self._engine.latest_stats()
        # The statistics are those of the last step: a request may have begun since. While sequences wait, seats are not what is short.
        running = max(stats["num_running"], num_submitted - self._engine.num_queued)
        free = 0 if stats["num_waiting"] else max(0, self._num_seats - running)
        waiting = self.num_waiting
        if waiting < self.max_queue + free:
            return
        after = self.rate.seconds_for(max(1, waiting))
        raise QueueFullError(
            f"{waiting:,} requests wait, and max_queue = {self.max_queue:,} in addition to {free:,} free places of the batch: try again in"
            f" {after:.1f} s",
            waiting,
            self.max_queue,
            after,
        )
