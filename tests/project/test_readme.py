"""The README is one screen, its Python runs and its numbers stand in docs; docs/tour.md and each notebook run too."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

import llmi

ROOT = Path(__file__).parents[2]


README = (ROOT / "README.md").read_text()


def test_readme_is_one_screen() -> None:
    assert len(README.splitlines()) <= 60 and len(README.split()) <= 700


def test_python_of_the_readme(capsys: pytest.CaptureFixture[str], smollm_path: Path) -> None:
    [block] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    namespace: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), namespace)
    assert capsys.readouterr().out.splitlines() == ["The capital of France is Paris.", "True"]
    namespace["llm"].close()  # type: ignore[attr-defined]


#: The tables that the README had, by the beginning of their first row, and the pages that have them.
TABLES = {
    "| area | supported |": "features",
    "| | llmi | llmi, bf16 attention |": "speed",
    "| | llmi | llama.cpp, same file |": "speed",
    "| prompts | copied |": "speed",
    "| speed-up (95 %) | auto, 1 at once": "speed",
    "| measured | result |": "speed",
    "| model | mode | KL: chat |": "precision",
    "| setting | cost in precision |": "precision",
}


@pytest.mark.parametrize("begin", TABLES)
def test_tables_have_their_place(begin: str) -> None:
    pages = [path.stem for path in (ROOT / "docs").glob("*.md") if f"\n{begin}" in path.read_text(encoding="utf-8")]
    assert TABLES[begin] in pages


def rows_of(text: str) -> dict[str, dict[str, str]]:
    """A table's cells by row and column."""
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def test_numbers_of_the_readme_stand_in_docs() -> None:
    page = (ROOT / "docs/speed.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- compare: begin -->\n(.*?)<!-- compare: end -->", page, re.DOTALL)
    assert table
    measured, shown = rows_of(table[1]), rows_of(README)
    assert sum(len(cells) for cells in shown.values()) == 6
    for row, cells in shown.items():
        for column, number in cells.items():
            assert measured[row][column] == number, (row, column)


def test_python_blocks_of_the_tour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], smollm_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/tour.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/tour.md", "exec"), namespace)
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "The capital of France is Paris."
    assert "\nTrue\n" in out and out.splitlines()[-2:] == ["True", "True"]
    assert (tmp_path / "fig3.json").is_file()
    namespace["llm"].close()  # type: ignore[attr-defined]
    namespace["small"].close()  # type: ignore[attr-defined]


def test_the_question_online(smollm_path: Path) -> None:
    """AsyncLLM with default settings gives the README's answer; tests/cli/test_cli.py and test_server_clients.py ask `llmi chat` and `llmi
    serve`."""

    async def ask() -> str:
        async with llmi.AsyncLLM(kv_cache_memory_bytes=1 << 27) as engine:
            async for output in engine.chat("What is the capital of France?", temperature=0):
                last = output
        return last.text

    assert asyncio.run(ask()) == "The capital of France is Paris."


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
assert NOTEBOOKS


def test_the_course_names_every_notebook() -> None:
    named = re.findall(r"\(\.\./notebooks/(\w+)\.ipynb\)", (ROOT / "docs/course.md").read_text())
    assert sorted(named) == [path.stem for path in NOTEBOOKS]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks(path: Path, tmp_path: Path, smollm_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the extra `notebook` brings nbformat")
    from nbclient import NotebookClient

    monkeypatch.setenv("LLMI_TRAIN_STEPS", "12")  # a training of ten minutes is one of seconds
    monkeypatch.setenv("LLMI_TRACES", str(ROOT / "benchmarks/traces"))
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "notebooks are committed without outputs"
    NotebookClient(notebook, timeout=550, coalesce_streams=True, resources={"metadata": {"path": str(tmp_path)}}).execute()
    if folder := os.environ.get("LLMI_NOTEBOOKS"):  # tools/site.py shows them
        Path(folder).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, Path(folder) / path.name)


@pytest.mark.parametrize("page, count", [("docs/parallel.md", 2), ("docs/tiers.md", 2), ("docs/simulator.md", 3)])
def test_python_blocks_of_docs(page: str, count: int) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert len(blocks) == count
    for block in blocks:
        exec(compile(block, page, "exec"), {})
