"""Compiling a grammar against a clock: requests of a server wait a bounded time for it, and share the work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from llmi.errors import GrammarTimeoutError

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


class Compilations(Generic[T]):
    """Compilations that run in threads of their own. Requests for the same grammar wait for the same thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[T]] = {}

    def wait(self, key: Hashable, make: Callable[[], T], deadline_s: float) -> T:
        """The result of `make`. Raises its error, or GrammarTimeoutError after `deadline_s`; the thread goes on, so that a later request finds its result."""
        from concurrent.futures import Future  # it imports logging, which a program without a server need not have

        with self._lock:
            future = self._running.get(key)
            if future is None:
                future = self._running[key] = Future()
                threading.Thread(target=self._run, args=(key, make, future), name="llmi grammar", daemon=True).start()
        try:
            return future.result(deadline_s)
        except TimeoutError:
            if future.done():
                return future.result()  # its own error, or it ended just now
            raise GrammarTimeoutError(
                f"structured_outputs: the grammar has been compiling for {deadline_s:g} s and goes on; send the request again in a few seconds, "
                "or make the grammar smaller",
                retry_after_s=deadline_s,
            ) from None

    def _run(self, key: Hashable, make: Callable[[], T], future: Future[T]) -> None:
        made: T | None = None
        error: BaseException | None = None
        try:
            made = make()
        except BaseException as caught:
            error = caught
        with self._lock:  # first: a request after the answer starts a compilation of its own
            del self._running[key]
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("T", made))
