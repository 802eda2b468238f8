"""llama.cpp's mixtures: which type each tensor of a file has by name, such as Q4_K_M."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from llmi.compress.gguf_file import StoredTensor
from llmi.families import ModelSpec

#: Name: (type of most matrices, general.file_type).
MIXTURES = {
    "Q3_K_S": ("Q3_K", 11),
    "Q3_K_M": ("Q3_K", 12),
    "Q3_K_L": ("Q3_K", 13),
    "Q4_0": ("Q4_0", 2),
    "Q4_1": ("Q4_1", 3),
    "IQ4_NL": ("IQ4_NL", 25),
    "Q4_K_S": ("Q4_K", 14),
    "Q4_K_M": ("Q4_K", 15),
    "Q5_0": ("Q5_0", 8),
    "Q5_1": ("Q5_1", 9),
    "Q5_K_S": ("Q5_K", 16),
    "Q5_K_M": ("Q5_K", 17),
    "Q6_K": ("Q6_K", 18),
    "Q8_0": ("Q8_0", 7),
}
#: What llama.cpp leaves as it is: parts of names.
_KEPT = (
    "_norm.weight",
    "ffn_gate_inp",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "shortconv.conv",
    "attn_rel_b",
    "time_mix",
)


class _Place(NamedTuple):
    """A tensor among those of its kind: the number of its layer, of how many."""

    layer: int
    total: int

    @property
    def is_early(self) -> bool:
        """In the first eighth."""
        return self.layer < self.total // 8

    @property
    def gets_more(self) -> bool:
        """In the first or the last eighth, or every third between."""
        return self.is_early or self.layer >= 7 * self.total // 8 or (self.layer - self.total // 8) % 3 == 2


class _Graph(NamedTuple):
    """What the rules ask about a model."""

    is_falcon: bool
    shared_by: int  # heads that read one head of keys and values
    num_experts: int
    is_70b: bool
    has_importance: bool


def of_mixture(name: str, tensors: Sequence[StoredTensor], spec: ModelSpec, has_importance: bool) -> dict[str, str]:
    """{tensor: type}; a tensor that is not there stays as it is.

    has_importance: whether a calibration weighs errors, by which llama.cpp chooses, too.
    """
    kind = MIXTURES[name][0]
    experts = max(layer.moe.num_experts for layer in spec.layers)
    shared_by = spec.num_heads // max(spec.num_kv_heads, 1)
    graph = _Graph(spec.family == "falcon", shared_by, experts, len(spec.layers) == 80 and shared_by > 1, has_importance)
    has_head = any(tensor.name == "output.weight" for tensor in tensors)
    head = "output.weight" if has_head else "token_embd.weight"
    readers = [int(match[1]) for tensor in tensors if (match := re.match(r"blk\.(\d+)\.attn_(v|qkv|kv_b)\.weight$", tensor.name))]
    places = {layer: place for place, layer in enumerate(sorted(set(readers)))}
    found = {}
    for tensor in tensors:
        if len(tensor.shape) < 2 or not tensor.name.endswith(".weight") or any(part in tensor.name for part in _KEPT):
            continue
        if tensor.name == head:
            found[tensor.name] = _of_head(kind, graph)
            continue
        match = re.match(r"blk\.(\d+)\.(.+)\.weight$", tensor.name)
        rule = _RULES.get(match[2]) if match else None
        if rule is None or match is None:
            found[tensor.name] = kind
            continue
        layer = int(match[1])
        is_attention = rule is _value
        place = _Place(places[layer], len(places)) if is_attention else _Place(layer, len(spec.layers))
        found[tensor.name] = rule(name, kind, place, graph)
    return found


def _of_head(kind: str, graph: _Graph) -> str:
    """Q6_K becomes Q8_0 where 256 does not divide the columns."""
    return "Q8_0" if graph.is_falcon or kind == "Q8_0" else "Q6_K"


def _value(name: str, kind: str, place: _Place, graph: _Graph) -> str:
    chosen = kind
    if name == "Q3_K_M":
        chosen = "Q5_K" if place.layer < 2 else "Q4_K"
    elif name == "Q3_K_L" or (name == "IQ4_NL" and graph.shared_by >= 4):
        chosen = "Q5_K"
    elif name in ("Q4_K_M", "Q5_K_M") and place.gets_more:
        chosen = "Q6_K"
    elif name == "Q4_K_S" and place.layer < 4:
        chosen = "Q5_K"
    if graph.is_70b and chosen in ("Q3_K", "Q4_K"):
        chosen = "Q5_K"
    return "Q8_0" if graph.num_experts == 8 else chosen


def _key(name: str, kind: str, place: _Place, graph: _Graph) -> str:
    del name, place
    return "Q8_0" if graph.num_experts == 8 else kind


def _down(name: str, kind: str, place: _Place, graph: _Graph) -> str:
    if name == "Q3_K_M":
        if place.layer < place.total // 16:
            return "Q5_K"
        return "Q4_K" if not graph.is_falcon or place.gets_more else "Q3_K"
    if name == "Q3_K_L":
        return "Q4_K" if graph.is_falcon else "Q5_K"
    if name == "Q4_K_M" and graph.is_falcon:
        return "Q6_K" if place.layer < place.total // 16 else "Q5_K" if place.gets_more else "Q4_K"
    if name in ("Q4_K_M", "Q5_K_M") and place.gets_more:
        return "Q6_K"
    if not place.is_early:
        return kind
    if name == "IQ4_NL" and not graph.has_importance:
        return "Q5_K"
    if name == "Q4_K_S" and not graph.is_falcon:
        return "Q5_K"
    return {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}.get(name, kind) if graph.has_importance else kind


def _output(name: str, kind: str, place: _Place, graph: _Graph) -> str:
    del place
    if graph.is_falcon:
        return "Q4_K" if name == "Q3_K_L" else kind
    if graph.num_experts == 8:
        return "Q5_K" if name in ("Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M") else kind
    return {"Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(name, kind)


_RULES: dict[str, Callable[[str, str, _Place, _Graph], str]] = {
    "attn_v": _value,
    "attn_k": _key,
    "ffn_down": _down,
    "ffn_down_exps": _down,
    "attn_output": _output,
    "attn_qkv": _value,
    "attn_kv_b": _value,
}
