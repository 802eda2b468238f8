"""Families with LayerNorm, one block after the other: GPT-2, BigCode, OPT, Bloom, StarCoder2, Nemotron, Persimmon; OLMo 1."""

from __future__ import annotations

import math

from llmi.families.config import Config
from llmi.families.dense import Style, Tensors, dense
from llmi.families.layers import bias, f32, use_one_window
from llmi.families.llama_like import attention_biases
from llmi.families.parallel import EVERYWHERE, NO_GROUPS
from llmi.families.registry import family
from llmi.families.spec import ModelSpec, NormSpec

GPT2_KEYS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "layer_norm_eps": "layer_norm_epsilon",
}
GPT2_NAMES = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "layer": "transformer.h.{}.",
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
    "qkv": "attn.c_attn",
    "output": "attn.c_proj",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
TIED = {"tie_word_embeddings": True}


def learned(c: Config, style: Style, offset: int = 0) -> ModelSpec:
    """A decoder with a vector for each position."""
    spec = dense(c, style, theta=None)
    spec.embedding.positions, spec.embedding.position_offset = Tensors(c, style, spec).tensor("positions"), offset
    return spec


def gpt2_scales(c: Config, spec: ModelSpec) -> None:
    """GPT-2's two switches of the attention scale."""
    is_scaled, by_layer = c.boolean("scale_attn_weights", True), c.boolean("scale_attn_by_inverse_layer_idx", False)
    for index, layer in enumerate(spec.layers):
        layer.attention.scale = (layer.attention.scale if is_scaled else 1.0) / (index + 1 if by_layer else 1)
    spec.ignored_tensors += ["transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"]


@family("gpt2", hf="GPT2LMHeadModel", gguf="gpt2", keys=GPT2_KEYS | NO_GROUPS, defaults=TIED | {"max_position_embeddings": 1024})
def gpt2(c: Config) -> ModelSpec:
    """GPT-2: matrices are stored as [columns, rows]. Radford et al., 2019."""
    style = Style(norm="layer", norm_bias=True, gated=False, activation="gelu_new", biases=EVERYWHERE, transposed=True, names=GPT2_NAMES)
    spec = learned(c, style)
    gpt2_scales(c, spec)
    return spec


@family(
    "gpt_bigcode",
    hf="GPTBigCodeForCausalLM",
    gguf="starcoder",
    keys=GPT2_KEYS | {"head_dim": ()},
    defaults=TIED | {"max_position_embeddings": 1024},
)
def gpt_bigcode(c: Config) -> ModelSpec:
    """SantaCoder and StarCoder: GPT-2 with one head of keys and values. Li et al., 2023."""
    is_multi_query = c.boolean("multi_query", True)
    style = Style(
        norm="layer",
        norm_bias=True,
        gated=False,
        activation="gelu_pytorch_tanh",
        biases=EVERYWHERE,
        fused_heads=not is_multi_query,
        names=GPT2_NAMES,
    )
    kv_heads = 1 if is_multi_query else c.positive("num_attention_heads")
    if c.optional_integer("num_key_value_heads") not in (None, kv_heads):
        c.contradiction(c.name("num_key_value_heads"), c.name("multi_query"))
    spec = learned(c.with_default("num_key_value_heads", kv_heads), style)
    gpt2_scales(c, spec)
    return spec


