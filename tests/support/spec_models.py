"""Tiny random models for specs that no family has: each part of a ModelSpec by itself, and mixtures of parts."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from spec_float64 import Array, Spec

HIDDEN, HEADS, KV_HEADS, MLP, VOCAB, LAYERS, LONGEST = 64, 4, 2, 96, 101, 2, 64

#: The choices that make a model, with those of the plainest one. NORMS: name of a norm -> what it has.
PLAIN: Spec = {
    "head_dim": 16,
    "places": "before",  # norms of a layer: before, after, both, none
    "norm": {"kind": "rms"},
    "order": "sequential",  # or parallel, parallel one norm
    "residual_scale": 1.0,
    "biases": (),  # of query, key, value, output, attention_gate, gate, up, down, head
    "rows": "plain",  # of query, key and value: plain, fused, by head, interleaved
    "transposed": False,
    "head_norm": None,  # of query and key: what norms it has
    "span": "head",
    "own_weights": False,
    "after_rope": False,
    "ropes": [{"rotary_dim": 16}],
    "rope_of_layers": [0, 0],
    "temperature": None,
    "sinks": False,
    "linear_biases": False,
    "windows": [0, 0],
    "attention_scale": 0.25,
    "clip": 0.0,
    "attention_cap": 0.0,
    "attention_gate": "none",
    "output_norm": None,
    "gated": True,
    "activation": "silu",
    "inner_norm": None,
    "embedding_scale": 1.0,
    "embedding_norm": None,
    "positions": None,  # the offset of learned positions
    "final_norm": {"kind": "rms"},
    "tied": True,
    "logit_scale": 1.0,
    "logit_cap": 0.0,
    "heads_of_layers": [{}, {}],  # of each layer: num_heads, num_kv_heads and head_dim that differ
    "kv_donors": [-1, -1],
    "value_norm": None,
    "value_is_key": False,
    "output_scale": False,
    "layer_embedding": 0,  # values of each place
    "experts": None,  # of each layer: fields of the router, and what EXPERTS lists
    "latent": None,  # of each layer: what LATENT lists
}
#: Of layers with a latent. stored: keys and values of all heads in one tensor, or as two of three dimensions.
LATENT: Spec = {"rank": 32, "key_size": 32, "rotary_size": 16, "value_size": 16, "query_rank": 0, "stored": "whole", "pairs": True}
#: Models with a latent, as changes of the plain one.
LATENT_PARTS: dict[str, Spec] = {
    "latent": {"latent": {}},
    "latents of queries, keys apart": {"latent": {"query_rank": 32, "stored": "apart", "value_size": 48, "pairs": False}},
    "latent beside other parts": {
        "latent": {"query_rank": 32},
        "residual_scale": 0.4,
        "places": "both",
        "temperature": {"beta": 0.5, "original": 5},
        "sinks": True,
        "windows": [7, 0],
        "attention_cap": 0.8,
        "ropes": [{"rotary_dim": 8, "magnitude": 1.3}],
        "biases": ("query_down", "latent", "rotary", "output"),
        "experts": {"shared": 96, "size": 64},
    },
}
#: Of layers with experts, beside the router's fields.
EXPERTS: Spec = {
    "num_experts": 8,
    "num_used": 3,
    "size": 40,
    "stored": "apart",
    "biases": False,
    "shared": 0,
    "gate": False,
    "layers": [0, 1],
    "beside": False,  # experts with norms and scales of their own beside the MLP
}
RMS, LAYER, BARE = {"kind": "rms"}, {"kind": "layer", "bias": True}, {"kind": "rms", "weight": False}
LAYER_NORMS: Spec = {"norm": LAYER, "final_norm": LAYER}

#: Each part of a spec, as changes of the plain model.
PARTS: dict[str, Spec] = {
    "layer norm": LAYER_NORMS,
    "layer norm without bias": {"norm": {"kind": "layer"}, "final_norm": {"kind": "layer"}},
    "layer norm without weight": {"norm": {"kind": "layer", "weight": False}, "final_norm": {"kind": "layer", "weight": False}},
    "norm without weight": {"norm": BARE, "final_norm": BARE},
    "norm plus one": {"norm": {"kind": "rms", "plus": 1.0}},
    "norm with bias and eps": {"norm": {"kind": "rms", "bias": True, "eps": 0.3}},
    "norms after": {"places": "after"},
    "norms before and after": {"places": "both"},
    "no norms": {"places": "none"},
    "no final norm": {"final_norm": None},
    "parallel": {"order": "parallel", **LAYER_NORMS},
    "parallel, one norm": {"order": "parallel one norm"},
    "parallel, norms after": {"order": "parallel", "places": "after"},
    "parallel, one norm and norms after": {"order": "parallel one norm", "places": "both"},
    "norms after the sums": {"places": "sum", "embedding_norm": LAYER_NORMS["norm"], **LAYER_NORMS},
    "residual scale": {"residual_scale": 0.4},
    "residual scale, norms after": {"residual_scale": 0.4, "places": "both"},
    "residual scale, parallel": {"residual_scale": 0.4, "order": "parallel"},
    "biases": {"biases": ("query", "key", "value", "output", "gate", "up", "down", "head"), "tied": False},
    "own head": {"tied": False},
    "fused rows": {"rows": "fused", "biases": ("query", "key", "value")},
    "rows by head": {"rows": "by head", "biases": ("query", "key", "value")},
    "interleaved": {"rows": "interleaved", "biases": ("query", "key")},
    "interleaved in part": {"rows": "interleaved", "ropes": [{"rotary_dim": 8}]},
    "transposed": {"transposed": True, "rows": "fused"},
    "head norm": {"head_norm": RMS},
    "head norm after the rotation": {"head_norm": {"kind": "rms", "weight": False}, "after_rope": True},
    "head norm with weight after the rotation": {"head_norm": RMS, "after_rope": True},
    "own layer norm for each head": {"head_norm": {"kind": "layer", "bias": True}, "own_weights": True},
    "norm of the projection": {"head_norm": RMS, "span": "projection"},
    "no rotation": {"rope_of_layers": [-1, -1]},
    "rotation in some layers": {"rope_of_layers": [0, -1]},
    "two rotations": {"ropes": [{"rotary_dim": 16}, {"rotary_dim": 16, "theta": 500.0, "linear_factor": 4.0}], "rope_of_layers": [0, 1]},
    "rotation of a part": {"ropes": [{"rotary_dim": 4}]},
    "rotation with magnitude": {"ropes": [{"rotary_dim": 16, "magnitude": 1.3}]},
    "rotation reversed": {"ropes": [{"rotary_dim": 16, "reversed": True}], "rope_of_layers": [0, 0]},
    "query temperature": {"temperature": {"beta": 0.5, "original": 5}},
    "sinks": {"sinks": True},
    "linear biases": {"linear_biases": True, "rope_of_layers": [-1, -1]},
    "window": {"windows": [7, 0]},
    "attention scale": {"attention_scale": 0.7},
    "clip": {"clip": 0.5},
    "attention cap": {"attention_cap": 0.8},
    "gate of elements": {"attention_gate": "element"},
    "gate of heads": {"attention_gate": "head", "biases": ("attention_gate",)},
    "norm of the attention": {"output_norm": RMS},
    "plain MLP": {"gated": False},
    "inner norm": {"inner_norm": RMS},
    "inner norm of a plain MLP": {"gated": False, "inner_norm": LAYER},
    "embedding scale": {"embedding_scale": 3.0},
    "embedding norm": {"embedding_norm": LAYER},
    "learned positions": {"positions": 0, "rope_of_layers": [-1, -1]},
    "learned positions from row 2": {"positions": 2, "embedding_scale": 2.0, "embedding_norm": RMS},
    "logit scale": {"logit_scale": 0.3},
    "logit scale and cap": {"logit_scale": 0.5, "logit_cap": 2.0, "tied": False, "biases": ("head",)},
    "heads of 20": {"head_dim": 20, "ropes": [{"rotary_dim": 20}]},
    "heads of 20 with the rest": {
        "head_dim": 20,
        "ropes": [{"rotary_dim": 10}],
        "head_norm": LAYER,
        "own_weights": True,
        "attention_gate": "element",
        "output_norm": LAYER,
        "biases": ("query", "key", "value", "attention_gate"),
        "rows": "by head",
    },
    "heads of 20, gate of heads": {
        "head_dim": 20,
        "ropes": [{"rotary_dim": 20}],
        "attention_gate": "head",
        "head_norm": RMS,
        "sinks": True,
    },
    "heads of layers": {"heads_of_layers": [{}, {"num_heads": 2, "num_kv_heads": 1, "head_dim": 32}], "windows": [7, 0]},
    "heads of layers with the rest": {
        "heads_of_layers": [{"num_heads": 6, "num_kv_heads": 3, "head_dim": 20}, {"head_dim": 48}],
        "head_norm": LAYER,
        "own_weights": True,
        "attention_gate": "element",
        "output_norm": RMS,
        "sinks": True,
        "rows": "by head",
    },
    "keys of a donor": {"kv_donors": [-1, 0], "head_norm": RMS},
    "keys of a donor in a window": {"kv_donors": [-1, 0], "windows": [7, 7], "attention_gate": "head"},
    "keys of a donor with more queries": {
        "kv_donors": [-1, 0],
        "heads_of_layers": [{}, {"num_heads": 8}],
        "head_norm": BARE,
        "after_rope": True,
    },
    "norm of values": {"value_norm": BARE},
    "norm of values of 20": {"value_norm": RMS, "head_dim": 20, "ropes": [{"rotary_dim": 20}]},
    "value is key": {"value_is_key": True, "value_norm": BARE, "head_norm": RMS},
    "value is key in some layers": {"value_is_key": True, "value_norm": RMS, "kv_donors": [-1, 0], "clip": 0.5},
    "output scale": {"output_scale": True},
    "layer embedding": {"layer_embedding": 32, "places": "both"},
    "layer embedding and output scale": {"layer_embedding": 16, "output_scale": True, "embedding_scale": 3.0},
    "experts beside the MLP": {"experts": {"shared": 96, "beside": True, "renormalise": True}, "places": "both"},
    "experts": {"experts": {}},
    "experts of a part": {"experts": {"layers": [1], "renormalise": True, "factor": 1.5}},
    "experts in one tensor": {"experts": {"stored": "fused", "score": "sigmoid", "choice_bias": True, "renormalise": True}},
    "experts of rows in turn": {"experts": {"stored": "interleaved", "score": "softmax_chosen", "biases": True}},
    "experts transposed": {"experts": {"stored": "transposed", "num_used": 8, "num_experts": 8}},
    "experts in groups": {
        "experts": {"score": "sigmoid", "choice_bias": True, "num_groups": 4, "used_groups": 2, "group_score": "top2", "sum_epsilon": 1e-20}
    },
    "experts in the best group": {"experts": {"num_used": 2, "num_groups": 2, "used_groups": 1, "renormalise": True, "least_sum": 0.5}},
    "experts and a shared one": {"experts": {"shared": 48, "gate": True}, "residual_scale": 0.4},
    "experts and a shared one without a gate": {"experts": {"shared": 96}, "places": "both"},
    "a sparse mixer": {"experts": {"score": "sparse_mixer", "num_used": 2, "mixer_threshold": 0.6}},
    "clamped experts": {"experts": {"activation": "swiglu_clamped", "activation_values": [0.7, 1.702, 1.0], "biases": True}},
    "plain experts": {"experts": {"gated": False, "activation": "relu2"}},
    **{
        f"{kind} {name}": {"activation": name, "gated": kind == "gated"}
        for name in ("gelu_tanh", "gelu", "relu", "relu2", "xielu")
        for kind in ("gated", "plain")
    },
}


#: Mixers that are no attention.
MIXERS = ("short_conv", "gated_delta", "mamba2")


def mixture(seed: int) -> Spec:
    """Choices of several parts at once."""
    rng = random.Random(seed)
    choices: Spec = {}
    for name in rng.sample(sorted(PARTS), 14):
        choices |= PARTS[name]
    head_dim = choices.get("head_dim", 16)
    if choices.get("span") == "projection":
        head_dim = 16
        choices["own_weights"] = False
    choices["head_dim"] = head_dim
    if choices.get("span") == "projection" or choices.get("rows") in ("interleaved",):
        choices["heads_of_layers"] = PLAIN["heads_of_layers"]
    if choices.get("value_is_key"):
        choices |= {"attention_gate": "none", "rows": "plain", "head_dim": 16, "heads_of_layers": PLAIN["heads_of_layers"]}
    if choices.get("kv_donors", PLAIN["kv_donors"]) != PLAIN["kv_donors"]:
        choices["heads_of_layers"] = PLAIN["heads_of_layers"]
        choices["windows"] = [choices.get("windows", PLAIN["windows"])[0]] * 2
    choices["ropes"] = [
        rope | {"rotary_dim": min(rope["rotary_dim"], choices["head_dim"])} for rope in choices.get("ropes", PLAIN["ropes"])
    ]
    choices["rope_of_layers"] = [min(rope, len(choices["ropes"]) - 1) for rope in choices.get("rope_of_layers", [0, 0])]
    if choices.get("order", "sequential") != "sequential":
        choices["experts"] = None
        choices["places"] = choices.get("places", PLAIN["places"]).replace("sum", "before")
    return choices


DEFAULTS: Spec = {
    "eps": 1e-5,
    "residual_scale": 1.0,
    "soft_cap": 0.0,
    "clip": 0.0,
    "window": 0,
    "rope": -1,
    "gated": True,
    "activation": "silu",
    "kind": "rms",
    "span": "head",
    "own_weights": False,
    "after_rope": False,
    "first_row": 0,
    "position_offset": 0,
}


def without_defaults(spec: Any) -> Any:
    """The fields that are not at their defaults, as a card writes them; `scale` of an embedding or head is 1 by default, and stays."""
    if isinstance(spec, list):
        return [without_defaults(value) for value in spec]
    if not isinstance(spec, dict):
        return spec
    kept = {key: without_defaults(value) for key, value in spec.items() if DEFAULTS.get(key) != value}
    return {key: value for key, value in kept.items() if value != {}}


class TinyModel:
    """A spec with tensors. Biases, norms and sinks are far from 0 and 1, where they would test nothing."""

    def __init__(self, choices: Spec, seed: int = 0) -> None:
        self.choices = PLAIN | choices
        self.tensors: dict[str, Array] = {}
        self._seed = seed
        self.spec: Spec = without_defaults(self._model())

    def save(self, path: Path) -> Path:
        """A directory as the core reads it; the spec is passed next to it."""
        path.mkdir(parents=True, exist_ok=True)
        save_file(self.tensors, path / "model.safetensors")
        (path / "config.json").write_text("{}")
        return path

    def json(self) -> str:
        return json.dumps(self.spec)

    def _random(self, name: str, shape: tuple[int, ...], spread: float, mean: float = 0.0) -> Spec:
        """Values that depend on seed and name alone, so that two models differ in what their choices change."""
        rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        self.tensors[name] = (mean + spread * rng.standard_normal(shape)).astype(np.float32)
        return {"name": name}

    def _linear(self, name: str, rows: int, columns: int, transposed: bool = False) -> Spec:
        shape = (columns, rows) if transposed else (rows, columns)
        linear: Spec = {"weight": self._random(f"{name}.weight", shape, 1.3 / np.sqrt(columns))}
        if transposed:
            linear["weight"]["transposed"] = True
        if name.rsplit(".", 1)[-1] in self.choices["biases"]:
            linear["bias"] = self._random(f"{name}.bias", (rows,), 0.3)
        return linear

    def _norm(self, name: str, size: int, has: Spec | None) -> Spec:
        if has is None:
            return {}
        norm: Spec = {"present": True, "kind": has["kind"], "eps": has.get("eps", 1e-5)}
        if has.get("weight", True):
            plus = has.get("plus", 0.0)
            norm["weight"] = self._random(f"{name}.weight", (size,), 0.3, 1 - plus)
            if plus:
                norm["weight"]["plus"] = plus
        if has.get("bias"):
            norm["bias"] = self._random(f"{name}.bias", (size,), 0.3)
        return norm

    def _fused(self, name: str, sizes: tuple[int, int, int], by_head: bool, transposed: bool) -> dict[str, Spec]:
        """One tensor for query, key and value: one after the other, or a query group, its key and its value after the other."""
        heads, kv_heads, size = sizes
        group, rows = heads // kv_heads, (heads + 2 * kv_heads) * size
        whole = self._linear(f"{name}.qkv", rows, HIDDEN, transposed)
        if "query" in self.choices["biases"]:
            whole["bias"] = self._random(f"{name}.qkv.bias", (rows,), 0.3)
        places = {"query": (0, group * size), "key": (group * size, size), "value": ((group + 1) * size, size)}
        if not by_head:
            places = {"query": (0, 0), "key": (heads * size, 0), "value": ((heads + kv_heads) * size, 0)}
        parts: dict[str, Spec] = {}
        for part, (first, head_rows) in places.items():
            order = {"first_row": first, "head_rows": head_rows, "head_stride": (group + 2) * size} if by_head else {"first_row": first}
            parts[part] = {tensor: binding | {"order": order} for tensor, binding in whole.items()}
        return parts

    def sizes_of(self, index: int) -> tuple[int, int, int]:
        """Heads, KV heads and head size of a layer."""
        has: Spec = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": self.choices["head_dim"]}
        has |= self.choices["heads_of_layers"][index]
        return has["num_heads"], has["num_kv_heads"], has["head_dim"]

    def _projections(self, name: str, index: int) -> dict[str, Spec]:
        rows, (heads, kv_heads, size) = self.choices["rows"], self.sizes_of(index)
        if self.choices["kv_donors"][index] >= 0:
            return {"query": self._linear(f"{name}.query", heads * size, HIDDEN)}
        if rows in ("fused", "by head"):
            return self._fused(name, (heads, kv_heads, size), rows == "by head", self.choices["transposed"])
        counts = {"query": heads, "key": kv_heads, "value": kv_heads}
        parts = {part: self._linear(f"{name}.{part}", count * size, HIDDEN) for part, count in counts.items()}
        if rows == "interleaved":
            order = {"head_rows": size, "head_stride": size, "adjacent_pairs": self.choices["ropes"][0]["rotary_dim"]}
            for binding in (binding for part in ("query", "key") for binding in parts[part].values()):
                binding["order"] = order
        return parts

    def _latent(self, name: str) -> Spec:
        """All that makes queries and the cache's one head, and each head's keys and values."""
        sizes = LATENT | self.choices["latent"]
        rank, key, rotary, value = (sizes[field] for field in ("rank", "key_size", "rotary_size", "value_size"))
        query_rank, stride = sizes["query_rank"], key + rotary
        latent: Spec = {field: sizes[field] for field in ("rank", "key_size", "rotary_size", "value_size", "query_rank")}
        if query_rank:
            latent["query_down"] = self._linear(f"{name}.query_down", query_rank, HIDDEN)
            latent["query_norm"] = self._norm(f"{name}.query_norm", query_rank, {"kind": "rms"})
        whole = self._linear(f"{name}.query", HEADS * stride, query_rank or HIDDEN)["weight"]
        pairs = {"adjacent_pairs": self.choices["ropes"][0]["rotary_dim"]} if sizes["pairs"] else {}
        latent["query"] = {"weight": whole | {"order": {"head_rows": key, "head_stride": stride}}}
        latent["query_rotary"] = {"weight": whole | {"order": {"first_row": key, "head_rows": rotary, "head_stride": stride} | pairs}}
        latent["latent"] = self._linear(f"{name}.latent", rank, HIDDEN)
        latent["rotary"] = self._linear(f"{name}.rotary", rotary, HIDDEN)
        latent["latent_norm"] = self._norm(f"{name}.latent_norm", rank, {"kind": "rms"})
        if sizes["stored"] == "apart":
            latent["key_up"] = self._random(f"{name}.key_up", (HEADS, rank, key), 1.3 / np.sqrt(rank))
            latent["value_up"] = self._random(f"{name}.value_up", (HEADS, value, rank), 1.3 / np.sqrt(rank))
            return latent
        up = self._random(f"{name}.up", (HEADS * (key + value), rank), 1.3 / np.sqrt(rank))
        latent["key_up"] = up | {"transposed": True, "order": {"head_rows": key, "head_stride": key + value}}
        latent["value_up"] = up | {"order": {"first_row": key, "head_rows": value, "head_stride": key + value}}
        return latent

    def _attention(self, name: str, index: int) -> Spec:
        has, (heads, kv_heads, size), donor = self.choices, self.sizes_of(index), self.choices["kv_donors"][index]
        if has["latent"] is None:
            attention: Spec = self._projections(name, index)
            values = heads * size
        else:
            attention, values = {"latent": self._latent(f"{name}.latent")}, heads * (LATENT | has["latent"])["value_size"]
        attention["output"] = self._linear(f"{name}.output", HIDDEN, values, has["transposed"])
        attention |= has["heads_of_layers"][index] | ({"kv_donor": donor} if donor >= 0 else {})
        attention |= {
            "rope": has["rope_of_layers"][index],
            "window": has["windows"][index],
            "scale": has["attention_scale"],
            "clip": has["clip"],
        }
        attention |= {"soft_cap": has["attention_cap"], "output_norm": self._norm(f"{name}.output_norm", heads * size, has["output_norm"])}
        if has["head_norm"] is not None:
            alone = has["span"] == "head" and not has["own_weights"]
            sizes = {"query": size if alone else heads * size, "key": size if alone else kv_heads * size}
            if donor >= 0:
                sizes.pop("key")
            norms: Spec = {which: self._norm(f"{name}.{which}_norm", count, has["head_norm"]) for which, count in sizes.items()}
            attention["norms"] = norms | {"span": has["span"], "own_weights": has["own_weights"], "after_rope": has["after_rope"]}
        if has["value_norm"] is not None and donor < 0:
            attention.setdefault("norms", {})["value"] = self._norm(f"{name}.value_norm", size, has["value_norm"])
        if has["value_is_key"] and donor < 0:
            for part in attention.pop("value").values():
                self.tensors.pop(part["name"])
            attention["value_is_key"] = True
        if has["attention_gate"] != "none":
            rows = heads * (size if has["attention_gate"] == "element" else 1)
            attention |= {"gate_kind": has["attention_gate"], "gate": self._linear(f"{name}.attention_gate", rows, HIDDEN)}
        if has["sinks"]:
            attention["sinks"] = self._random(f"{name}.sinks", (heads,), 1.0, 1.0)
        if has["linear_biases"]:
            attention["linear_biases"] = [2.0 ** -(head + 1) for head in range(heads)]
        if has["temperature"]:
            attention["query_temperature"] = has["temperature"]
        return attention

    def _mlp(self, name: str) -> Spec:
        has = self.choices
        mlp: Spec = {
            "gated": has["gated"],
            "activation": has["activation"],
            "size": MLP,
            "up": self._linear(f"{name}.up", MLP, HIDDEN, has["transposed"]),
        }
        if has["gated"]:
            mlp["gate"] = self._linear(f"{name}.gate", MLP, HIDDEN, has["transposed"])
        if has["activation"] == "xielu":
            means = {"alpha_p": 0.8, "alpha_n": -0.6, "beta": 0.5, "eps": -1e-6}
            mlp["activation_scalars"] = [self._random(f"{name}.{scalar}", (1,), abs(mean) / 4, mean) for scalar, mean in means.items()]
        mlp["inner_norm"] = self._norm(f"{name}.inner_norm", MLP, has["inner_norm"])
        return mlp | {"down": self._linear(f"{name}.down", HIDDEN, MLP, has["transposed"])}

    def _layer(self, index: int) -> Spec:
        has, name = self.choices, f"layers.{index}"
        layer: Spec = {"residual_scale": has["residual_scale"]}
        places = {"before": ("attention_norm", "mlp_norm"), "after": ("post_attention_norm", "post_mlp_norm"), "none": ()}
        places["sum"] = ("attention_sum_norm", "mlp_sum_norm")
        for place in places.get(has["places"], places["before"] + places["after"]):
            layer[place] = self._norm(f"{name}.{place}", HIDDEN, has["norm"])
        if has["order"] != "sequential":
            layer["order"] = "parallel"
        if has["order"] == "parallel one norm" and layer.pop("mlp_norm", None):
            layer["mlp_reads_attention_norm"] = True
            for part in ("weight", "bias"):
                self.tensors.pop(f"{name}.mlp_norm.{part}", None)
        layer["attention"] = self._attention(f"{name}.attention", index)
        if has["output_scale"] and index + 1 < LAYERS:  # behind the last layer the final norm takes it away
            layer["output_scale"] = self._random(f"{name}.output_scale", (1,), 0.2, 0.8)
        if size := has["layer_embedding"]:
            layer["input"] = {
                "present": True,
                "place": LAYERS - index,
                "gate": self._linear(f"{name}.input_gate", size, HIDDEN),
                "projection": self._linear(f"{name}.input_projection", HIDDEN, size),
                "norm": self._norm(f"{name}.input_norm", HIDDEN, has["norm"]),
            }
        experts = has["experts"]
        if experts is None or index not in experts.get("layers", EXPERTS["layers"]):
            return layer | {"mlp": self._mlp(f"{name}.mlp")}
        return layer | self._moe(f"{name}.moe", EXPERTS | experts)

    def mix(self, index: int, mixer: str, groups: int = 2) -> None:
        """Gives a layer a state instead of attention: short_conv, gated_delta or mamba2."""
        layer, name = self.spec["layers"][index], f"layers.{index}.mixer"
        layer.pop("attention", None)
        self.tensors = {key: tensor for key, tensor in self.tensors.items() if not key.startswith(f"layers.{index}.attention.")}
        heads, key_size, value_size = 4, 8, 16
        keys, values = groups * key_size, heads * value_size
        channels = HIDDEN if mixer == "short_conv" else 2 * keys + values
        conv = {"length": 3} | {
            part: self._random(f"{name}.conv.{part}", shape, 0.5) for part, shape in {"weight": (channels, 3), "bias": (channels,)}.items()
        }
        if mixer == "short_conv":
            inner = {"input": self._linear(f"{name}.input", 3 * HIDDEN, HIDDEN), "output": self._linear(f"{name}.output", HIDDEN, HIDDEN)}
            layer |= {"mixer": mixer, mixer: inner | {"conv": conv}}
            return
        is_delta = mixer == "gated_delta"
        rows = {"query": keys, "key": keys, "value": values, "gate": values, "time": heads} | ({"write": heads} if is_delta else {})
        mixed: Spec = {role: self._linear(f"{name}.mixed_{role}", count, HIDDEN) for role, count in rows.items()}
        mixed |= {"num_heads": heads, "num_groups": groups, "key_size": key_size, "value_size": value_size, "conv": conv}
        mixed |= {part: self._random(f"{name}.{part}", (heads,), 0.3) for part in ("time_bias", "decay", *(() if is_delta else ("skip",)))}
        mixed |= {"decay_is_log": True, "norm": self._norm(f"{name}.norm", value_size if is_delta else values, {"kind": "rms"})}
        mixed["output"] = self._linear(f"{name}.mixed_output", HIDDEN, values)
        if not is_delta:
            mixed |= {"norm_groups": groups, "least_step": 0.1, "most_step": 2.0}
        layer |= {"mixer": mixer, "recurrence": mixed}

    def _moe(self, name: str, has: Spec) -> Spec:
        """The experts of a layer, and the shared one."""
        router: Spec = {
            key: value for key, value in has.items() if key not in EXPERTS and not key.startswith("activation") and key != "gated"
        }
        beside: Spec = {}
        if has["beside"]:
            beside = {which: self._norm(f"{name}.{which}", HIDDEN, RMS) for which in ("norm", "post_norm", "shared_post_norm")}
            router["norm"] = self._norm(f"{name}.router_norm", HIDDEN, RMS)
            router["norm"]["weight"]["times"] = 0.5
            router["expert_scales"] = self._random(f"{name}.expert_scales", (has["num_experts"],), 0.3, 1.0)
        router["linear"] = self._linear(f"{name}.router", has["num_experts"], HIDDEN)
        if router.pop("choice_bias", False):
            router["choice_bias"] = self._random(f"{name}.choice_bias", (has["num_experts"],), 0.2)
        moe = beside | {
            "num_experts": has["num_experts"],
            "num_used": has["num_used"],
            "router": router,
            "expert": self._expert(f"{name}.expert", has),
        }
        layer: Spec = {"moe": moe}
        if has["shared"]:
            sizes = {"gate": (has["shared"], HIDDEN), "up": (has["shared"], HIDDEN), "down": (HIDDEN, has["shared"])}
            layer["mlp"] = {"size": has["shared"]} | {part: self._linear(f"{name}.shared.{part}", *size) for part, size in sizes.items()}
        if has["gate"]:
            moe["shared_gate"] = self._linear(f"{name}.shared_gate", 1, HIDDEN)
        return layer

    def _expert(self, name: str, has: Spec) -> Spec:
        """Tensors of each expert, or of all: gate and up one after the other, or in turn."""
        number, size, stored = has["num_experts"], has["size"], has["stored"]
        expert: Spec = {key: has[key] for key in ("gated", "activation", "activation_values") if key in has} | {"size": size}
        sizes = {"gate": (size, HIDDEN), "up": (size, HIDDEN), "down": (HIDDEN, size)}
        for part, (rows, columns) in sizes.items():
            if part == "gate" and not has.get("gated", True):
                continue
            names = {part: f"{name}.{{expert}}.{part}"} if stored == "apart" else {part: f"{name}.{part}"}
            order: Spec = {}
            if stored in ("fused", "interleaved") and part != "down":
                names, order = {part: f"{name}.gate_up"}, {"first_row": size, "head_rows": size, "head_stride": 2 * size}
                if stored == "interleaved":
                    order = {"first_row": 1, "head_rows": 1, "head_stride": 2}
                order["first_row"] *= int(part == "up")
                rows *= 2
            linear: Spec = {}
            for kind, shape in (("weight", (rows, columns)), *([("bias", (rows,))] if has["biases"] else [])):
                whole = f"{names[part]}.{kind}"
                for one in [whole.replace("{expert}", str(i)) for i in range(number)] if stored == "apart" else [whole]:
                    own = shape[::-1] if stored == "transposed" else shape
                    self._random(one, own if stored == "apart" else (number, *own), 1.3 / np.sqrt(columns) if kind == "weight" else 0.3)
                linear[kind] = {"name": whole} | ({"order": order} if order else {})
                if stored == "transposed" and kind == "weight":
                    linear[kind]["transposed"] = True
            expert[part] = linear
        return expert

    def _model(self) -> Spec:
        has = self.choices
        embedding: Spec = {"weight": self._random("embedding.weight", (VOCAB, HIDDEN), 1.0), "scale": has["embedding_scale"]}
        embedding["norm"] = self._norm("embedding_norm", HIDDEN, has["embedding_norm"])
        if has["positions"] is not None:
            rows = LONGEST + has["positions"]
            embedding |= {"positions": self._random("positions.weight", (rows, HIDDEN), 1.0), "position_offset": has["positions"]}
        head: Spec = {} if has["tied"] else self._linear("head", VOCAB, HIDDEN)
        given: Spec = {}
        if size := has["layer_embedding"]:
            width = (LAYERS + 1) * size
            given = {
                "size": size,
                "num_places": LAYERS + 1,
                "weight": self._random("layer_embedding.weight", (VOCAB, width), 1.0),
                "scale": 0.7,
                "projection": self._linear("layer_projection", width, HIDDEN),
                "norm": self._norm("layer_norm", size, RMS),
            }
        return {
            "family": "tiny",
            "layer_embedding": given,
            "hidden_size": HIDDEN,
            "num_heads": HEADS,
            "num_kv_heads": KV_HEADS if has["latent"] is None else 1,
            "head_dim": has["head_dim"] if has["latent"] is None else LATENT["rank"] + LATENT["rotary_size"],
            "vocab_size": VOCAB,
            "max_position": LONGEST,
            "embedding": embedding,
            "layers": [self._layer(index) for index in range(LAYERS)],
            "final_norm": self._norm("final_norm", HIDDEN, has["final_norm"]),
            "head": head | {"scale": has["logit_scale"], "soft_cap": has["logit_cap"]},
            "ropes": has["ropes"],
        }
