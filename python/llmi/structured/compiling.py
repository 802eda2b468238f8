"""Compiling a grammar against a clock: requests of a server wait a bounded time for it, and share the work."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from llmi.errors import GrammarTimeoutError

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
#: Compilations that run at a time: with several, one that takes long holds up no short one.
_NUM_THREADS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Deadline:
    """How long a request waits for its grammar: `limit_s` seconds, counted from `since_s` (by time.monotonic())."""

    limit_s: float
    since_s: float

    def left_s(self) -> float:
        """Seconds that are left; 0 when it has passed."""
        return max(0.0, self.since_s + self.limit_s - time.monotonic())


@dataclasses.dataclass(slots=True)
class _Work(Generic[T]):
    """One compilation. num_waiting: requests that wait for it; begun: a thread has it."""

    make: Callable[[], T]
    future: Future[T]
    num_waiting: int = 0
    begun: bool = False


class Compilations(Generic[T]):
    """Compilations in threads of their own, the oldest first. Requests for the same grammar share one; one that has not begun ends with the
    last of them."""

    def __init__(self, num_threads: int = _NUM_THREADS) -> None:
        self._lock = threading.Lock()
        self._work: dict[Hashable, _Work[T]] = {}  # in the order of arrival
        self._num_idle = num_threads  # threads that may still be started

    def wait(self, key: Hashable, make: Callable[[], T], deadline: Deadline) -> T:
        """The result of `make`. Raises its error, or GrammarTimeoutError at the deadline.

        A compilation that has begun goes on after it, so that a later request finds the result.
        """
        work = self._join(key, make)
        try:
            return work.future.result(deadline.left_s())
        except TimeoutError:
            if work.future.done():
                return work.future.result()  # its own error, or it ended just now
            state = "has been compiling" if work.begun else "has waited behind others"
            raise GrammarTimeoutError(
                f"structured_outputs: the grammar {state} for {deadline.limit_s:g} s{' and goes on' if work.begun else ''}; "
                "send the request again in a few seconds, or make the grammar smaller",
                retry_after_s=deadline.limit_s,
            ) from None
        finally:
            self._leave(key, work)

    def _join(self, key: Hashable, make: Callable[[], T]) -> _Work[T]:
        from concurrent.futures import Future  # noqa: PLC0415 (it imports logging, which a program without a server need not have)

        with self._lock:
            work = self._work.get(key)
            if work is None:
                work = self._work[key] = _Work(make, Future())
                if self._num_idle:
                    self._num_idle -= 1
                    threading.Thread(target=self._run, name="llmi grammar", daemon=True).start()
            work.num_waiting += 1
            return work

    def _leave(self, key: Hashable, work: _Work[T]) -> None:
        with self._lock:
            work.num_waiting -= 1
            if not work.begun and not work.num_waiting:
                del self._work[key]

    def _run(self) -> None:
        """Compiles what waits, until nothing does."""
        while True:
            with self._lock:
                found = next(((key, work) for key, work in self._work.items() if not work.begun), None)
                if found is None:
                    self._num_idle += 1
                    return
                found[1].begun = True
            self._compile(*found)

    def _compile(self, key: Hashable, work: _Work[T]) -> None:
        made: T | None = None
        error: BaseException | None = None
        try:
            made = work.make()
        except BaseException as caught:
            error = caught
        with self._lock:  # first: a request after the answer starts a compilation of its own
            del self._work[key]
        if error is not None:
            work.future.set_exception(error)
        else:
            work.future.set_result(cast("T", made))
