"""LFM2: most layers mix by a short convolution, some by attention. Liquid AI, 2025."""

from __future__ import annotations

import math
from typing import Final

from llmi.families.config import Config
from llmi.families.dense import Style, Tensors, dense, num_layers
from llmi.families.experts import ExpertTensors, between, sizes_of
from llmi.families.layers import FULL, kinds_by_kv_heads, positive
from llmi.families.registry import family
from llmi.families.spec import AttentionSpec, ConvSpec, LinearSpec, ModelSpec, MoeSpec, RouterSpec, ShortConvSpec, TensorBinding

CONV: Final = "conv"
NAMES: Final = {
    "final_norm": "model.embedding_norm",
    "attention_norm": "operator_norm",
    "mlp_norm": "ffn_norm",
    "output": "self_attn.out_proj",
    "query_norm": "self_attn.q_layernorm",
    "key_norm": "self_attn.k_layernorm",
    "gate": "feed_forward.w1",
    "up": "feed_forward.w3",
    "down": "feed_forward.w2",
    "conv": "conv.conv",
    "conv_input": "conv.in_proj",
    "conv_output": "conv.out_proj",
}
GGUF_NAMES: Final = {
    "final_norm": "token_embd_norm",
    "conv": "shortconv.conv",
    "conv_input": "shortconv.in_proj",
    "conv_output": "shortconv.out_proj",
}
EXPERTS: Final = {
    "router": "feed_forward.gate",
    "expert_gate": "feed_forward.experts.{expert}.w1",
    "expert_up": "feed_forward.experts.{expert}.w3",
    "expert_down": "feed_forward.experts.{expert}.w2",
}
KEYS: Final[dict[str, str | tuple[str, ...]]] = {
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": ("tie_word_embeddings", "tie_embedding"),
}
DEFAULTS: Final[dict[str, float | bool]] = {
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 128000,
    "num_key_value_heads": 8,
}


def _kinds(c: Config) -> list[str]:
    """The kind of each layer."""
    number = num_layers(c)
    if c.is_gguf:
        return kinds_by_kv_heads(c, number, CONV)
    kinds = c.listed("layer_types", number)
    if kinds is None:
        indices = c.find("full_attn_idxs")
        return [FULL if indices is None or (isinstance(indices, list) and index in indices) else CONV for index in range(number)]
    for kind in kinds:
        if kind not in (FULL, CONV):
            c.unsupported("layer_types", f"layer_types holds '{kind}' ({FULL} and {CONV} are run)")
    return [str(kind) for kind in kinds]


def _with_convs(c: Config, style: Style) -> ModelSpec:
    kinds = _kinds(c)
    spec = dense(c, style, theta=1e6)
    tensors, has_bias, length = Tensors(c, style, spec), c.boolean("conv_bias", False), c.integer("conv_L_cache", 3)
    if length < 2:
        name = c.name("conv_L_cache")
        c.refuse("conv_L_cache", f"{name} = {length} must be 2 or more: the convolution reads a row and those before it")

    def bias(stem: str) -> TensorBinding:
        return TensorBinding(stem + ".bias") if has_bias else TensorBinding()

    def linear(role: str, index: int) -> LinearSpec:
        stem = tensors.stem(role, index)
        return LinearSpec(TensorBinding(stem + ".weight"), bias(stem))

    for index, layer in enumerate(spec.layers):
        if kinds[index] == CONV:
            stem = tensors.stem("conv", index)
            conv = ConvSpec(length, TensorBinding(stem + ".weight"), bias(stem))
            layer.mixer, layer.attention = "short_conv", AttentionSpec()
            layer.short_conv = ShortConvSpec(linear("conv_input", index), linear("conv_output", index), conv)
    return spec


@family("lfm2", hf="Lfm2ForCausalLM", gguf="lfm2", keys=KEYS, defaults=DEFAULTS)
def lfm2(c: Config) -> ModelSpec:
    """LFM2 and LFM2.5: 350M to 2.6B."""
    spec = _with_convs(c, Style(head_norms=True, names=NAMES, gguf_names=GGUF_NAMES))
    if c.is_gguf:
        return spec
    size = c.positive("intermediate_size", 12288)
    if (stated := c.optional_integer("block_ff_dim")) is not None:
        if c.has("intermediate_size") and stated != size:
            c.contradiction(c.name("block_ff_dim"), c.name("intermediate_size"))
        size = c.positive("block_ff_dim")
    if c.boolean("block_auto_adjust_ff_dim", True):
        size = math.floor(2 * size / 3)
        multiple, factor = c.positive("block_multiple_of", 256), positive(c, "block_ffn_dim_multiplier", 1.0)
        size = -(-math.floor(factor * size) // multiple) * multiple
    for layer in spec.layers:
        layer.mlp.size = size
    return spec


@family("lfm2_moe", hf="Lfm2MoeForCausalLM", gguf="lfm2moe", keys=KEYS, defaults=DEFAULTS)
def lfm2_moe(c: Config) -> ModelSpec:
    """LFM2 8B-A1B: a sigmoid router with a bias of its choice, behind two dense layers."""
    style = Style(head_norms=True, names=NAMES, gguf_names=GGUF_NAMES, experts=True)
    spec = _with_convs(c, style)
    number, used, size = sizes_of(c)
    experts = ExpertTensors(Tensors(c, style, spec), EXPERTS)
    if c.is_gguf and c.integer(c.gguf_key("expert_gating_func"), 2) != 2:
        c.unsupported(c.gguf_key("expert_gating_func"), "scores of this family's experts that are no sigmoids (2)")
    first = between(c, "first_k_dense_replace", 0) if c.is_gguf else between(c, "num_dense_layers", 2)
    factor, renormalises = c.number("routed_scaling_factor", 1.0), c.boolean("norm_topk_prob", True)
    has_bias = c.boolean("use_expert_bias", True)
    for index in range(first, len(spec.layers)):
        router = RouterSpec(score="sigmoid", renormalise=renormalises, sum_epsilon=1e-6, factor=factor)
        router = experts.router(index, router, "feed_forward.expert_bias" if has_bias else "")
        experts.set(index, MoeSpec(number, used, router, experts.expert(index, size)))
    return spec
