"""An EAGLE layer under training: the loss of one batch and its gradient."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmi.training.data import Data
from llmi.training.layer import Roll, Shape, grid_of
from llmi.training.losses import divergence

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
HIGHEST_RATE = 6e-4
#: Each depth's weight in the loss over that of the one before.
DISCOUNT = 0.8
#: Share of the updates from which on the layer is unrolled to two tokens, and to three.
UNROLL = (0.45, 0.85)


def depths_at(step: int, steps: int) -> int:
    """How many tokens are drafted in a row in update `step`: a layer that knows nothing learns nothing from its own output."""
    return 1 + sum(step >= share * steps for share in UNROLL)


@dataclasses.dataclass
class Places:
    """One batch of one depth: places with a loss, and what stands there."""

    places: I64
    tokens: I64  # of the text, whose position each place is


def places_of(tokens: I64, data: Data, depths: int) -> list[Places]:
    """Depth k guesses the distribution after token t + 1 + k; it teaches where that after t + 1 belongs to an answer already."""
    flat = np.flatnonzero(tokens.reshape(-1) >= 0)
    at = tokens.reshape(-1)[flat]
    result = []
    for depth in range(depths):
        inside = at + 1 + depth < data.ends[at]
        flat, at = flat[inside], at[inside]
        if depth == 0:
            teaches = data.law_of[at + 1] >= 0
            flat, at = flat[teaches], at[teaches]
        result.append(Places(flat, at))
    return result


class EagleChain:
    """Outputs of the layer at places of a batch, each depth from the one before and what was drafted there."""

    def __init__(self, roll: Roll, at: Places, hidden: F32, embeddings: F32) -> None:
        self.at = at
        self._roll, self._given = roll, (hidden, embeddings)

    def next(self, embeddings: F32 | None) -> F32:
        """Outputs of the next depth; embeddings of the tokens drafted before, None at first."""
        places = self.at.places
        if embeddings is None:
            self._out = self._roll.forward(*self._given, places, places)
        else:
            self._out = self._roll.forward(self._out, embeddings, places, np.arange(len(places)))
        return self._out


class EagleModel:
    """Parameters of the layer, one after the other in one vector.

    Parameters
    ----------
    weights : dict
        First values, by the names of Shape.parameters.
    """

    highest_rate = HIGHEST_RATE

    def __init__(self, shape: Shape, weights: dict[str, F32], gain: float) -> None:
        self.shape, self.gain = shape, gain
        self.vector = np.concatenate([weights[name].reshape(-1) for name in shape.parameters()])
        self.weights = self._views(self.vector)

    def _views(self, vector: F32) -> dict[str, F32]:
        views, start = {}, 0
        for name, size in self.shape.parameters().items():
            end = start + int(np.prod(size))
            views[name] = vector[start:end].reshape(size)
            start = end
        return views

    def begin(self, tokens: I64, parts: I64, data: Data) -> tuple[Roll, F32, F32]:
        """(a roll of a batch, hidden rows and embeddings of depth 0)."""
        flat = np.maximum(tokens.reshape(-1), 0)
        grid = grid_of(parts, data.positions[flat].reshape(tokens.shape), np.float32)
        following = np.minimum(flat + 1, data.ends[flat] - 1)
        roll = Roll(self.shape, self.weights, grid, self.gain)
        return roll, data.rows[flat].astype(np.float32), data.embeddings[data.embedding_of[following]]

    def chain(self, tokens: I64, parts: I64, data: Data) -> EagleChain:
        """Outputs at every place of a batch that guesses a token of its sequence."""
        roll, hidden, embeddings = self.begin(tokens, parts, data)
        at = places_of(tokens, data, 1)[0]
        room = at.tokens + 2 < data.ends[at.tokens]
        return EagleChain(roll, Places(at.places[room], at.tokens[room]), hidden, embeddings)

    def loss(self, tokens: I64, parts: I64, data: Data, depths: int, gradient: F32 | None) -> list[float]:
        """Mean divergence of each depth over a batch; `gradient` is overwritten with that of their discounted sum.

        Parameters
        ----------
        tokens, parts : int64 [num_rows, row_len]
            As packing.batches gives them.
        """
        roll, hidden, embeddings = self.begin(tokens, parts, data)
        losses, d_outs = [], []
        out = hidden
        for depth, at in enumerate(places_of(tokens, data, depths)):
            if depth == 0:
                out = roll.forward(hidden, embeddings, at.places, at.places)
            else:
                before = np.searchsorted(roll.depths[-1].places, at.places)
                embeddings = data.embeddings[data.embedding_of[at.tokens + 1 + depth]]
                out = roll.forward(out[before], embeddings, at.places, np.arange(len(at.places)))
            laws = data.law_of[at.tokens + 1 + depth]
            count = max(1, len(laws))
            total, d_out = divergence(data.head, out, data.laws.tokens[laws], data.laws.probs[laws], DISCOUNT**depth / count)
            losses.append(total / count)
            d_outs.append(d_out)
        if gradient is not None:
            gradient[:] = 0
            roll.backward(d_outs, self._views(gradient))
        return losses

    def tensors(self, dtype: type) -> dict[str, NDArray[Any]]:
        """By EAGLE-1's names; the gain goes into the columns of fc that read embeddings."""
        shape, weights = self.shape, self.weights
        fc = weights["fc"].copy()
        fc[:, : shape.hidden_size] *= np.float32(self.gain)
        key, value = np.split(weights["kv"], 2)
        gate, up = np.split(weights["gate_up"], 2)
        layer = {
            "self_attn.q_proj": weights["q"], "self_attn.k_proj": key, "self_attn.v_proj": value, "self_attn.o_proj": weights["o"],
            "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": weights["down"], "post_attention_layernorm": weights["norm"],
        }  # fmt: skip
        named = {"fc.weight": fc, **{f"layers.0.{name}.weight": value for name, value in layer.items()}}
        return {name: np.ascontiguousarray(value, dtype) for name, value in named.items()}

    def config(self, vocab_size: int) -> dict[str, Any]:
        """config.json without llmi's own part."""
        return {
            "architectures": ["LlamaForCausalLMEagle"],
            "model_type": "llama",
            "hidden_act": "silu",
            "num_hidden_layers": 1,
            "vocab_size": vocab_size,
            "bias": False,
            "tie_word_embeddings": True,
            **dataclasses.asdict(self.shape),
        }
