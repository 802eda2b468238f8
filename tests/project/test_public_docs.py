"""What the reference says of each public name: its parameters, what it returns and raises."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

PACKAGES = ("llmi", "llmi.compress", "llmi.smc", "llmi.testing", "llmi.tools", "llmi.watermark")


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
    if signature is None:  # a class: its arguments or attributes, if it has any; a protocol's methods have texts of their own
        own = [name for name in vars(value).get("__annotations__", ()) if not name.startswith("_")]
        has = own or getattr(value.__init__, "__module__", "") == value.__module__
        needed = {"parameters": ("Parameters\n---", "Attributes\n---")} if has else {}
    else:
        needed = {"parameters": ("Parameters\n---",)} if signature.parameters else {}
        if signature.return_annotation not in (None, "None", inspect.Signature.empty):
            needed["returns"] = ("Returns\n---", "Yields\n---")
        needed["raises"] = ("Raises\n---", "It raises nothing.")
    return [part for part, heads in needed.items() if not any(head in text for head in heads)]


def test_the_reference_lacks_nothing() -> None:
    assert {name: parts for name, value in sorted(exported().items()) if (parts := lacking(value))} == {}


def test_every_public_name_has_a_text() -> None:
    assert [name for name, value in exported().items() if not inspect.getdoc(value)] == []


def test_the_site_has_a_page_for_each_public_package() -> None:
    text = (Path(__file__).parents[2] / "tools/site.py").read_text()
    assert [package for package in PACKAGES if f'"{package}"' not in text] == []
