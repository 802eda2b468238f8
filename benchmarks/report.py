"""What every benchmark's result begins with, and the command line that they share."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llmi
from llmi import _core

ROOT = Path(__file__).resolve().parent.parent
#: Pages with tables between markers.
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("speed", "precision", "performance", "results"))


def header() -> dict[str, Any]:
    """Commit, machine and command."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "command": f"python benchmarks/{Path(sys.argv[0]).name} " + " ".join(sys.argv[1:]),
        "commit": commit,
        "llmi": llmi.__version__,
        "cpu": _core.system_info()["cpu"],
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def by_processor(name: str, result: dict[str, Any]) -> str:
    """The name of a result's markers: each kind of processor has a table of its own."""
    return name if result["table"].startswith("avx512") else f"{name} avx2"


def write_table(name: str, table: str) -> None:
    """Replaces the text between the benchmark's markers, in whichever page has them."""
    for path in PAGES:
        pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
        path.write_text(re.sub(pattern, lambda match: f"{match[1]}{table}\n{match[2]}", path.read_text(), flags=re.DOTALL))


def main(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
    marker: Callable[[dict[str, Any]], str] = lambda result: Path(sys.argv[0]).stem,
) -> int:
    """Runs, prints the table, writes JSON; `--readme FILE ..` puts the table of written results between its markers.

    Where results have the same entry, the first one's counts.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--output", type=Path, help="write the result here, as JSON")
    parser.add_argument("--readme", type=Path, nargs="+", help="put the table in docs from this result, and from further ones")
    options = parser.parse_args()
    if options.readme:
        result: dict[str, Any] = {}
        for file in reversed(options.readme):
            result |= json.loads(file.read_text())
        write_table(marker(result), table(result))
        return 0
    result = header() | run(options)
    print(table(result))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")
    return 0
