"""Gemma 4, text. Google, 2026: global layers have heads of their own, the last layers read keys and values of earlier ones, small models
have embeddings for each layer, and the 26B-A4B has experts beside its MLPs."""

from __future__ import annotations

import math

from llmi.families.config import Config, Value
from llmi.families.dense import Style, Tensors, dense, num_layers
from llmi.families.experts import ExpertTensors, between, sizes_of
from llmi.families.gemma import KEYS, biases_of
from llmi.families.layers import FULL, SLIDING, every, f32, kinds_of, soft_cap, use_ropes, use_windows
from llmi.families.registry import family
from llmi.families.rope import ropes_by_kind
from llmi.families.spec import (
    LayerEmbeddingSpec,
    LayerInputSpec,
    LinearSpec,
    MlpSpec,
    ModelSpec,
    MoeSpec,
    NormSpec,
    RouterSpec,
    RowOrder,
    TensorBinding,
)

_THETAS = {FULL: 1e6, SLIDING: 10000.0}
_ROPES: Value = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}
_NAMES = {"router": "router.proj"}
#: Tensors outside of the layers, and in each layer: config.json's names, GGUF's.
_OUTER = {
    "embedding": ("model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"),
    "projection": ("model.per_layer_model_projection.weight", "per_layer_model_proj.weight"),
    "norm": ("model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"),
}
_INNER = {
    "input_gate": ("per_layer_input_gate.weight", "inp_gate.weight"),
    "input_projection": ("per_layer_projection.weight", "proj.weight"),
    "input_norm": ("post_per_layer_input_norm.weight", "post_norm.weight"),
    "output_scale": ("layer_scalar", "layer_output_scale.weight"),
    "router_scale": ("router.scale", "ffn_gate_inp.scale"),
    "expert_scales": ("router.per_expert_scale", "ffn_down_exps.scale"),
    "expert_norm": ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
    "shared_post_norm": ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
    "expert_post_norm": ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
}
_OF_READERS = ("self_attn.{}_proj.*", "self_attn.{}_norm.*"), ("attn_{}.*", "attn_{}_norm.*")


@family(
    "gemma4",
    hf="Gemma4ForCausalLM",
    model_type="gemma4_text",
    gguf="gemma4",
    keys=KEYS | {"num_experts_per_tok": "top_k_experts"},
    defaults={
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 512,
        "max_position_embeddings": 131072,
        "rope_parameters": _ROPES,
        "hidden_size_per_layer_input": 256,
    },
    text_defaults={
        "vocab_size": 262144,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 30,
        "num_attention_heads": 8,
    },
)
def gemma4(c: Config) -> ModelSpec:
    """Gemma 4's text model."""
    number = num_layers(c)
    sizes = _of_layers(c, "intermediate_size", number) if c.is_gguf else []
    kv_heads = _of_layers(c, "num_key_value_heads", number) if c.is_gguf else []
    style = Style(order="sandwich", activation="gelu_pytorch_tanh", head_norms=True, biases=biases_of(c), experts=True)
    spec = dense(c, style, theta=None)
    tensors = Tensors(c, style, spec)
    kinds = kinds_of(c, spec, [*every(6, number)[:-1], FULL])
    if not c.is_gguf and kinds[-1] != FULL:
        c.unsupported("layer_types", f"layer_types ends with '{kinds[-1]}', which transformers reads as '{FULL}'")
    use_windows(c, spec, kinds, c.positive("sliding_window"))
    head_dims = _set_heads(c, spec, kinds, kv_heads)
    use_ropes(spec, kinds, ropes_by_kind(c, head_dims, _THETAS))
    _share_keys(c, tensors, kinds)
    for index, size in enumerate(sizes):
        spec.layers[index].mlp.size = size
    spec.embedding.scale = f32(math.sqrt(spec.hidden_size))
    spec.head.soft_cap = soft_cap(c, "final_logit_softcapping")
    for index, layer in enumerate(spec.layers):
        layer.attention.scale = 1.0
        scale = _name(tensors, "output_scale", index)
        if not c.is_gguf or scale in c.tensors:
            layer.output_scale = TensorBinding(scale)
    _embed_layers(c, tensors)
    if c.has("num_experts") and c.integer("num_experts") > 0 and (c.is_gguf or c.boolean("enable_moe_block", False)):
        _add_experts(c, tensors)
    elif not c.is_gguf:
        c.boolean("enable_moe_block", False), c.find("num_experts"), c.find("num_experts_per_tok"), c.find("moe_intermediate_size")
    return spec


