"""From the text of an answer to its parts, as it comes. However the text is cut, the events add up to the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from llmi.structured.thinking import Thinking
from llmi.tools.calls import ToolCall, ToolEvent, call_id
from llmi.tools.form import SPACE, Call, ToolFormat


@dataclasses.dataclass(frozen=True)
class AnswerFormat:
    """How one answer is read.

    Attributes
    ----------
    form : ToolFormat or None
        None: nothing in it is a call.
    names : frozenset of str
        Of the tools; a call of another name is text.
    thinking : Thinking or None
        What stands around its reasoning.
    is_open : bool
        The prompt has begun the reasoning.
    """

    form: ToolFormat | None
    names: frozenset[str] = frozenset()
    thinking: Thinking | None = None
    is_open: bool = False


class ToolStream:
    """Reads an answer: `feed` its text as it comes, then `finish`; each gives what is new.

    A call comes whole, when its end has come: what turns out to be none, because it is malformed, cut off, or of an unknown name, is text
    as it was written. White space next to a call or to reasoning is left out; all else is in one of the parts.

    Parameters
    ----------
    format : AnswerFormat
    seed : int
    index : int
    prompt : str
        The request's seed, the sample's index and the prompt's text, from which ids come.

    Attributes
    ----------
    calls : list of ToolCall
        Those that have come.

    Examples
    --------
    >>> add = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    >>> stream = chat_tools(llm.tokenizer, tools=[add], tool_format="hermes").stream(seed=1, index=0)
    >>> for piece in ("Yes.", '<tool_call>{"name": "add", ', '"arguments": {"a": 1}}</tool_call>'):
    ...     print([event.kind for event in stream.feed(piece)])
    ['text']
    []
    ['call', 'arguments']
    >>> stream.finish(), stream.calls[0].arguments
    ([], {'a': 1})
    """

    def __init__(self, format: AnswerFormat, seed: int, index: int, prompt: str = "") -> None:
        self._format, self._seed, self._index, self._prompt = format, seed, index, prompt
        self._text = ""  # what is not settled
        self._space = ""  # white space before it, which is text if more text follows
        self._searched = 0  # up to where the end of a call was looked for
        self._events: list[ToolEvent] = []
        self._after_mark = False  # behind reasoning or a call: white space is left out
        self._step: Callable[[bool], bool] = self._begin
        self.calls: list[ToolCall] = []

    def feed(self, text: str) -> list[ToolEvent]:
        """News that a piece of text brings."""
        self._text += text
        while self._step(False):
            pass
        return self._taken()

    def finish(self) -> list[ToolEvent]:
        """News at the end of the answer."""
        while self._step(True):
            pass
        return self._taken()

    def _taken(self) -> list[ToolEvent]:
        events, self._events = self._events, []
        return events

    # --- steps: each takes from self._text what it can, and says whether the next step may take the rest

    def _begin(self, is_last: bool) -> bool:
        """Does reasoning come first?"""
        thinking = self._format.thinking
        if thinking is None:
            self._step = self._answer
            return True
        if self._format.is_open:
            self._after_mark, self._step = True, self._label
            return True
        begun = self._text.lstrip(SPACE)
        if begun.startswith(thinking.begins):
            self._text = begun[len(thinking.begins) :]
            self._after_mark, self._step = True, self._label
            return True
        if thinking.begins.startswith(begun) and not is_last:
            return False
        self._step = self._answer
        return True

    def _label(self, is_last: bool) -> bool:
        assert self._format.thinking is not None
        label = self._format.thinking.label
        if label.startswith(self._text) and len(self._text) < len(label) and not is_last:
            return False
        self._text, self._step = self._text.removeprefix(label), self._think
        return True

    def _think(self, is_last: bool) -> bool:
        assert self._format.thinking is not None
        ends = self._format.thinking.ends
        at = self._text.find(ends)
        if at >= 0:
            self._emit("reasoning", self._text[:at], False)
            self._text, self._space = self._text[at + len(ends) :], ""
            self._after_mark, self._step = True, self._answer
            return True
        self._emit_settled("reasoning", ends, is_last)
        return False

    def _answer(self, is_last: bool) -> bool:
        """At the beginning of the answer proper: is it calls as a whole?"""
        form = self._format.form
        if form is None or form.opens:
            self._step = self._free
            return True
        begun = self._text.lstrip(SPACE)
        beginnings = [text for name in self._format.names for text in form.beginnings(name)]
        if any(begun.startswith(text) for text in beginnings):
            self._step = self._whole
            return True
        if any(text.startswith(begun) for text in beginnings) and not is_last:
            return False
        self._step = self._free
        return True

    def _whole(self, is_last: bool) -> bool:
        """An answer that may be calls as a whole: that shows at its end."""
        assert self._format.form is not None
        if not is_last:
            return False
        read = self._format.form.read(self._text, self._format.names)
        if isinstance(read, list):
            self._take(read)
            self._text = ""
        self._step = self._free
        return True

    def _free(self, is_last: bool) -> bool:
        form = self._format.form
        opens = form.opens if form is not None else ""
        at = self._text.find(opens) if opens else -1
        if at >= 0:
            self._emit("text", self._text[:at], False)
            self._text, self._searched, self._step = self._text[at:], len(opens), self._call
            return True
        self._emit_settled("text", opens, is_last)
        return False

    def _call(self, is_last: bool) -> bool:
        """Behind what opens a call: self._text begins with it, self._space stands before."""
        form = self._format.form
        assert form is not None
        begin, closes = len(form.opens), form.closes
        at = self._text.find(closes, self._searched)
        if at < 0:
            self._searched = max(begin, len(self._text) - len(closes) + 1)
            if is_last:
                self._emit("text", self._text, True)
                self._text = ""
            return False
        end = at + len(closes)
        read = form.read(self._text[begin:at], self._format.names)
        self._searched = end
        if read == "more":
            return True
        if isinstance(read, list):
            self._space, self._after_mark = "", True
            self._take(read)
        else:
            self._emit("text", self._text[:end], False)
        self._text, self._step = self._text[end:], self._free
        return True

    # --- what comes out

    def _take(self, calls: list[Call]) -> None:
        for call in calls:
            index = len(self.calls)
            taken = ToolCall(call_id(self._prompt, self._seed, self._index, index), call.name, call.arguments, call.arguments_text)
            self.calls.append(taken)
            self._events.append(ToolEvent("call", index, "", taken.id, taken.name))
            self._events.append(ToolEvent("arguments", index, taken.arguments_text, taken.id, taken.name))

    def _emit_settled(self, kind: str, mark: str, is_last: bool) -> None:
        """Gives out all but the end that may be the beginning of a mark."""
        held = 0 if is_last else _begun_at_end(self._text, mark)
        settled = self._text[: len(self._text) - held]
        self._text = self._text[len(settled) :]
        self._emit(kind, settled, is_last)

    def _emit(self, kind: str, text: str, is_last: bool) -> None:
        """Gives out text; white space at its end waits for more text, and after a mark it is left out at the beginning."""
        text = self._space + text
        if self._after_mark:
            text = text.lstrip()
        if not text:
            self._space = ""
            return
        kept = text if is_last else text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._after_mark = False
            self._events.append(ToolEvent("reasoning" if kind == "reasoning" else "text", -1, kept))


def _begun_at_end(text: str, mark: str) -> int:
    """How many letters at a text's end may be the beginning of a mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[len(text) - size :])), 0)
