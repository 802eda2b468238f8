"""The documents: tables that are made from the code agree with it, and files that they name exist."""

from __future__ import annotations

import re

import pytest

import parameters_page
from llmi import LLM, _core
from llmi.testing import tiny_model

pytestmark = pytest.mark.skipif(not parameters_page.PAGE.is_file(), reason="the documents are not next to the tests")


def test_parameters_page_is_up_to_date() -> None:
    text = parameters_page.PAGE.read_text(encoding="utf-8")
    assert parameters_page.page(text) == text, "run `python tests/support/parameters_page.py`"


@pytest.mark.parametrize("name", parameters_page.TABLES)
def test_every_table_has_rows_and_whole_cells(name: str) -> None:
    lines = parameters_page.TABLES[name]().splitlines()
    assert len(lines) > 3
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    "page", ["docs/architecture.md", "docs/where-to-change.md", "docs/cuda.md", "docs/performance.md", "CONTRIBUTING.md"]
)
def test_named_files_exist(page: str) -> None:
    root = parameters_page.PAGE.parent.parent
    named = re.findall(r"\b(?:csrc|python/llmi|tests|cmake|docs|benchmarks)/[\w./*-]*\w", (root / page).read_text(encoding="utf-8"))
    assert named
    missing = [name for name in named if "*" not in name and not re.search(r"[A-Z]{3}", name) and not (root / name).exists()]
    assert not missing, f"{page} names files that are not there: {missing}"


def test_paragraphs_are_short() -> None:
    """A paragraph, or an item of a list, has at most 450 characters; tables, code and headings do not count."""
    for page in sorted(parameters_page.PAGE.parent.rglob("*.md")):
        text = re.sub(r"^```.*?^```|^ *(\||#).*?$", "\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for paragraph in re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )", text):
            assert len(" ".join(paragraph.split())) <= 450, f"{page.name}: {paragraph}"


def test_references_to_decisions_exist() -> None:
    docs = parameters_page.PAGE.parent
    pages = {page.name[:4] for page in (docs / "decisions").glob("*.md")}
    for folder in ("csrc", "docs", "python/llmi", "tests"):
        for file in (docs.parent / folder).rglob("*"):
            if file.suffix in (".h", ".cc", ".cpp", ".md", ".py"):
                named = set(re.findall(r"decisions/(\d{4})", file.read_text(encoding="utf-8")))
                assert named <= pages, f"{file.name} names pages that are not there: {named - pages}"


def test_metrics_page_lists_all_metrics() -> None:
    tables = (parameters_page.PAGE.parent / "metrics.md").read_text(encoding="utf-8").split("## ")[1:]
    rows = [re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE) for table in tables]
    wanted = "\n".join(f"| `{name}` | {meaning} |" for name, meaning in _core.METRICS.items())
    assert rows[0] == list(_core.METRICS.items()), f"the first table of docs/metrics.md must be:\n{wanted}"
    with LLM(tiny_model(), max_model_len=64) as llm:
        assert {name for table in rows for name, _ in table} == llm.get_metrics().keys()
