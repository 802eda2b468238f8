"""The target as training reads it: its head on a shortlist, embeddings of the text's tokens, and a layer to start from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmi.session import Session
from llmi.training.layer import Shape
from llmi.training.losses import Head

F32 = NDArray[np.float32]
#: Tokens that the draft's head scores: the text's most frequent ones.
SHORTLIST = 4096


def shortlist_of(token_ids: NDArray[np.int32], vocab_size: int) -> NDArray[np.int32]:
    """The most frequent tokens of a text, ascending; of equally frequent ones the first. Tokens that the text lacks are not among them."""
    counts = np.bincount(token_ids, minlength=vocab_size)
    order = np.argsort(-counts, kind="stable")[: min(SHORTLIST, int(np.count_nonzero(counts)))]
    return np.sort(order).astype(np.int32)


class Target:
    """Weights of a model as float32, each read when it is needed."""

    def __init__(self, llm: Session) -> None:
        self.spec: dict[str, Any] = json.loads(llm._spec.to_json())
        self._weights = llm.weights
        layers = self.spec["layers"]
        self._layer: dict[str, Any] = layers[-1]

    def _tensor(self, binding: dict[str, Any]) -> F32:
        """A tensor with rows in the order of checkpoints: pairs of a rotation half a head apart."""
        weight: F32 = self._weights[binding["name"]]
        if binding.get("transposed"):
            weight = np.ascontiguousarray(weight.T)
        size = binding.get("order", {}).get("adjacent_pairs")
        if size:
            rows, columns = weight.shape
            weight = weight.reshape(rows // size, size // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        return weight

    def head(self, shortlist: NDArray[np.int32]) -> Head:
        """The head's rows of these tokens."""
        head = self.spec.get("head", {})
        binding = head.get("weight") or self.spec["embedding"]["weight"]
        return Head(np.ascontiguousarray(self._tensor(binding)[shortlist]), float(head.get("scale", 1.0)), float(head.get("soft_cap", 0.0)))

    def embeddings(self, tokens: NDArray[np.int64]) -> F32:
        """[len(tokens), hidden], unscaled, as the file has them."""
        return np.ascontiguousarray(self._tensor(self.spec["embedding"]["weight"])[tokens])

    def shape(self) -> Shape:
        """Sizes of the drafter's layer: those of the target's last layer, or, where this is no plain one, the same sizes."""
        hidden, eps = self.spec["hidden_size"], self.spec.get("final_norm", {}).get("eps", 1e-5)
        head_dim, heads, kv_heads = (self.spec[name] for name in ("head_dim", "num_heads", "num_kv_heads"))
        size = self._layer.get("mlp", {}).get("size") or 4 * hidden
        ropes = self.spec.get("ropes") or [{}]
        return Shape(hidden, size, heads, kv_heads, head_dim, float(ropes[0].get("theta", 10000.0)), float(eps))

    def start(self, normed: F32, row_size: float, seed: int) -> dict[str, F32]:
        """First weights: the target's last layer, taken to normed rows, where it is a plain Llama layer; else drawn.

        With u = gain h / rms(h), the layer h + f(h / rms(h)) becomes u + gain / rms(h) f(u / gain): queries, keys and values read columns
        times their norm over the gain, o and down get rows times gain / rms(h).

        Parameters
        ----------
        normed : [n, hidden]
            Rows of u.
        row_size : float
            The mean of rms(h), which stands for it in all rows.
        """
        shape = self.shape()
        rng = np.random.default_rng([seed, 2])
        weights = {
            name: (
                rng.standard_normal(size, np.float32) * np.float32(0.5 / np.sqrt(size[-1])) if len(size) > 1 else np.ones(size, np.float32)
            )
            for name, size in shape.parameters().items()
        }
        weights["fc"][:] = 0
        weights["fc"][:, shape.hidden_size :] = np.eye(shape.hidden_size, dtype=np.float32)
        for name in ("o", "down"):
            weights[name] *= np.float32(0.1)
        if self._is_plain():
            self._copy_last_layer(weights, normed, row_size)
        return weights

    def _is_plain(self) -> bool:
        """A Llama layer without biases, norms of heads, windows or factors."""
        layer, rope = self._layer, self.spec.get("ropes") or []
        if set(layer) != {"attention", "attention_norm", "mlp", "mlp_norm"} or len(rope) != 1 or set(rope[0]) - {"rotary_dim", "theta"}:
            return False
        if set(layer["attention"]) - {"query", "key", "value", "output", "rope", "scale"} or set(layer["mlp"]) - {
            "gate",
            "up",
            "down",
            "size",
        }:
            return False
        linear = [layer["attention"][name] for name in ("query", "key", "value", "output")] + [
            layer["mlp"][name] for name in ("gate", "up", "down")
        ]
        norms = [layer["attention_norm"], layer["mlp_norm"], self.spec["final_norm"]]
        known = {"adjacent_pairs", "head_rows", "head_stride"}
        return (
            all(set(one) == {"weight"} and not set(one["weight"].get("order", {})) - known for one in linear)
            and all(not set(norm) - {"eps", "present", "weight"} for norm in norms)
            and rope[0].get("rotary_dim") == self.spec["head_dim"]
        )

    def _copy_last_layer(self, weights: dict[str, F32], normed: F32, row_size: float) -> None:
        attention, mlp = self._layer["attention"], self._layer["mlp"]
        gain = self._tensor(self.spec["final_norm"]["weight"])
        safe = np.where(np.abs(gain) < 0.05 * np.abs(gain).mean(), np.float32(np.abs(gain).mean()), gain)
        size = np.float32(np.sqrt(np.mean(normed * normed)))
        before = self._tensor(self._layer["attention_norm"]["weight"]) / safe
        weights["q"][:] = self._tensor(attention["query"]["weight"]) * before
        weights["kv"][:] = np.concatenate([self._tensor(attention[name]["weight"]) for name in ("key", "value")]) * before
        after = (gain / np.float32(row_size))[:, None]
        weights["o"][:] = self._tensor(attention["output"]["weight"]) * after
        weights["norm"][:] = self._tensor(self._layer["mlp_norm"]["weight"]) / safe * size
        weights["gate_up"][:] = np.concatenate([self._tensor(mlp[name]["weight"]) for name in ("gate", "up")])
        weights["down"][:] = self._tensor(mlp["down"]["weight"]) * after