def _of_layers(c: Config, key: str, number: int) -> list[int]:
    """A GGUF's numbers, one for each layer or one for all; `dense` then finds the first."""
    found = [int(value) for value in c.per_layer(key, number)]
    if any(not 1 <= value < 1 << 20 for value in found):
        c.refuse(key, f"{c.name(key)} must lie in [1, 2^20)")
    c.object_values()[c.name(key)] = found[0]
    return found


def _name(tensors: Tensors, role: str, index: int | None = None) -> str:
    is_gguf = tensors.c.is_gguf
    if index is None:
        return _OUTER[role][is_gguf]
    return tensors.names["layer"].replace("{}", str(index)) + _INNER[role][is_gguf]


def _norm(tensors: Tensors, role: str, index: int) -> NormSpec:
    return NormSpec(present=True, eps=tensors.eps, weight=TensorBinding(_name(tensors, role, index)))


def _set_heads(c: Config, spec: ModelSpec, kinds: list[str], kv_heads: list[int]) -> dict[str, int]:
    """Heads of each layer; the size of heads by kind of layer."""
    own: list[tuple[int, int]] = []  # KV heads and size
    if c.is_gguf:
        full, key = spec.head_dim, c.gguf_key("attention.key_length_swa")
        spec.head_dim = c.positive(key)
        if c.integer(c.gguf_key("attention.value_length_swa"), spec.head_dim) != spec.head_dim:
            c.unsupported(c.gguf_key("attention.value_length_swa"), "key and value heads of different sizes")
        own = [(heads, full if kind == FULL else spec.head_dim) for heads, kind in zip(kv_heads, kinds, strict=True)]
        spec.num_kv_heads = next((heads for heads, kind in zip(kv_heads, kinds, strict=True) if kind == SLIDING), kv_heads[0])
    elif (changes := c.object("per_layer_config")) is not None:
        c.find("global_head_dim"), c.find("num_global_key_value_heads")  # of which transformers makes per_layer_config
        for index in range(len(kinds)):
            layer = changes.object(str(index))
            heads = spec.num_kv_heads if layer is None else layer.positive("num_key_value_heads", spec.num_kv_heads)
            own.append((heads, spec.head_dim if layer is None else layer.positive("head_dim", spec.head_dim)))
    else:
        full, named = c.positive("global_head_dim", 512), c.optional_integer("num_global_key_value_heads")
        heads = named if named is not None and c.boolean("attention_k_eq_v", False) else spec.num_kv_heads
        own = [(heads, full) if kind == FULL else (spec.num_kv_heads, spec.head_dim) for kind in kinds]
    sizes: dict[str, set[int]] = {FULL: set(), SLIDING: set()}
    for layer_spec, kind, (heads, size) in zip(spec.layers, kinds, own, strict=True):
        attention = layer_spec.attention
        if heads < 1 or spec.num_heads % heads:
            c.refuse("num_key_value_heads", f"{heads} KV heads of a layer do not divide the {spec.num_heads} heads")
        attention.num_kv_heads = heads if heads != spec.num_kv_heads else 0
        attention.head_dim = size if size != spec.head_dim else 0
        sizes[kind].add(size)
    if any(len(found) > 1 for found in sizes.values()):
        c.unsupported("per_layer_config", "layers of one kind have heads of several sizes, and there is one rotary table for each kind")
    return {kind: found.pop() if found else spec.head_dim for kind, found in sizes.items()}


def _share_keys(c: Config, tensors: Tensors, kinds: list[str]) -> None:
    """The last layers read keys and values of the last layer of their kind that has its own; some values are the keys."""
    spec, number = tensors.spec, len(kinds)
    key = c.gguf_key("attention.shared_kv_layers") if c.is_gguf else "num_kv_shared_layers"
    shared = between(c, key, 0, number)
    first = number - shared
    is_double = not c.is_gguf and c.boolean("use_double_wide_mlp", False)
    keys_are_values = not c.is_gguf and c.boolean("attention_k_eq_v", False)
    for index, layer in enumerate(spec.layers):
        attention, kind = layer.attention, kinds[index]
        if index < first:
            attention.norms.value = NormSpec(present=True, eps=tensors.eps)
            missing = attention.value.weight.name not in c.tensors
            if missing if c.is_gguf else keys_are_values and kind == FULL:
                attention.value_is_key, attention.value = True, LinearSpec()
            continue
        if kind not in kinds[:first]:
            c.refuse(key, f"{c.name(key)} = {shared}: no layer before layer {first} has keys and values for a layer of '{kind}'")
        attention.kv_donor = max(other for other in range(first) if kinds[other] == kind)
        attention.key, attention.value, attention.norms.key = LinearSpec(), LinearSpec(), NormSpec()
        layer.mlp.size *= 2 if is_double else 1
        stem = tensors.names["layer"].replace("{}", str(index))
        spec.ignored_tensors += [stem + name.format(which) for name in _OF_READERS[c.is_gguf] for which in "kv"]


