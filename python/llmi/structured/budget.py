"""A bound on the work that a client's text causes before the engine sees it."""

from __future__ import annotations

from llmi.errors import InvalidParamsError

#: A step takes about a microsecond. In 99 of 100 cases a real schema takes less than a fiftieth of them.
MOST_STEPS = 500_000


class Budget:
    """The steps that are left for what is more than linear in the text of one request. Where none are left, the request is refused.

    It counts steps and no time, so that a text is refused on each machine or on none.
    """

    def __init__(self, what: str, field: str = "structured_outputs", limit: int | None = None) -> None:
        self._what = what
        self._field = field
        self.limit = self.left = MOST_STEPS if limit is None else limit

    def spend(self, steps: int = 1) -> None:
        """Takes steps away. Raises InvalidParamsError when there are no more."""
        self.left -= steps
        if self.left < 0:
            raise InvalidParamsError(
                f"{self._field}: {self._what} takes more than {self.limit:,} steps to prepare: parts that refer to each other, or are"
                " compared with each other, multiply; make it smaller, or refer to fewer parts",
                self._field,
            )
