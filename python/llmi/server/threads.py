"""Threads that prepare requests, and that the end of the server does not wait for."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

#: How long threads may take to end when nobody waits for them any more.
_THREADS_S = 1.0


class Threads(ThreadPoolExecutor):
    """A pool of them."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more work, and forgets what has not begun."""
        super().shutdown(wait=False, cancel_futures=True)

    def ended(self) -> bool:
        """Whether all threads have ended; those that still work get a moment."""
        until_s = time.monotonic() + _THREADS_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)
