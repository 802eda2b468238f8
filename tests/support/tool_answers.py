"""Answers with tool calls, sampled under each format's own grammar, and what becomes of them when they are damaged and cut.

`python tests/support/tool_answers.py 200` reads 200 sampled answers of each format, with a damaged and a truncated copy of each, in all splits of
one and two cuts, and counts the parses that change. Long answers are read from a random place on: their beginnings are alike.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

from llmi import LLM
from llmi.structured.thinking import Thinking
from llmi.testing import tiny_model
from llmi.tools import ToolStream
from llmi.tools.chat import FORMATS
from llmi.tools.stream import AnswerFormat

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | length if tools else 0 }} assistant:"
THINKS = Thinking("<think>", "</think>")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 5},
                    "days": {"type": "integer", "minimum": 1, "maximum": 12},
                    "unit": {"enum": ["c", "f"]},
                    "exact": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string", "maxLength": 2}, "maxItems": 2},
                    "at": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
                },
                "required": ["city"],
                "additionalProperties": False,
                "$defs": {
                    "place": {
                        "type": "object",
                        "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}},
                        "required": ["x"],
                        "additionalProperties": False,
                    }
                },
            },
        },
    },
    {"type": "function", "function": {"name": "stop-all"}},
    {
        "type": "function",
        "function": {
            "name": "any.thing",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {"k": {"type": "string", "maxLength": 3}},
                "required": ["k"],
                "additionalProperties": False,
            },
        },
    },
]
NAMES = frozenset(tool["function"]["name"] for tool in TOOLS)


def sampled(llm: LLM, name: str, count: int, tools: list[dict[str, Any]], seed: int = 0) -> list[str]:
    """Texts of answers that call tools."""
    chat = [{"role": "user", "content": "x"}]
    out = llm.chat(
        chat,
        n=count,
        seed=seed,
        temperature=1.0,
        max_tokens=400,
        tools=tools,
        tool_choice="required",
        tool_format=name,
        chat_template=TEMPLATE,
    )
    return [completion.text for completion in out[0].outputs]


def damaged(text: str, rng: random.Random) -> str:
    """The text with some letters gone, doubled or replaced."""
    letters = list(text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(letters)) if letters else 0
        letters[at : at + 1] = rng.choice([[], letters[at : at + 1] * 2, [rng.choice('{}[]()"<>:, \n\\')]])
    return "".join(letters)


def parts_of(stream: ToolStream, pieces: tuple[str, ...]) -> tuple[Any, ...]:
    """(content, reasoning, calls) that the events of these pieces add up to."""
    events = [event for piece in pieces for event in stream.feed(piece)] + stream.finish()
    content = "".join(event.text for event in events if event.kind == "text")
    reasoning = "".join(event.text for event in events if event.kind == "reasoning")
    calls: list[list[str]] = []
    for event in events:
        if event.kind == "call":
            assert event.call_index == len(calls)
            calls.append([event.id, event.name, ""])
        elif event.kind == "arguments":
            calls[event.call_index][2] += event.text
    assert calls == [[call.id, call.name, call.arguments_text] for call in stream.calls]
    return content, reasoning, calls


def splits(text: str) -> Iterator[tuple[str, ...]]:
    """All with one and two cuts."""
    for i in range(len(text) + 1):
        yield text[:i], text[i:]
        for j in range(i, len(text) + 1):
            yield text[:i], text[i:j], text[j:]


def changed(format: AnswerFormat, text: str) -> list[tuple[str, ...]]:
    """The splits whose events add up to another parse than the whole's."""
    whole = parts_of(ToolStream(format, 1, 0), (text,))
    return [pieces for pieces in splits(text) if parts_of(ToolStream(format, 1, 0), pieces) != whole]


def shortened(text: str, rng: random.Random) -> str:
    """At most 72 letters of a text, whole calls where they fit."""
    if len(text) <= 72:
        return text
    cut = rng.randrange(20, len(text) - 32)
    return text[:36] + text[cut : cut + 36]


def variants(text: str, rng: random.Random) -> Iterator[str]:
    """The text with free text and reasoning around it, damaged, and cut off."""
    yield rng.choice(["", "Let me see. \n", "<think>\nhm <tool_call> \n</think>\n\n", " <thin"]) + text
    yield damaged(text, rng)
    yield text[: rng.randrange(len(text) + 1)]


def main(count: int) -> int:
    """Prints a line for each format."""
    num_changed = 0
    with LLM(tiny_model(vocab_size=257), max_model_len=2048, max_num_seqs=64, kv_cache_memory_bytes=1 << 27) as llm:
        for form in FORMATS:
            rng, num_texts, wrong, calls = random.Random(1), 0, 0, 0
            for batch in range(-(-count // 50)):
                for text in sampled(llm, form.name, min(50, count), TOOLS, seed=batch):
                    calls += len(parts_of(ToolStream(AnswerFormat(form, NAMES), 1, 0), (text,))[2])
                    for variant in variants(shortened(text, rng), rng):
                        num_texts += 1
                        wrong += len(changed(AnswerFormat(form, NAMES, THINKS), variant))
            num_changed += wrong
            print(f"{form.name}: {count} answers with {calls} calls, {num_texts} texts read, {wrong} parses changed", flush=True)
    return int(num_changed > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
