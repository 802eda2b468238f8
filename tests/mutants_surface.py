"""Planted bugs of the surface: files, values, templates, endings. One list for each kind; tests/mutants.py runs them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Mutant:
    """In `file`, `old` becomes `new`; `tests` must then fail."""

    group: str
    name: str
    file: str
    old: str
    new: str
    tests: str


def planted(name: str, file: str, old: str, new: str, tests: str) -> Mutant:
    """One of these."""
    return Mutant("surface", name, file, old, new, tests)


FILES: list[Mutant] = []
CONFIG: list[Mutant] = []
TOKENIZER: list[Mutant] = []
TEMPLATES: list[Mutant] = []
PARAMETERS: list[Mutant] = []
CALLS: list[Mutant] = []
ENDINGS: list[Mutant] = []
OBJECTS: list[Mutant] = []
PLACES: list[Mutant] = []
COMMAND_LINE: list[Mutant] = []
ARITHMETIC: list[Mutant] = []
PROMISE: list[Mutant] = []

SURFACE = [*FILES, *CONFIG, *TOKENIZER, *TEMPLATES, *PARAMETERS, *CALLS, *ENDINGS, *OBJECTS, *PLACES, *COMMAND_LINE, *ARITHMETIC, *PROMISE]
