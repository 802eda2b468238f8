"""The definition of drafts by an EAGLE-3 layer in SpecForge's layout, in float64 and from the start each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eagle_float64 import EagleDefinition
from llmi import LLM
from tiny_eagle import embedded
from tiny_eagle3 import tapped_rows

F64 = Any


class Eagle3Definition(EagleDefinition):
    """Greedy drafts of one file for one tiny model."""

    prefix = "midlayer."

    def __init__(self, llm: LLM, path: Path) -> None:
        super().__init__(llm, path)
        self.taps = [layer + 1 for layer in self.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]  # SpecForge counts from 0
        self.choices = np.arange(len(self.weights["d2t"])) + self.weights["d2t"].astype(int)

    def _norm(self, x: F64, name: str) -> F64:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.config["rms_norm_eps"]) * self.weights[name]

    def rows_of(self, tokens: list[int]) -> F64:
        key = tuple(tokens)
        if key not in self._rows:
            self._rows[key] = tapped_rows(self.llm, tokens, self.taps).astype(np.float64) @ self.weights["fc.weight"].T
        return self._rows[key]

    def run(self, tokens: list[int], hidden: list[F64], first: int) -> tuple[F64, F64]:
        rows = np.asarray(hidden[first - 1 :])
        embeddings = self._norm(embedded(self.llm, tokens[first:]).astype(np.float64), "midlayer.input_layernorm.weight")
        x = np.concatenate([embeddings, self._norm(rows, "midlayer.hidden_norm.weight")], axis=1)
        out = self._last(x, np.arange(first - 1, len(tokens) - 1, dtype=np.float64), rows[-1])
        return out, self.weights["lm_head.weight"] @ self._norm(out, "norm.weight")
