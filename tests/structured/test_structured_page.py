"""The page on structured output runs as it stands: its command, its schema, and its program."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest

from llmi.cli.commands import main

PAGE = (Path(__file__).parents[2] / "docs" / "structured-output.md").read_text()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (schema,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (command,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "person.json").write_text(schema)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    assert words[0] == "llmi" and main(words[1:]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out.removeprefix("A person:")), json.loads(schema))


def test_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    world: dict[str, object] = {}
    for block in re.findall(r"<!-- run -->\n```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "structured-output.md", "exec"), world)
    text, drafted, replayed, page = capsys.readouterr().out.split("\n", 3)
    assert text.startswith('{"name":"') and text.endswith("} True") and (drafted, replayed) == ("True", "True")
    assert re.match(r"position 7: the mask allowed [\d,]+ tokens?, the token is one of them\n", page)
    world["llm"].close()  # type: ignore[attr-defined]
