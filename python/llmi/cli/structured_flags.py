"""Structured output on the command line: a schema, a regular expression, a choice or a grammar."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from llmi.errors import InvalidParamsError
from llmi.models.input_file import read_text
from llmi.params.structured import MAX_TEXT, StructuredOutputsParams


def add_structured_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each kind of structured output; at most one may be given."""
    group = parser.add_argument_group("structured output (one of these; needs the extra `structured`)")
    group.add_argument(
        "--json-schema", metavar="FILE", default=argparse.SUPPRESS, help="the answer is JSON that fits the schema in this file"
    )
    group.add_argument("--regex", metavar="R", default=argparse.SUPPRESS, help="the answer matches this regular expression, whole")
    group.add_argument("--choice", metavar="TEXT", nargs="+", default=argparse.SUPPRESS, help="the answer is one of these texts")
    group.add_argument(
        "--grammar", metavar="FILE", default=argparse.SUPPRESS, help="the answer fits the grammar in this file: Lark or GBNF"
    )


def structured(arguments: argparse.Namespace) -> dict[str, StructuredOutputsParams]:
    """{"structured_outputs": ...}, or {} without one of the flags. Raises InvalidParamsError."""
    given = {name: getattr(arguments, name) for name in ("json_schema", "regex", "choice", "grammar") if hasattr(arguments, name)}
    if not given:
        return {}
    if len(given) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InvalidParamsError(f"{flags} cannot be given together: the answer keeps to one of them", "structured_outputs")
    ((name, value),) = given.items()
    fields: dict[str, Any] = {"json" if name == "json_schema" else name: value}
    if name in ("json_schema", "grammar"):
        fields = dict.fromkeys(fields, _read(value, f"--{name.replace('_', '-')}"))
    return {"structured_outputs": StructuredOutputsParams(**fields)}


def _read(path: str, flag: str) -> str:
    try:
        return read_text(Path(path), MAX_TEXT)
    except (OSError, ValueError) as error:
        raise InvalidParamsError(f"{flag}: {error}", "structured_outputs") from None
