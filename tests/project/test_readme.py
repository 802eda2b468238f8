"""The README's Python runs, in order, in one namespace; each notebook runs too."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import llmi

ROOT = Path(__file__).parents[2]


def test_python_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], smollm_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
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


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks(path: Path, tmp_path: Path, smollm_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the extra `notebook` brings nbformat")
    from nbclient import NotebookClient

    monkeypatch.setenv("LLMI_TRAIN_STEPS", "12")  # a training of ten minutes is one of seconds
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "notebooks are committed without outputs"
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_python_blocks_of_docs_parallel() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/parallel.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "docs/parallel.md", "exec"), {})
