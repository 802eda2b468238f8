"""Medusa heads under training (Cai et al., 2024): head k guesses token t + 2 + k from the hidden row of position t alone.

out_k = h + silu(h W_k^T + b_k), which the target's own head reads; W_k and b_k begin as zeros, so a head begins as the target itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmi.training.data import Data
from llmi.training.eagle import DISCOUNT, Places, places_of
from llmi.training.losses import divergence

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
NUM_HEADS = 4


class MedusaChain:
    """The heads' outputs at places of a batch, one after the other."""

    def __init__(self, model: MedusaModel, at: Places, hidden: F32) -> None:
        self.at, self._model, self._hidden, self._depth = at, model, hidden, 0

    def next(self, embeddings: F32 | None) -> F32:
        """Outputs of the next head; the heads do not see what was drafted."""
        out, _, _ = self._model.head(self._hidden, self._depth)
        self._depth += 1
        return out


class MedusaModel:
    """Parameters of all heads, one after the other in one vector: W_0, b_0, W_1, .."""

    highest_rate = 2e-3

    def __init__(self, hidden_size: int) -> None:
        self.hidden_size = hidden_size
        self.vector = np.zeros(NUM_HEADS * hidden_size * (hidden_size + 1), np.float32)

    def _views(self, vector: F32, head: int) -> tuple[F32, F32]:
        size = self.hidden_size
        start = head * size * (size + 1)
        return vector[start : start + size * size].reshape(size, size), vector[start + size * size : start + size * (size + 1)]

    def head(self, hidden: F32, head: int) -> tuple[F32, F32, F32]:
        """(outputs, values before the activation, its sigmoid)."""
        weight, bias = self._views(self.vector, head)
        inner = hidden @ weight.T + bias
        sigmoid = 1.0 / (1.0 + np.exp(-inner))
        return hidden + inner * sigmoid, inner, sigmoid

    def chain(self, tokens: I64, parts: I64, data: Data) -> MedusaChain:
        """Outputs at every place of a batch that guesses a token of its sequence."""
        at = places_of(tokens, data, 1)[0]
        room = at.tokens + 2 < data.ends[at.tokens]
        at = Places(at.places[room], at.tokens[room])
        return MedusaChain(self, at, data.rows[at.tokens].astype(np.float32))

    def loss(self, tokens: I64, parts: I64, data: Data, depths: int, gradient: F32 | None) -> list[float]:
        """Mean divergence of each head over a batch, all of them whatever `depths`; see EagleModel.loss."""
        losses = []
        for depth, at in enumerate(places_of(tokens, data, NUM_HEADS)):
            hidden = data.rows[at.tokens].astype(np.float32)
            out, inner, sigmoid = self.head(hidden, depth)
            laws = data.law_of[at.tokens + 1 + depth]
            count = max(1, len(laws))
            total, d_out = divergence(data.head, out, data.laws.tokens[laws], data.laws.probs[laws], DISCOUNT**depth / count)
            losses.append(total / count)
            if gradient is not None:
                d_weight, d_bias = self._views(gradient, depth)
                d_inner = d_out * (sigmoid + inner * sigmoid * (1.0 - sigmoid))
                np.matmul(d_inner.T, hidden, out=d_weight)
                np.sum(d_inner, axis=0, out=d_bias)
        return losses

    def tensors(self, dtype: type) -> dict[str, NDArray[Any]]:
        """By Medusa's names, without heads over the vocabulary: the target's own stands for them."""
        named: dict[str, NDArray[Any]] = {}
        for head in range(NUM_HEADS):
            weight, bias = self._views(self.vector, head)
            named |= {f"{head}.0.linear.weight": weight.astype(dtype), f"{head}.0.linear.bias": bias.astype(dtype)}
        return named

    def config(self, vocab_size: int) -> dict[str, Any]:
        """config.json without llmi's own part."""
        sizes = {"hidden_size": self.hidden_size, "vocab_size": vocab_size}
        return {"architectures": ["MedusaModel"], "medusa_num_heads": NUM_HEADS, "medusa_num_layers": 1, **sizes}
