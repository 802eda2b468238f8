"""Event loops whose clock a test holds: deadlines, timers and sleeps come when the test says, however busy the machine is."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Where a loop would wait for a timer, its clock goes there instead."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self.now_s += timeout
            timeout = 0
        return super().select(timeout)


class _Skipping(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._held = _Selector()
        super().__init__(self._held)

    def time(self) -> float:
        return self._held.now_s


def run_skipping(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, in a time that passes only where all tasks wait for it, and then at once. For tasks that wait for nothing outside the
    loop."""
    with asyncio.Runner(loop_factory=_Skipping) as runner:
        return runner.run(main)


class AheadLoop(asyncio.SelectorEventLoop):
    """A loop on a real clock that a test, in another thread, can set ahead. For servers on sockets."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s

    def pass_time(self, seconds: float) -> None:
        """What is due until then comes now."""
        done = threading.Event()

        def set_ahead() -> None:
            self.ahead_s += seconds
            self.call_soon(done.set)

        self.call_soon_threadsafe(set_ahead)
        assert done.wait(300)
