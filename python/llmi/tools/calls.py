"""Calls of tools, as results and as news of a stream."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call that a model wants to have made.

    Attributes
    ----------
    id : str
        A digest of the prompt, the request's seed, the sample's index and the call's place in its answer: a replay has the same ids, and
        the turns of one conversation have different ones.
    name : str
        Of one of the tools.
    arguments : dict
        JSON data.
    arguments_text : str
        The same as JSON text: what the model wrote, where its format writes JSON.

    Examples
    --------
    >>> ToolCall("call_1", "add", {"a": 1}, '{"a": 1}').as_dict()["function"]
    {'name': 'add', 'arguments': {'a': 1}}
    """

    id: str
    name: str
    arguments: dict[str, Any]
    arguments_text: str

    def as_dict(self) -> dict[str, Any]:
        """As an assistant's message holds it: `{"role": "assistant", "tool_calls": [call.as_dict()]}`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclasses.dataclass(frozen=True)
class ToolEvent:
    """News of an answer.

    Attributes
    ----------
    kind : {"text", "reasoning", "call", "arguments"}
        More of text or reasoning; a call begins; more of its arguments.
    call_index : int
        -1 for text and reasoning.
    text : str
        Of arguments JSON text.
    id, name : str
        Those of a call that begins.

    Examples
    --------
    >>> chat = chat_tools(llm.tokenizer, tool_format="hermes", tools=[{"type": "function", "function": {"name": "add"}}])
    >>> events = chat.stream(seed=1, index=0).feed('Yes. <tool_call>{"name": "add", "arguments": {}}</tool_call>')
    >>> [(event.kind, event.name) for event in events]
    [('text', ''), ('call', 'add'), ('arguments', 'add')]
    """

    kind: Literal["text", "reasoning", "call", "arguments"]
    call_index: int
    text: str
    id: str = ""
    name: str = ""


def call_id(prompt: str, seed: int, index: int, call_index: int) -> str:
    """The id of a call of sample `index` of a request."""
    return "call_" + hashlib.sha256(f"{seed}/{index}/{call_index}/{prompt}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