@family("opt", hf="OPTForCausalLM", keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"} | NO_GROUPS, defaults=TIED)
def opt(c: Config) -> ModelSpec:
    """OPT: learned positions from row 2 on, ReLU. The 350M with its norms after the blocks is refused. Zhang et al., 2022."""
    layer = {
        "attention_norm": "self_attn_layer_norm",
        "mlp_norm": "final_layer_norm",
        "output": "self_attn.out_proj",
        "up": "fc1",
        "down": "fc2",
    }
    top = {
        name: f"model.decoder.{stem}"
        for name, stem in {
            "embedding": "embed_tokens",
            "positions": "embed_positions",
            "final_norm": "final_layer_norm",
            "layer": "layers.{}.",
        }.items()
    }
    has, has_weights = c.boolean("enable_bias", True), c.boolean("layer_norm_elementwise_affine", True)
    biases = {"qkv": has, "output": has, "mlp": has}
    style = Style(
        norm="layer", norm_bias=has_weights, norm_weight=has_weights, gated=False, activation="relu", biases=biases, names=layer | top
    )
    spec = learned(c, style, offset=2)
    if not c.boolean("do_layer_norm_before", True):
        c.unsupported("do_layer_norm_before", "do_layer_norm_before = false (norms on the residual path) is not run")
    if c.integer("word_embed_proj_dim", spec.hidden_size) != spec.hidden_size:
        c.unsupported("word_embed_proj_dim", "embeddings of another width (word_embed_proj_dim) are not run")
    if c.boolean("_remove_final_layer_norm", False):
        spec.final_norm = NormSpec()
    return spec


def slopes(num_heads: int) -> list[float]:
    """ALiBi's slopes: powers of 2^(-8 / n), n the power of two at or below the number of heads; further heads take those between. Press et
    al., 2022."""
    whole = 2 ** math.floor(math.log2(num_heads))
    base, between = 2.0 ** -(2.0 ** -(math.log2(whole) - 3)), 2.0 ** -(2.0 ** -(math.log2(2 * whole) - 3))
    return [f32(base**power) for power in range(1, whole + 1)] + [f32(between**power) for power in range(1, 2 * (num_heads - whole), 2)]


@family(
    "bloom",
    hf=["BloomForCausalLM"],
    gguf="bloom",
    defaults=TIED | {"max_position_embeddings": 2048},
    keys={
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "layer_norm_eps": "layer_norm_epsilon",
        "max_position_embeddings": "seq_length",
        "hidden_size": "n_embed",
    }
    | NO_GROUPS
    | {"intermediate_size": ()},
)
def bloom(c: Config) -> ModelSpec:
    """Bloom: a bias that grows with the key's position (ALiBi), and a norm of the embedding. Le Scao et al., 2022."""
    top = {"embedding": "word_embeddings", "embedding_norm": "word_embeddings_layernorm", "final_norm": "ln_f", "layer": "h.{}."}
    layer = {
        "qkv": "self_attention.query_key_value",
        "output": "self_attention.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    }
    names = {name: f"transformer.{stem}" for name, stem in top.items()} | layer
    style = Style(norm="layer", norm_bias=True, gated=False, activation="gelu_new", biases=EVERYWHERE, fused_heads=True, names=names)
    spec = dense(c, style, theta=None)
    spec.embedding.norm = Tensors(c, style, spec).norm("embedding_norm")
    if c.boolean("apply_residual_connection_post_layernorm", False):
        c.unsupported("apply_residual_connection_post_layernorm", "apply_residual_connection_post_layernorm = true is not run")
    for block in spec.layers:
        block.attention.linear_biases = slopes(spec.num_heads)
    return spec


@family(
    "starcoder2",
    hf="Starcoder2ForCausalLM",
    gguf="starcoder2",
    keys={"layer_norm_eps": "norm_epsilon"},
    defaults=TIED | {"num_key_value_heads": 2, "max_position_embeddings": 4096},
)
def starcoder2(c: Config) -> ModelSpec:
    """StarCoder2: a window in every layer. Lozhkov et al., 2024."""
    has = bias(c, "use_bias", True)
    style = Style(
        norm="layer",
        norm_bias=True,
        gated=False,
        activation="gelu_pytorch_tanh",
        biases={"qkv": has, "output": has, "mlp": has},
        names={"up": "mlp.c_fc", "down": "mlp.c_proj"},
    )
    spec = dense(c, style)
    use_one_window(c, spec, None if c.is_gguf else c.optional_integer("sliding_window"))
    return spec


@family(
    "nemotron",
    hf="NemotronForCausalLM",
    gguf="nemotron",
    keys={"layer_norm_eps": "norm_eps"},
    defaults={"max_position_embeddings": 4096, "head_dim": 128},
)
def nemotron(c: Config) -> ModelSpec:
    """Nemotron and Minitron: norm weights minus 1, squared ReLU, half of each head rotated. Parmar et al., 2024."""
    biases = attention_biases(c) | {"mlp": bias(c, "mlp_bias")}
    return dense(c, Style(norm="layer", norm_bias=True, plus_one=True, gated=False, activation="relu2", biases=biases), partial=0.5)


@family("olmo", hf="OlmoForCausalLM", gguf="olmo", keys={"layer_norm_eps": ()})
def olmo1(c: Config) -> ModelSpec:
    """OLMo 1: norms without weights; queries, keys and values may be clipped. Groeneveld et al., 2024."""
    spec = dense(c, Style(norm="layer", norm_weight=False, biases={} if c.is_gguf else attention_biases(c), gguf_pairs=True))
    clip = c.optional_number("clip_qkv")
    if clip is not None and not (clip > 0 or (c.is_gguf and clip == 0)):
        c.refuse("clip_qkv", f"{c.name('clip_qkv')} must be positive, or null for none")
    for layer in spec.layers:
        layer.attention.clip = clip or 0.0
    return spec


@family("persimmon", hf="PersimmonForCausalLM", keys=NO_GROUPS, defaults={"max_position_embeddings": 16384})
def persimmon(c: Config) -> ModelSpec:
    """Persimmon: queries, keys and values are stored head by head; LayerNorm of queries and keys. Elsen et al., 2023."""
    names = {
        "qkv": "self_attn.query_key_value",
        "output": "self_attn.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
        "final_norm": "model.final_layernorm",
        "query_norm": "self_attn.q_layernorm",
        "key_norm": "self_attn.k_layernorm",
    }
    normed = c.boolean("qk_layernorm", True)
    style = Style(
        norm="layer", norm_bias=True, gated=False, activation="relu2", biases=EVERYWHERE, fused_heads=True, head_norms=normed, names=names
    )
    return dense(c, style, partial=0.5)
