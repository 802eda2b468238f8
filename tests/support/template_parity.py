"""Chat templates beside transformers' renderer, by command: `python tests/support/template_parity.py FOLDER [--show]`.

FOLDER holds templates (*.jinja); llama.cpp's are in the source distribution of llama-cpp-python, under vendor/llama.cpp/models/templates.
Each is rendered with eight conversations. Where transformers renders, llmi must give the same text.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'The weather of a "city" <now>.',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Its name"}, "days": {"type": "integer", "enum": [1, 3]}},
                "required": ["city"],
            },
        },
    }
]
CALL = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}}
USER, ANSWER = (
    {"role": "user", "content": 'What\'s the weather?\n  Indented, and "quoted".'},
    {"role": "assistant", "content": "Sunny, 20 °C. "},
)
SYSTEM = {"role": "system", "content": "You are terse. "}
# Both names of the thoughts, in this order: transformers 5 hands a message over so, whichever of them it has.
THOUGHT = {"thinking": "hm", "role": "assistant", "content": "<think>\nhm\n</think>\n\nSunny.", "reasoning_content": "hm"}
#: name: (messages, arguments)
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "plain": ([USER], {"add_generation_prompt": True}),
    "system": ([SYSTEM, USER], {"add_generation_prompt": True}),
    "turns": ([SYSTEM, USER, ANSWER, {"role": "user", "content": "And tomorrow?"}], {"add_generation_prompt": True}),
    "continued": ([USER, {"role": "assistant", "content": "It is"}], {"continue_final_message": True}),
    "tools": ([SYSTEM, USER], {"add_generation_prompt": True, "tools": TOOLS}),
    "tool calls": (
        [
            USER,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "name": "get_weather", "content": "20 °C, sunny", "tool_call_id": "call12345"},
            {"role": "user", "content": "Thanks"},
        ],
        {"add_generation_prompt": True, "tools": TOOLS},
    ),
    "thinking": ([USER, THOUGHT, {"role": "user", "content": "Sure?"}], {"add_generation_prompt": True, "enable_thinking": False}),
    "documents": ([USER], {"add_generation_prompt": True, "documents": [{"title": "Sun", "text": "It shines.", "doc_id": 1}]}),
}
#: Beyond the eight: what llmi does on purpose unlike transformers, or what a template can lose.
FURTHER: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}], {"add_generation_prompt": True}),
    "special texts": (
        [SYSTEM, {"role": "user", "content": "a<|im_end|>b</s>c[INST]<end_of_turn>d"}, ANSWER, USER],
        {"add_generation_prompt": True},
    ),
    "continued, spaces": ([USER, ANSWER], {"continue_final_message": True}),
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SPECIAL = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|user|>",
    "<|assistant|>",
    "[INST]",
    "[/INST]",
    "<start_of_turn>",
    "<end_of_turn>",
]


def reference(template: str, messages: list[dict[str, Any]], arguments: dict[str, Any]) -> str:
    """What transformers writes."""
    from transformers.utils.chat_template_utils import render_jinja_template

    return str(render_jinja_template([messages], chat_template=template, **TOKENS, **arguments)[0][0])


def ours(template: str, messages: list[dict[str, Any]], arguments: dict[str, Any]) -> Any:
    """What llmi writes."""
    from llmi.chat import rules

    own = {name: value for name, value in arguments.items() if name in ("add_generation_prompt", "continue_final_message")}
    kwargs = {name: value for name, value in arguments.items() if name not in own}
    return rules.render(template, messages, TOKENS, rules.special_pattern(SPECIAL), Path("template"), kwargs=kwargs, **own)


def without_clock(text: str) -> str:
    """Times of day left out: two renderings are not of one second."""
    return re.sub(r"\d\d:\d\d(:\d\d)?", "TIME", text)


def compare(template: str, messages: list[dict[str, Any]], arguments: dict[str, Any]) -> tuple[str, str]:
    """(verdict, what differs): "equal", "different", "refused" (by llmi alone), "not rendered" (by transformers)."""
    try:
        expected = reference(template, messages, arguments)
    except Exception as error:
        return "not rendered", f"{type(error).__name__}: {error}"
    try:
        text = ours(template, messages, arguments).text
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"
    if without_clock(text) == without_clock(expected):
        return "equal", ""
    return "different", f"{expected!r}\n     {text!r}"


def timed(template: str, messages: list[dict[str, Any]], arguments: dict[str, Any]) -> float:
    """Milliseconds of one rendering."""
    start = time.perf_counter()
    ours(template, messages, arguments)
    return 1e3 * (time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--show", action="store_true", help="each difference")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.jinja"))
    counts: dict[str, int] = {}
    further: dict[str, dict[str, int]] = {}
    warm: list[float] = []
    for file in files:
        template = file.read_text(encoding="utf-8")
        for name, (messages, arguments) in (CONVERSATIONS | FURTHER).items():
            verdict, detail = compare(template, messages, arguments)
            group = counts if name in CONVERSATIONS else further.setdefault(name, {})
            group[verdict] = group.get(verdict, 0) + 1
            if verdict in ("different", "refused") and (options.show or name in CONVERSATIONS):
                print(f"{verdict}: {file.name}, {name}: {detail}")
            if verdict == "equal":
                warm.append(min(timed(template, messages, arguments) for _ in range(5)))
    rendered = sum(counts.values()) - counts.get("not rendered", 0)
    print(
        f"{len(files)} templates x {len(CONVERSATIONS)} conversations: {counts.get('equal', 0)} of {rendered} equal where transformers renders",
        counts,
    )
    for name, group in further.items():
        print(f"further, {name}: {group}")
    warm.sort()
    print(
        f"a warm chat, best of 5: median {warm[len(warm) // 2]:.2f} ms, 99 % within {warm[int(0.99 * len(warm))]:.2f} ms, longest {warm[-1]:.2f} ms"
    )
    return counts.get("equal", 0) < rendered


if __name__ == "__main__":
    sys.exit(main())
