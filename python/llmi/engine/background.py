"""One function in a thread of its own, and its result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")


class Background(Generic[R]):
    """Starts at once; `result()` waits, and raises what the function raised."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function
        self._results: list[R] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="llmi-load")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Returns when the function has ended, however it did."""
        self._thread.join()

    def result(self) -> R:
        """The function's result."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]
