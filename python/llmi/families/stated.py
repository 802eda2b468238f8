"""Keys of config.json that say what a family computes anyway: each with what a spec computes. At this value a key that nobody read changes
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from llmi.families.config import Value
from llmi.families.layers import FULL, every
from llmi.families.spec import LinearSpec, ModelSpec


def _same(values: Iterable[Value]) -> Value:
    """The value of all layers; None if they differ."""
    found = list(values)
    return found[0] if all(value == found[0] for value in found) else None


def _has_biases(*linears: LinearSpec) -> bool | None:
    """None if only some have one."""
    named = {bool(linear.bias.name) for linear in linears if linear.weight.name}
    return named.pop() if len(named) == 1 else None


def _attention_bias(spec: ModelSpec) -> Value:
    return _same(_has_biases(a.query, a.key, a.value, a.output) for a in (layer.attention for layer in spec.layers))


def _qkv_bias(spec: ModelSpec) -> Value:
    return _same(_has_biases(a.query, a.key, a.value) for a in (layer.attention for layer in spec.layers))


def _mlp_bias(spec: ModelSpec) -> Value:
    return _same(_has_biases(mlp.gate, mlp.up, mlp.down) for mlp in (layer.mlp for layer in spec.layers))


def _head_norms(spec: ModelSpec) -> Value:
    return _same(layer.attention.norms.query.present for layer in spec.layers)


def _is_parallel(spec: ModelSpec) -> Value:
    return _same(layer.order == "parallel" for layer in spec.layers)


def _has_windows(spec: ModelSpec) -> bool:
    return any(layer.attention.window for layer in spec.layers)


def _rotary(spec: ModelSpec) -> bool:
    return any(layer.attention.rope >= 0 for layer in spec.layers)


def _rotated_part(spec: ModelSpec) -> Value:
    return _same(rope.rotary_dim / spec.head_dim for rope in spec.ropes) if spec.ropes else None


def _norm_kind(spec: ModelSpec) -> Value:
    return {"rms": ("rms", "rms_norm", "rmsnorm"), "layer": ("layer_norm", "layernorm")}[spec.final_norm.kind]


def _rotation(spec: ModelSpec) -> Value:
    pairs = (
        _same(bool(layer.attention.query.weight.order.adjacent_pairs) for layer in spec.layers if layer.attention.rope >= 0)
        if _rotary(spec)
        else None
    )
    return {True: ("rope_gptj", "rope"), False: ("rope_neox", "rope")}.get(pairs is True) if pairs is not None else None


def _switch(spec: ModelSpec) -> Value:
    """Each how many layers one sees all tokens."""
    full = [not layer.attention.window for layer in spec.layers]
    number = full.index(True) + 1 if True in full else 0
    return number if full == [kind == FULL for kind in every(number, len(full))] else None


#: What a spec computes; a tuple: any of these values says it.
STATED: Final[dict[str, Callable[[ModelSpec], Value]]] = {
    "attention_bias": _attention_bias,
    "qkv_bias": _qkv_bias,
    "mlp_bias": _mlp_bias,
    "lm_head_bias": lambda spec: bool(spec.head.bias.name),
    "use_qk_norm": _head_norms,
    "qk_norm": _head_norms,
    "qk_layernorm": _head_norms,
    "qk_layer_norms": _head_norms,
    "post_norm": lambda spec: _same(layer.post_attention_norm.present for layer in spec.layers),
    "norm_type": _norm_kind,
    "use_parallel_block": _is_parallel,
    "use_parallel_residual": _is_parallel,
    "parallel_attn": _is_parallel,
    "use_gated_activation": lambda spec: _same(layer.mlp.gated for layer in spec.layers),
    "use_embedding_sharing": lambda spec: not spec.head.weight.name,
    "use_rotary_pos_emb": _rotary,
    "position_embedding_type": _rotation,
    "rotary_dim": lambda spec: _same(rope.rotary_dim for rope in spec.ropes) if spec.ropes else None,
    "rotary_pct": _rotated_part,
    "partial_rotary_factor": _rotated_part,
    "use_sliding_window": _has_windows,
    "sliding_window_size": lambda spec: (
        _same(layer.attention.window for layer in spec.layers if layer.attention.window) if _has_windows(spec) else None
    ),
    "layer_switch": _switch,
    "order_of_interleaved_layers": lambda spec: "local_attn_first" if spec.layers[0].attention.window else None,
    "max_window_layers": lambda spec: None if _has_windows(spec) else len(spec.layers),
    "head_dim": lambda spec: spec.head_dim,
    "attention_head_dim": lambda spec: spec.head_dim,
    "num_key_value_heads": lambda spec: spec.num_kv_heads,
    "num_heads": lambda spec: spec.num_heads,
    "block_dim": lambda spec: spec.hidden_size,
    "conv_dim": lambda spec: spec.hidden_size,
    "conv_dim_out": lambda spec: spec.hidden_size,
    "block_norm_eps": lambda spec: spec.final_norm.eps,
    "block_use_swiglu": lambda spec: _same(layer.mlp.gated and layer.mlp.activation == "silu" for layer in spec.layers),
    "use_pos_enc": _rotary,
    "logit_scale": lambda spec: spec.head.scale,
}


def stated_reason(spec: ModelSpec, key: str, value: Value) -> str | None:
    """Why this key changes nothing: it says what is computed anyway. None if it does not, or is no such key."""
    if key not in STATED:
        return None
    computed = STATED[key](spec)
    said = computed if isinstance(computed, tuple) else (computed,)
    is_said = any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in said if one is not None)
    return "it says what is computed anyway" if is_said else None
