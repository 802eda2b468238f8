"""What the reference says of each public name: its parameters, what it returns and raises. What it does not say is counted, name by name."""

from __future__ import annotations

import importlib
import inspect
import json
import os
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "data/undocumented_parts.json"
PACKAGES = ("llmi", "llmi.smc", "llmi.testing", "llmi.tools", "llmi.watermark")


def exported() -> dict[str, Any]:
    """Every public class and function by its full name."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{package}.{name}"] = value
    return found


def lacking(value: Any) -> list[str]:
    """The parts that a docstring has not: those of "parameters", "returns" and "raises" that the object has."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return [] if inspect.getdoc(value) else ["text"]
    text = inspect.getdoc(value) or ""
    signature = inspect.signature(value) if inspect.isfunction(value) else None
    if signature is None:  # a class: its arguments or attributes
        needed = {"parameters": ("Parameters\n---", "Attributes\n---")}
    else:
        needed = {"parameters": ("Parameters\n---",)} if signature.parameters else {}
        if signature.return_annotation not in (None, "None", inspect.Signature.empty):
            needed["returns"] = ("Returns\n---", "Yields\n---")
        needed["raises"] = ("Raises\n---", "It raises nothing.")
    return [part for part, heads in needed.items() if not any(head in text for head in heads)]


def test_what_the_reference_lacks_is_known() -> None:
    """The list only gets shorter: take out what you have written. LLMI_WRITE_UNDOCUMENTED=1 writes it anew."""
    now = {name: parts for name, value in sorted(exported().items()) if (parts := lacking(value))}
    if os.environ.get("LLMI_WRITE_UNDOCUMENTED") == "1":
        FILE.write_text(json.dumps(now, indent=1) + "\n")
    assert now == json.loads(FILE.read_text())


def test_every_public_name_has_a_text() -> None:
    assert [name for name, value in exported().items() if not inspect.getdoc(value)] == []


def test_the_site_has_a_page_for_each_public_package() -> None:
    text = (Path(__file__).parents[2] / "tools/site.py").read_text()
    assert [package for package in PACKAGES if f'"{package}"' not in text] == []
