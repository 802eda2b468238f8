"""Whether a text has many tokens in a row in common with test prompts."""

from __future__ import annotations

from collections.abc import Iterable

#: One equal token in a row more would make a test prompt known.
MOST_COMMON = 7


class Overlap:
    """Runs of MOST_COMMON + 1 tokens of the test prompts, to look texts up in.

    Parameters
    ----------
    prompts : iterable of lists of token ids
    """

    def __init__(self, prompts: Iterable[list[int]]) -> None:
        self._runs = {run for ids in prompts for run in _runs(ids)}

    def found(self, ids: list[int]) -> bool:
        """Whether `ids` have MOST_COMMON + 1 tokens in a row that a prompt has too."""
        return not self._runs.isdisjoint(_runs(ids))


def _runs(ids: list[int]) -> Iterable[tuple[int, ...]]:
    length = MOST_COMMON + 1
    return (tuple(ids[start : start + length]) for start in range(len(ids) - length + 1))
