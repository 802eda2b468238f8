"""Schemas and instances byte by byte through the grammars: what is accepted wrongly, refused wrongly, and refused as a schema.

`python tests/support/schema_suite.py suite FOLDER` runs drafts 7 and 2020-12 of the JSON Schema Test Suite (their required parts, and the formats
that are enforced), `python tests/support/schema_suite.py maskbench FOLDER` the files of MaskBench; FOLDER is a checkout of
json-schema-org/JSON-Schema-Test-Suite, or of guidance-ai/jsonschemabench. tests/structured/test_strict_schema.py runs a sample of the suite.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from llmi import InvalidParamsError, StructuredOutputsParams
from llmi.structured.formats import FORMATS
from llmi.structured.grammars import compiled
from llmi.structured.library import Vocabulary

DRAFTS = ("draft7", "draft2020-12")


@functools.cache
def byte_vocabulary() -> Vocabulary:
    """256 tokens of one byte each."""
    return Vocabulary([bytes([byte]) for byte in range(256)], {}, [])


def matcher_of(schema: object, **options: Any) -> Any:
    """The beginning of a schema's language (whitespace any, objects open as the standard has them). Raises InvalidParamsError."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return compiled(StructuredOutputsParams(json=text, **{"whitespace": "any", "open_objects": True, **options}), byte_vocabulary())


def accepts(matcher: Any, text: str) -> bool:
    """Whether a text is a whole of the language."""
    place, tokens = matcher.deep_copy(), list(text.encode())
    return bool(place.consume_tokens(tokens) and place.is_accepting())


@dataclasses.dataclass
class Tally:
    """Numbers of schemas and instances."""

    schemas: int = 0
    refused: int = 0  # schemas
    passed: int = 0  # schemas that are not refused, with all instances right
    instances: int = 0
    right: int = 0
    accepted_wrongly: list[str] = dataclasses.field(default_factory=list)
    refused_wrongly: list[str] = dataclasses.field(default_factory=list)

    def add(self, name: str, schema: object, tests: Iterable[tuple[object, bool]]) -> None:
        """Runs the instances of one schema."""
        self.schemas += 1
        try:
            matcher = matcher_of(schema)
        except InvalidParamsError:
            self.refused += 1
            return
        whole = True
        for value, valid in tests:
            found = accepts(matcher, json.dumps(value, ensure_ascii=False))
            self.instances += 1
            self.right += found == valid
            whole = whole and found == valid
            if found != valid:
                (self.accepted_wrongly if found else self.refused_wrongly).append(f"{name}: {json.dumps(value)[:200]}")
        self.passed += whole

    def as_dict(self) -> dict[str, int]:
        """The numbers."""
        return {name: len(value) if isinstance(value, list) else value for name, value in dataclasses.asdict(self).items()}


def run_suite(groups: Iterable[dict[str, Any]]) -> Tally:
    """Groups of the suite: a schema and its tests."""
    tally = Tally()
    for group in groups:
        tests = [(test["data"], test["valid"]) for test in group["tests"] if _writable(test["data"])]
        tally.add(f"{group['description']}: {json.dumps(group['schema'])[:200]}", group["schema"], tests)
    return tally


def _writable(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def groups_of(folder: Path, draft: str) -> Iterator[dict[str, Any]]:
    """The required part of a draft, and the formats that are enforced."""
    root = folder / "tests" / draft
    formats = [root / "optional" / "format" / f"{name}.json" for name in FORMATS]
    for path in [*sorted(root.glob("*.json")), *(path for path in formats if path.exists())]:
        yield from json.loads(path.read_text())


def run_maskbench(paths: Iterable[Path]) -> Tally:
    """Files of MaskBench."""
    tally = Tally()
    for path in paths:
        data = json.loads(path.read_text())
        tally.add(path.name, data["schema"], ((test["data"], test["valid"]) for test in data["tests"]))
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["suite", "maskbench"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="of MaskBench's files, each n-th one")
    arguments = parser.parse_args()
    if arguments.what == "suite":
        tallies = {draft: run_suite(groups_of(arguments.folder, draft)) for draft in DRAFTS}
    else:
        tallies = {"maskbench": run_maskbench(sorted((arguments.folder / "maskbench" / "data").glob("*.json"))[:: arguments.every])}
    for name, tally in tallies.items():
        print(name, json.dumps(tally.as_dict()), *(f"\n  accepted: {entry}" for entry in tally.accepted_wrongly))
    return int(any(tally.accepted_wrongly for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