def _embed_layers(c: Config, tensors: Tensors) -> None:
    """Embeddings for each layer: (16 * embedding + norm(projection x / sqrt(hidden))) / sqrt(2), with the factors folded."""
    spec, number = tensors.spec, len(tensors.spec.layers)
    key = c.gguf_key("embedding_length_per_layer_input") if c.is_gguf else "hidden_size_per_layer_input"
    size = between(c, key, most=1 << 16) if c.has(key) else 0
    vocab = spec.vocab_size if c.is_gguf else c.integer("vocab_size_per_layer_input", 262144)
    if size == 0:
        return
    if vocab != spec.vocab_size:
        c.unsupported("vocab_size_per_layer_input", f"vocab_size_per_layer_input = {vocab}, not vocab_size = {spec.vocab_size}")
    half = math.sqrt(0.5)
    norm = TensorBinding(_name(tensors, "norm"), times=f32(half))
    spec.layer_embedding = LayerEmbeddingSpec(
        size=size,
        num_places=number,
        weight=TensorBinding(_name(tensors, "embedding")),
        scale=f32(math.sqrt(size) * half),
        projection=LinearSpec(TensorBinding(_name(tensors, "projection"))),
        norm=NormSpec(present=True, eps=tensors.eps * spec.hidden_size, weight=norm),  # of rows that are sqrt(hidden) times as large
    )
    for index, layer in enumerate(spec.layers):
        layer.input = LayerInputSpec(
            present=True,
            place=index,
            activation=tensors.activation,
            gate=LinearSpec(TensorBinding(_name(tensors, "input_gate", index))),
            projection=LinearSpec(TensorBinding(_name(tensors, "input_projection", index))),
            norm=_norm(tensors, "input_norm", index),
        )


def _add_experts(c: Config, tensors: Tensors) -> None:
    """Experts beside the MLP of each layer; the router reads a norm of its own, and each expert has a scale."""
    number, used, size = sizes_of(c)
    experts, root = ExpertTensors(tensors, _NAMES), f32(tensors.spec.hidden_size**-0.5)
    for index, layer in enumerate(tensors.spec.layers):
        if c.is_gguf and not experts.has_experts(index):
            continue
        router = experts.router(index, RouterSpec(renormalise=True))
        scale = TensorBinding(_name(tensors, "router_scale", index), times=root)
        router.norm = NormSpec(present=True, eps=tensors.eps, weight=scale)
        router.expert_scales = TensorBinding(_name(tensors, "expert_scales", index))
        layer.moe = MoeSpec(
            number,
            used,
            router,
            _expert(experts, index, size),
            norm=_norm(tensors, "expert_norm", index),
            post_norm=_norm(tensors, "expert_post_norm", index),
            shared_post_norm=_norm(tensors, "shared_post_norm", index),
        )


def _expert(experts: ExpertTensors, index: int, size: int) -> MlpSpec:
    """Gate and up in one tensor of all experts; in a quantised checkpoint three tensors for each expert."""
    c = experts.c
    if c.is_gguf and experts.stem("ffn_gate_up_exps.weight", index) in c.tensors:
        return experts.fused(index, size, "ffn_gate_up_exps", "ffn_down_exps")
    apart = {role: f"experts.{{expert}}.{role.removeprefix('expert_')}_proj" for role in ("expert_gate", "expert_up", "expert_down")}
    if c.is_gguf or any(".experts.0." in name for name in c.tensors):
        return ExpertTensors(experts.tensors, _NAMES | apart).expert(index, size)
    gate, up = (
        LinearSpec(TensorBinding(experts.stem("experts.gate_up_proj", index), RowOrder(first, size, 2 * size))) for first in (0, size)
    )
    down = LinearSpec(TensorBinding(experts.stem("experts.down_proj", index)))
    return MlpSpec(activation=experts.tensors.activation, size=size, gate=gate, up=up, down=down)
