"""When work on another thread should end, though it has no result: at a deadline, or because nobody waits for it any more."""

from __future__ import annotations

import contextvars
import math
import time


class Ending:
    """Asked by the work itself, wherever it waits. `at_s`: its deadline, by time.monotonic(); `end` says that nobody waits."""

    def __init__(self, at_s: float = math.inf) -> None:
        self.at_s = at_s

    def end(self) -> None:
        """From now on it is over."""
        self.at_s = -math.inf

    @property
    def is_over(self) -> bool:
        """Whether the work should end."""
        return time.monotonic() >= self.at_s


#: The one of the work that the code does; None: somebody waits for its end, and it goes on to its own limits.
ENDING: contextvars.ContextVar[Ending | None] = contextvars.ContextVar("ending", default=None)
