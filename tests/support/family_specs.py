"""What a family's card says, by the float64 interpreter, beside what transformers computes in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from llmi.families.reader import Reading
from spec_float64 import Interpreter
from tiny_families import NEAREST, NUM_TOKENS, TOKENS, Family

SEEN = 1e-3  # a planted error moves logits by so much at least: ten times what the comparison of the engine allows


def interpreter(path: Path) -> Interpreter:
    """Of the spec that the card makes of a folder, whose tensors are all there."""
    from safetensors.numpy import load_file

    tensors = load_file(path / "model.safetensors")
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    config: dict[str, Any] = json.loads((path / "config.json").read_text())
    spec = Reading(config, "config.json", shapes, {}, NUM_TOKENS + 1).of_config_json()
    used = {name.replace("{expert}", "0") for name in spec.tensor_names()}
    assert used <= set(tensors)
    return Interpreter(json.loads(spec.to_json()), tensors)


def check_meaning(family: Family, most: float = 1e-5) -> None:
    """The spec means what transformers computes, to within `most`; and no router is near another choice."""
    model = interpreter(family.path)
    difference = float(np.abs(model.logits(TOKENS) - family.float64).max())
    print(f"{family.path.name}: {difference:.1e}, nearest to another choice {model.margin:.1e}")
    assert difference < most and model.margin >= NEAREST
