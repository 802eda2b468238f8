"""Writes docs/published-models.md from tests/data/published_files.json: `python tests/support/published_page.py > docs/published-models.md`."""

from __future__ import annotations

import json
from pathlib import Path

from llmi.families.reader import Reading

DATA = Path(__file__).parents[1] / "data" / "published_files.json"
INTRODUCTION = """# Published models that are read

This page is generated from tests/data/published_files.json (`python tests/support/published_page.py`). Each row is a config.json as it is
published, by the model's name on the hub. The last column says where the copy was found (repository, path, commit) and where it
differs from the original.

`llmi inspect` reads all of them, and tests/models/test_published_configs.py changes their values one by one: each change that matters makes
another model, or is refused by name.

| model | family | found at |
| --- | --- | --- |
"""


def page() -> str:
    """The text of docs/published-models.md."""
    rows = []
    for name, entry in json.loads(DATA.read_text()).items():
        spec = Reading(entry["config"], "config.json", {}, {}, None).of_config_json()
        note = f" ({entry['note']})" if "note" in entry else ""
        rows.append(f"| {name} | {spec.family} | {entry['source']}{note} |\n")
    return INTRODUCTION + "".join(rows)


if __name__ == "__main__":
    print(page(), end="")
