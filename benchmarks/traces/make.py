"""Writes the slices of public traces in this folder: `python benchmarks/traces/make.py AZURE_CONV_CSV MOONCAKE_CONVERSATION_JSONL`."""

from __future__ import annotations

import csv
import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_COUNT = 1000  # the first requests of each
_HERE = Path(__file__).parent


def _azure(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = None
        for row in csv.DictReader(file):
            at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26])
            first = first or at
            stamp = round((at - first).total_seconds() * 1e3, 3)
            yield {"timestamp": stamp, "input_length": int(row["ContextTokens"]), "output_length": int(row["GeneratedTokens"])}


def _mooncake(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def main() -> int:
    """Runs it."""
    azure, mooncake = map(Path, sys.argv[1:3])
    for name, entries in (("azure_2023_conversation", _azure(azure)), ("mooncake_conversation", _mooncake(mooncake))):
        lines = [json.dumps(entry) for entry, _ in zip(entries, range(_COUNT), strict=False)]
        (_HERE / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
