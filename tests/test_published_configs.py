"""config.json with the keys that published models have: those of older versions of transformers, of training, of dropped code. All must load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmi.models.inspection import inspect_model

CONFIGS = json.loads((Path(__file__).parent / "data" / "published_configs.json").read_text())
#: Of some, the parameters that their cards name, in millions.
MILLIONS = {
    "gpt2": 124,
    "qwen25": 494,
    "qwen3": 596,
    "llama32": 1236,
    "mistral": 7242,
    "phi2": 2780,
    "pythia": 70,
    "opt": 125,
    "gemma2": 2614,
    "phi35": 3821,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_published_config(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    report = inspect_model(tmp_path)
    if name in MILLIONS:
        assert round(report.num_params / 1e6) == MILLIONS[name]
