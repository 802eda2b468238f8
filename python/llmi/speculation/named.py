"""Drafters by name, and functions as drafters."""

from __future__ import annotations

from llmi.base.kinds import Text, parse, show
from llmi.errors import InvalidParamsError
from llmi.speculation.auto import AutoDrafters
from llmi.speculation.drafters import Drafter, FunctionDrafter, PromptLookup


def as_drafter(entry: object) -> Drafter:
    """A drafter from what `speculative_config` takes: a name, a drafter, or a function of a DraftContext. Raises InvalidParamsError."""
    if isinstance(entry, str):
        return _by_name(parse(Text(256), "drafter", entry))
    if isinstance(entry, Drafter):
        return entry
    if isinstance(entry, type) or not callable(entry):
        raise InvalidParamsError(f"a drafter is a Drafter or a function of a DraftContext, not {show(entry)}", "drafter")
    return FunctionDrafter(entry)


def _by_name(name: str) -> Drafter:
    """A drafter that a package registered under the entry point group llmi.drafters: a class or function without arguments."""
    from importlib.metadata import entry_points  # noqa: PLC0415 (10 ms that a program without such a name does not pay)

    if name == "prompt_lookup":
        return PromptLookup()
    if name == "auto":
        return AutoDrafters()
    found = entry_points(group="llmi.drafters")
    for point in found:
        if point.name == name:
            return as_drafter(point.load()())
    known = ", ".join(sorted({"auto", "prompt_lookup", *(point.name for point in found)}))
    raise InvalidParamsError(f"no drafter is called {name!r}: {known}", "drafter")
