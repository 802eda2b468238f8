"""The parts of an answer as it comes: text, reasoning, and calls of tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol


class Part(Protocol):
    """News of an answer: more text or reasoning, the beginning of a call, or more of its arguments (JSON text)."""

    @property
    def kind(self) -> Literal["text", "reasoning", "call", "arguments"]: ...
    @property
    def call_index(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


class PartStream(Protocol):
    """Takes an answer's text in pieces and tells its parts; llmi.tools.ToolStream is one."""

    def feed(self, text: str) -> Sequence[Part]:
        """The parts that this text adds."""

    def finish(self) -> Sequence[Part]:
        """The rest, at the answer's end."""


@dataclasses.dataclass(frozen=True, slots=True)
class TextPart:
    """More text."""

    text: str
    kind: Literal["text"] = "text"
    call_index: int = -1
    id: str = ""
    name: str = ""


class TextStream:
    """An answer that is text alone."""

    def feed(self, text: str) -> Sequence[Part]:
        """The text."""
        return [TextPart(text)] if text else []

    def finish(self) -> Sequence[Part]:
        """Nothing."""
        return []


#: Makes the stream of choice `index`.
Streams = Callable[[int], PartStream]


@dataclasses.dataclass(slots=True)
class Call:
    """A call of a tool; `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str = ""

    @property
    def values(self) -> Any:
        """The arguments as an object; {} where they were cut off."""
        try:
            return json.loads(self.arguments or "{}")
        except ValueError:
            return {}


class Parts:
    """All parts of one answer, put together."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[Call] = []

    def add(self, parts: Sequence[Part]) -> None:
        """Takes in what is new."""
        for part in parts:
            if part.kind == "text":
                self.text += part.text
            elif part.kind == "reasoning":
                self.reasoning += part.text
            elif part.kind == "call":
                self.calls.append(Call(part.id, part.name, part.text))
            else:
                self.calls[part.call_index].arguments += part.text


def news_of(stream: PartStream, text: str, is_end: bool) -> list[Part]:
    """The parts that this text adds, which is the answer's last if `is_end`."""
    return [*stream.feed(text), *(stream.finish() if is_end else ())]


def parts_of(stream: PartStream, text: str) -> Parts:
    """The parts of a whole answer."""
    result = Parts()
    result.add(news_of(stream, text, True))
    return result


def num_reasoning_tokens(token_ids: Sequence[int], decode: Callable[[Sequence[int]], str], open_stream: Callable[[], PartStream]) -> int:
    """How many of an answer's tokens there are until its reasoning is whole, opening marks included; 0 without reasoning."""
    whole = len(parts_of(open_stream(), decode(token_ids)).reasoning)
    low, high = 0, len(token_ids) if whole else 0
    while low < high:
        middle = (low + high) // 2
        if len(parts_of(open_stream(), decode(token_ids[:middle])).reasoning) >= whole:
            high = middle
        else:
            low = middle + 1
    return low
