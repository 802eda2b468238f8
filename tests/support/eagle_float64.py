"""The definition of drafts by an EAGLE-1 layer, in float64 and from the start each time: no cache, no batch, no held rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from llmi import LLM
from tiny_eagle import embedded, normed_rows, stored

F64 = Any


class EagleDefinition:
    """Greedy drafts of one file for one tiny model."""

    prefix = "layers.0."

    def __init__(self, llm: LLM, path: Path) -> None:
        self.llm = llm
        self.config = json.loads((path / "config.json").read_text())
        data = (path / "model.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        self.weights: dict[str, F64] = {}
        for name, entry in json.loads(data[8 : 8 + size]).items():
            begin, end = entry["data_offsets"]
            dtype = {"I32": np.int32, "BOOL": np.bool_}.get(entry["dtype"], np.float32)
            self.weights[name] = np.frombuffer(data[8 + size + begin : 8 + size + end], dtype).reshape(entry["shape"]).astype(np.float64)
        self.head = stored(llm, "model.embed_tokens.weight").astype(np.float64)
        listed = self.weights.get("shortlist")
        self.choices = np.arange(len(self.head)) if listed is None else np.sort(listed).astype(int)
        self._rows: dict[tuple[int, ...], F64] = {}

    def _matrix(self, name: str) -> F64:
        return self.weights[f"{self.prefix}{name}.weight"]

    def _rotated(self, x: F64, positions: F64) -> F64:
        """x [rows, heads, head_dim]."""
        half = x.shape[-1] // 2
        angles = positions[:, None, None] / self.config["rope_theta"] ** (np.arange(half) / half)
        cos, sin, a, b = np.cos(angles), np.sin(angles), x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def _last(self, x: F64, positions: F64, begun: F64) -> F64:
        """The layer's output for the last row, which sees all rows. begun: what the layer adds to."""
        heads, kv_heads, dim = (self.config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        query = self._rotated((x[-1:] @ self._matrix("self_attn.q_proj").T).reshape(1, heads, dim), positions[-1:])[0]
        keys = self._rotated((x @ self._matrix("self_attn.k_proj").T).reshape(-1, kv_heads, dim), positions)
        values = (x @ self._matrix("self_attn.v_proj").T).reshape(-1, kv_heads, dim)
        attended = []
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = keys[:, kv] @ query[head] / np.sqrt(dim)
            p = np.exp(scores - scores.max())
            attended.append(p / p.sum() @ values[:, kv])
        out = begun + self._matrix("self_attn.o_proj") @ np.concatenate(attended)
        normed = (
            out / np.sqrt(np.mean(out * out) + self.config["rms_norm_eps"]) * self.weights[f"{self.prefix}post_attention_layernorm.weight"]
        )
        gate = self._matrix("mlp.gate_proj") @ normed
        inner = gate / (1 + np.exp(-gate)) * (self._matrix("mlp.up_proj") @ normed)
        return out + self._matrix("mlp.down_proj") @ inner

    def rows_of(self, tokens: list[int]) -> F64:
        key = tuple(tokens)
        if key not in self._rows:
            self._rows[key] = normed_rows(self.llm, tokens).astype(np.float64)
        return self._rows[key]

    def run(self, tokens: list[int], hidden: list[F64], first: int) -> tuple[F64, F64]:
        """The output of the last row, and the logits of the tokens to choose from."""
        embeddings = embedded(self.llm, tokens[first:]).astype(np.float64)
        x = np.concatenate([embeddings, np.asarray(hidden[first - 1 :])], axis=1) @ self.weights["fc.weight"].T
        out = self._last(x, np.arange(first - 1, len(tokens) - 1, dtype=np.float64), x[-1])
        return out, self.head[self.choices] @ out

    def ranked(self, whole: list[int], length: int, accepted: list[int], count: int) -> tuple[list[int], float]:
        """The likeliest tokens behind the first `length` tokens and accepted ones of a draft, and the least distance of their logits."""
        hidden = list(self.rows_of(whole)[: length - 1])
        tokens = list(whole[:length])
        for token in accepted:
            hidden.append(self.run(tokens, hidden, 1)[0])
            tokens.append(token)
        logits = self.run(tokens, hidden, 1)[1]
        order = np.argsort(-logits)
        best = logits[order[: count + 1]]
        return [int(self.choices[i]) for i in order[:count]], float(np.min(best[:-1] - best[1:]))

    def draft(self, whole: list[int], length: int, count: int, first: int = 1) -> list[tuple[int, float]]:
        """The drafted tokens behind the first `length` tokens of a text, and by how much each is ahead of the second best logit.

        first: the first row that the drafter sees.
        """
        hidden = list(self.rows_of(whole)[: length - 1])  # of the tokens before the last one
        tokens = list(whole[:length])
        result: list[tuple[int, float]] = []
        for _ in range(count):
            out, logits = self.run(tokens, hidden, first)
            best = np.argsort(logits)
            result.append((int(self.choices[best[-1]]), float(logits[best[-1]] - logits[best[-2]])))
            hidden.append(out)
            tokens.append(result[-1][0])
        return result
