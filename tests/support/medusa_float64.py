"""The definition of drafts by Medusa heads, in float64 and from the whole text each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from llmi import LLM
from tiny_eagle import normed_rows, stored

F64 = Any


class MedusaDefinition:
    """Greedy drafts of one file for one tiny model."""

    def __init__(self, llm: LLM, path: Path) -> None:
        self.llm = llm
        config = json.loads((path / "config.json").read_text())
        self.num_heads, self.num_blocks = config["medusa_num_heads"], config.get("medusa_num_layers", 1)
        data = (path / "model.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        self.weights: dict[str, F64] = {}
        for name, entry in json.loads(data[8 : 8 + size]).items():
            begin, end = entry["data_offsets"]
            dtype = {"I32": np.int32, "F16": np.float16}.get(entry["dtype"], np.float32)
            self.weights[name] = np.frombuffer(data[8 + size + begin : 8 + size + end], dtype).reshape(entry["shape"]).astype(np.float64)
        self.head = stored(llm, "model.embed_tokens.weight").astype(np.float64)
        listed = self.weights.get("shortlist")
        self.choices = np.arange(len(self.head)) if listed is None else np.sort(listed).astype(int)
        self._rows: dict[tuple[int, ...], F64] = {}

    def logits(self, whole: list[int], length: int, depth: int) -> F64:
        """Of the tokens to choose from, for the draft's token at `depth` (from 1) behind the first `length` tokens of a text."""
        key = tuple(whole)
        if key not in self._rows:
            self._rows[key] = normed_rows(self.llm, whole).astype(np.float64)
        x = self._rows[key][length - 2]  # the last token was drawn from the row of the one before
        for block in range(self.num_blocks):
            stored_block = block if f"{depth - 1}.{block}.linear.weight" in self.weights else 0
            name = f"{depth - 1}.{stored_block}.linear."
            inner = self.weights[name + "weight"] @ x + self.weights[name + "bias"]
            x = x + inner / (1 + np.exp(-inner))
        return self.weights.get(f"{depth - 1}.{self.num_blocks}.weight", self.head)[self.choices] @ x

    def ranked(self, whole: list[int], length: int, depth: int, count: int) -> tuple[list[int], float]:
        """The likeliest tokens at this depth, and the least distance of their logits."""
        logits = self.logits(whole, length, depth)
        order = np.argsort(-logits)
        best = logits[order[: count + 1]]
        return [int(self.choices[i]) for i in order[:count]], float(np.min(best[:-1] - best[1:]))
