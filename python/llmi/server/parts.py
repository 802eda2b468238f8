"""The parts of an answer as it comes: text, reasoning, and calls of tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from llmi.tools.calls import ToolEvent
from llmi.tools.stream import ToolStream


class TextStream:
    """An answer that is text alone, as ToolStream tells others."""

    def feed(self, text: str) -> list[ToolEvent]:
        """The text."""
        return [ToolEvent("text", -1, text)] if text else []

    def finish(self) -> list[ToolEvent]:
        """Nothing."""
        return []


PartStream: TypeAlias = ToolStream | TextStream
#: Makes the stream of choice `index`.
Streams = Callable[[int], PartStream]


def news_of(stream: PartStream, text: str, is_end: bool) -> list[ToolEvent]:
    """The parts that this text adds, which is the answer's last if `is_end`."""
    return [*stream.feed(text), *(stream.finish() if is_end else ())]


def num_reasoning_tokens(token_ids: Sequence[int], reasoning_of: Callable[[Sequence[int]], str]) -> int:
    """How many of an answer's tokens there are until its reasoning is whole, opening marks included; 0 without reasoning."""
    whole = len(reasoning_of(token_ids))
    low, high = 0, len(token_ids) if whole else 0
    while low < high:
        middle = (low + high) // 2
        if len(reasoning_of(token_ids[:middle])) >= whole:
            high = middle
        else:
            low = middle + 1
    return low
