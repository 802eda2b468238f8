"""The models that the flag -m names, each under a name of its own."""

from __future__ import annotations

from pathlib import Path

from llmi.errors import InvalidParamsError
from llmi.models.catalogue import DEFAULT_MODEL


def named_models(given: list[str] | None) -> dict[str, str]:
    """{name: model} of the -m flags. Raises InvalidParamsError for a name that comes twice."""
    result: dict[str, str] = {}
    for entry in given or [DEFAULT_MODEL]:
        name, is_named, path = entry.partition("=")
        if not is_named or "/" in name or not name or not path:
            path = entry
            name = Path(entry).name if Path(entry).is_dir() or entry.count("/") == 1 else Path(entry).name.removesuffix(".gguf")
        if name in result:
            raise InvalidParamsError(f"two models are named {name!r}: give one of them another name, as in -m other={path}", "model")
        result[name] = path
    return result
