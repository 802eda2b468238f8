"""The commands of docs/compression.md that are marked to run, on SmolLM2."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from llmi.cli.commands import main

PAGE = Path(__file__).parents[2] / "docs/compression.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="the documents are not next to the tests")
def test_commands(smollm_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMI_CACHE", str(tmp_path / "cache"))  # where eval keeps its base
    monkeypatch.setenv("LLMI_AUDIT", "0")  # caches of half the memory are long to audit
    [block] = re.findall(r"<!-- run -->\n```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    commands = [shlex.split(line.replace(smollm_path.name.partition(".")[0], str(smollm_path)))[1:] for line in block.splitlines()]
    assert [command[0] for command in commands] == ["quantize", "eval", "replay"]
    for command in commands:
        assert main(command) == 0, command
    shown = capsys.readouterr().out
    assert "180 as Q4_0, 30 as Q5_0" in shown or "30 as Q5_0, 180 as Q4_0" in shown
    assert "the base is quantised itself" in shown
    assert "made again from" in shown and "with the same bytes" in shown
