"""Test prompts of the benchmarks of drafters: 100 a kind, apart from the text that drafters are trained on.

Each kind is some twenty frames, none of which serves more than five prompts, and none of which python/llmi/training/frames.py has.
They were fixed before the first training run; tests/test_training_text.py holds them against the training text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = ("chat", "maths", "question", "summary", "code edit", "translation")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One test prompt: its frame, the user's turn, and the beginning of the answer where an editor would give one."""

    kind: str
    frame: str
    user: str
    begun: str = ""

    def chat(self) -> list[dict[str, str]]:
        """As messages."""
        messages = [{"role": "user", "content": self.user}]
        return [*messages, {"role": "assistant", "content": self.begun}] if self.begun else messages


def _lines(name: str) -> list[str]:
    text = (HERE / f"{name}.txt").read_text(encoding="utf-8")
    return [line.replace("\\n", "\n") for line in text.splitlines() if not line.startswith("#")]


def _filled(kind: str) -> Iterator[Prompt]:
    for line in _lines(kind):
        frame, *fillers = (part.strip() for part in line.split(" | "))
        for filler in fillers:
            yield Prompt(kind, frame, frame.format(*filler.split("; ")))


def _around(kind: str, frames: list[str], texts: list[str]) -> Iterator[Prompt]:
    for index, text in enumerate(texts):
        frame = frames[index % len(frames)]
        yield Prompt(kind, frame, frame.replace("{}", text))


def _code_edits() -> Iterator[Prompt]:
    frames = [line.split(" => ") for line in _lines("code_edit")]
    functions = (HERE / "functions.txt").read_text(encoding="utf-8").split("=== ")[1:]
    for index, function in enumerate(functions):
        names, code = function.split("\n", 1)
        name, new = names.split()
        frame, begun = frames[index % len(frames)]
        values = {"name": name, "new": new, "code": code}
        yield Prompt("code edit", frame, frame.format(**values), begun.format(**values))


def prompts(kind: str) -> list[Prompt]:
    """The 100 prompts of a kind, any run of 20 of which has every frame."""
    if kind == "code edit":
        return list(_code_edits())
    if kind == "translation":
        lines = _lines(kind)
        frames = [line.removeprefix("> ") for line in lines if line.startswith("> ")]
        return list(_around(kind, frames, [line for line in lines if not line.startswith("> ")]))
    if kind in ("summary", "question"):
        passages = _lines("passages")
        shift = 50 if kind == "question" else 0
        return list(_around(kind, _lines(kind), passages[shift:] + passages[:shift]))
    filled = list(_filled(kind))
    return [prompt for first in range(5) for prompt in filled[first::5]]
