"""The documents: tables that are made from the code agree with it."""

from __future__ import annotations

import pytest

import parameters_page

pytestmark = pytest.mark.skipif(not parameters_page.PAGE.is_file(), reason="the documents are not next to the tests")


def test_parameters_page_is_up_to_date() -> None:
    text = parameters_page.PAGE.read_text(encoding="utf-8")
    assert parameters_page.page(text) == text, "run `python tests/parameters_page.py`"


@pytest.mark.parametrize("name", parameters_page.TABLES)
def test_every_table_has_rows_and_whole_cells(name: str) -> None:
    lines = parameters_page.TABLES[name]().splitlines()
    assert len(lines) > 3
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
