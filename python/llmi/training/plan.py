"""How long a training is: updates, and the text for them, from a number of updates or from minutes of wall time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from llmi.base.progress import Bar
from llmi.training.eagle import UNROLL
from llmi.training.text import Text, Writer

#: A turn brings about 200 tokens of text and an update visits about 450, so the text is read about four times.
TURNS_PER_STEP = 0.5
FEWEST_TURNS = 48
#: Turns written at once; their speed is measured as often.
GROUP = 48
#: Share of the time that is left for what comes after the last update, and for surprises.
_RESERVE = 0.04


def turns_for(steps: int) -> int:
    """How many turns of text `steps` updates read: a function of the steps alone, so that they name the text too."""
    return max(FEWEST_TURNS, int(steps * TURNS_PER_STEP))


def training_s(steps: int, step_s: tuple[float, ...]) -> float:
    """Seconds of all updates, from those of one at each depth of unrolling."""
    bounds = [0, *(int(share * steps) for share in UNROLL), steps]
    return sum((end - start) * seconds for start, end, seconds in zip(bounds, bounds[1:], step_s, strict=False))


@dataclass
class Clock:
    """The rest of the minutes."""

    deadline: float

    @classmethod
    def of(cls, minutes: float) -> Clock:
        return cls(time.monotonic() + 60 * minutes * (1 - _RESERVE))

    def left_s(self) -> float:
        return self.deadline - time.monotonic()


def steps_in(seconds: float, step_s: tuple[float, ...], row_s: float) -> int:
    """Most updates for which hidden rows of their text, row_s a turn, and the updates themselves fit in `seconds`."""
    fit = 0
    reach = 1
    while turns_for(reach) * row_s + training_s(reach, step_s) <= seconds:
        fit, reach = reach, reach * 2
    while fit + 1 < reach:
        middle = (fit + reach) // 2
        if turns_for(middle) * row_s + training_s(middle, step_s) <= seconds:
            fit = middle
        else:
            reach = middle
    return fit


def write_turns(writer: Writer, text: Text, first: int, count: int, keep: Callable[[Text, int], None]) -> Text:
    """The text with turns `first` to `count` added; `keep` hears of the text and its number of turns after each group."""
    for start in range(first, count, GROUP):
        end = min(start + GROUP, count)
        text = text + writer(start, end)
        keep(text, end)
    return text


#: Share of a training of given minutes in which text is written, before anything was measured.
_TEXT_SHARE = 1 / 3


class TextProgress:
    """Moves a bar of 100 with the turns that are written.

    wanted : turns; None: not known so far, then the bar moves with the clock.
    """

    def __init__(self, bar: Bar, clock: Clock, wanted: int | None, written: int) -> None:
        self._bar = bar
        self._clock = clock
        self._text_s = _TEXT_SHARE * clock.left_s()
        self._begun_s = time.monotonic()
        self._wanted = wanted
        self._num_turns = float(written)
        self._shown = 0

    def moved(self, num_turns: float) -> None:
        """`num_turns` more turns are written."""
        self._num_turns += num_turns
        if self._wanted is None:
            self._show((time.monotonic() - self._begun_s) / self._text_s)
        else:
            self._show(self._num_turns / self._wanted)

    def expect(self, wanted: int) -> None:
        """`wanted` turns will be written."""
        self._wanted = wanted

    def end(self) -> None:
        """All of them are written."""
        self._show(1.0)

    def _show(self, share: float) -> None:
        position = int(100 * min(share, 1.0))
        if position > self._shown:
            self._bar.update(position - self._shown)
            self._shown = position
