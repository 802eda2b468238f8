"""What a GGUF file says of a model, by its graph: the metadata of its architecture, and the tensors of its rotary tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmi.base.gguf_entries import flag_entry, flags_entry, float_entry, floats_entry, number_entry, text_entry
from llmi.families.config import GGUF_KEYS
from llmi.families.rope import mscale
from llmi.families.spec import ModelSpec, RopeSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np

#: A value of the metadata.
Value = bool | int | float | str | list[bool] | list[float]


def values_of(spec: ModelSpec, architecture: str, config: Mapping[str, Any]) -> dict[str, Value]:
    """All that metadata can say of a graph, of which an architecture reads its part. config: what the folder says, where a graph has only
    what follows from it; the new file's graph shows whether it was read as it was meant."""
    first, size = spec.layers[0].attention, spec.layers[0].mlp.size
    by_size = {layer.mlp.size for layer in spec.layers if not layer.moe.num_experts}
    named: dict[str, Value] = {
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "value_head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_position,
        "vocab_size": spec.vocab_size,
        "rms_norm_eps" if spec.final_norm.kind == "rms" else "layer_norm_eps": spec.final_norm.eps,
        "sliding_window": max(layer.attention.window for layer in spec.layers) or 0.0,
        "final_logit_softcapping": spec.head.soft_cap,
        "attn_logit_softcapping": first.soft_cap,
        "embedding_multiplier": spec.embedding.scale,
        "residual_multiplier": spec.layers[0].residual_scale,
        "attention_multiplier": first.scale,
        "logit_scale": 1 / spec.head.scale if architecture.startswith("granite") else spec.head.scale,
        "use_parallel_residual": spec.layers[0].order == "parallel",
        "clip_qkv": first.clip,
        "temperature_scale": first.query_temperature.beta,
        "layer_rope_theta": [layer.attention.rope >= 0 for layer in spec.layers],
    }
    if architecture == "granite_swa":  # llama.cpp knows the layers with windows of all others by their number
        named["sliding_window_pattern"] = [layer.attention.window > 0 for layer in spec.layers]
    moe = next((layer for layer in spec.layers if layer.moe.num_experts), None)
    if moe is not None:
        expert, router = moe.moe.expert.size, moe.moe.router
        size = min(by_size, default=int(config.get("intermediate_size") or expert))
        named |= {
            "num_experts": moe.moe.num_experts,
            "num_experts_per_tok": moe.moe.num_used,
            "moe_intermediate_size": expert,
            "shared_expert_intermediate_size": moe.mlp.size,
            "n_shared_experts": moe.mlp.size // expert,
            "n_group": router.num_groups,
            "topk_group": router.used_groups,
            "norm_topk_prob": router.renormalise,
            "routed_scaling_factor": router.factor,
            "first_k_dense_replace": spec.layers.index(moe),
            "moe_layer_interval": config.get("moe_layer_interval") or 1,
        }
    named["intermediate_size"] = size
    # Of caps, windows and the like 0.0 means that there is none.
    values = {f"{architecture}.{GGUF_KEYS[name]}": value for name, value in named.items() if value != 0 or not isinstance(value, float)}
    if moe is not None and moe.moe.router.score == "sigmoid":
        values[f"{architecture}.expert_gating_func"] = 2
    if spec.ropes:
        values |= {f"{architecture}.rope.{key}": value for key, value in _rope_values(spec, config).items()}
    return values


def scaling_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What config.json says of how the rotary table is stretched."""
    told = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return told.get("full_attention", told) if isinstance(told, dict) else {}


def _rope_values(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, Value]:
    """Of the first table, and the base of the second."""
    rope, scaling = spec.ropes[0], scaling_of(config)
    values: dict[str, Value] = {"freq_base": rope.theta, "dimension_count": rope.rotary_dim}
    if len(spec.ropes) > 1:
        values["freq_base_swa"] = spec.ropes[1].theta
    original = config.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings") or spec.max_position
    if spec.rope_choice.startswith("longrope"):
        values |= {"scaling.original_context_length": original, "scaling.attn_factor": rope.magnitude}
    elif rope.yarn_factor != 1:
        grown, log_multiplier = mscale(rope.yarn_factor), float(scaling.get("mscale_all_dim") or 0)
        values |= {
            "scaling.type": "yarn",
            "scaling.factor": rope.yarn_factor,
            "scaling.original_context_length": original,
            "scaling.yarn_beta_fast": float(scaling.get("beta_fast") or 32),
            "scaling.yarn_beta_slow": float(scaling.get("beta_slow") or 1),
        }
        if log_multiplier:
            values["scaling.yarn_log_multiplier"] = log_multiplier
            grown /= mscale(rope.yarn_factor, log_multiplier)
        if rope.magnitude != grown:
            values["scaling.attn_factor"] = rope.magnitude / grown
    elif rope.linear_factor != 1:
        values |= {"scaling.type": "linear", "scaling.factor": rope.linear_factor}
    return values


def rope_tensors(spec: ModelSpec, config: Mapping[str, Any]) -> dict[str, F32]:
    """By what a file's frequencies are divided, float32 [half of the rotated part], where no formula of the metadata says it."""
    rope = spec.ropes[0] if spec.ropes else RopeSpec()
    if spec.rope_choice.startswith("longrope"):
        told = scaling_of(config)
        return {f"rope_factors_{kind}.weight": np.array(told[f"{kind}_factor"], np.float32) for kind in ("long", "short")}
    return {"rope_freqs.weight": _llama3_divisors(rope)} if rope.llama3_factor != 1 else {}


def _llama3_divisors(rope: RopeSpec) -> F32:
    """Llama 3's: waves longer than original / low are stretched, those shorter than original / high are not, with a ramp between."""
    turns = rope.llama3_original_context * rope.theta ** (-np.arange(0, rope.rotary_dim, 2) / rope.rotary_dim) / (2 * math.pi)
    low, high = rope.llama3_low_freq_factor, rope.llama3_high_freq_factor
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    divisors: F32 = (1 / ((1 - smooth) / rope.llama3_factor + smooth)).astype(np.float32)
    return divisors


def entry_of(value: Value) -> bytes:
    """Type and value, as a file has them."""
    if isinstance(value, str):
        return text_entry(value)
    if isinstance(value, bool):
        return flag_entry(value)
    if isinstance(value, list):
        return flags_entry([flag is True for flag in value]) if isinstance(value[0], bool) else floats_entry(value)
    return number_entry(value) if isinstance(value, int) else float_entry(value)
