"""Families whose attention and MLP read the same input: GPT-J, GPT-NeoX, Phi, StableLM, Cohere."""

from __future__ import annotations

from llmi.families.config import Config
from llmi.families.dense import Style, dense
from llmi.families.layers import SLIDING, bias, every, kinds_of, pattern_of, use_ropes, use_windows
from llmi.families.llama_like import attention_biases
from llmi.families.registry import family
from llmi.families.spec import ModelSpec, TensorBinding

#: Keys that transformers' classes of older families do not have: keys and values have all heads, whose size follows from the others.
NO_GROUPS: dict[str, str | tuple[str, ...]] = {"num_key_value_heads": (), "head_dim": ()}
EVERYWHERE = {"qkv": True, "output": True, "mlp": True}


@family(
    "gpt_neox",
    hf="GPTNeoXForCausalLM",
    gguf="gptneox",
    keys={"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"} | NO_GROUPS,
)
def gpt_neox(c: Config) -> ModelSpec:
    """GPT-NeoX and Pythia: two norms side by side, a quarter of each head rotated. Black et al., 2022."""
    layer = {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "qkv": "attention.query_key_value",
        "output": "attention.dense",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    }
    names = layer | {
        "embedding": "gpt_neox.embed_in",
        "final_norm": "gpt_neox.final_layer_norm",
        "head": "embed_out",
        "layer": "gpt_neox.layers.{}.",
    }
    has, is_parallel = bias(c, "attention_bias", True), c.boolean("use_parallel_residual", True)
    biases = {"qkv": has, "output": has, "mlp": True}
    style = Style(
        norm="layer",
        norm_bias=True,
        order="parallel" if is_parallel else "pre",
        gated=False,
        activation="gelu",
        fused_heads=True,
        biases=biases,
        names=names,
    )
    spec = dense(c, style, partial=0.25)
    spec.ignored_tensors += ["gpt_neox.layers.*.attention.bias", "gpt_neox.layers.*.attention.masked_bias"]
    return spec


@family(
    "gptj",
    hf="GPTJForCausalLM",
    gguf="gptj",
    keys={
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "intermediate_size": "n_inner",
        "hidden_act": "activation_function",
        "layer_norm_eps": "layer_norm_epsilon",
    }
    | NO_GROUPS,
)
def gptj(c: Config) -> ModelSpec:
    """GPT-J: one norm, interleaved rotation of a part of each head, a bias of the head. Wang and Komatsuzaki, 2021."""
    layer = {
        "attention_norm": "ln_1",
        "query": "attn.q_proj",
        "key": "attn.k_proj",
        "value": "attn.v_proj",
        "output": "attn.out_proj",
        "up": "mlp.fc_in",
        "down": "mlp.fc_out",
    }
    names = layer | {"embedding": "transformer.wte", "final_norm": "transformer.ln_f", "layer": "transformer.h.{}."}
    biases = {"mlp": True, "head": True}
    head_dim = max(1, c.positive("hidden_size") // c.positive("num_attention_heads"))
    rotary_dim = head_dim if c.is_gguf else c.optional_integer("rotary_dim") or head_dim
    style = Style(
        norm="layer",
        norm_bias=True,
        order="shared",
        gated=False,
        activation="gelu_new",
        pairs=True,
        gguf_pairs=True,
        biases=biases,
        names=names,
    )
    spec = dense(c, style, partial=rotary_dim / head_dim)
    spec.ignored_tensors += ["transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"]
    return spec


@family("phi", hf="PhiForCausalLM", gguf="phi2")
def phi(c: Config) -> ModelSpec:
    """Phi 1, 1.5 and 2: one norm, half of each head rotated, biases everywhere. Li et al., 2023."""
    names = {
        "output": "self_attn.dense",
        "up": "mlp.fc1",
        "down": "mlp.fc2",
        "final_norm": "model.final_layernorm",
        "query_norm": "self_attn.q_layernorm",
        "key_norm": "self_attn.k_layernorm",
    }
    normed = c.boolean("qk_layernorm", False)
    style = Style(
        norm="layer",
        norm_bias=True,
        order="shared",
        gated=False,
        activation="gelu_new",
        head_norms=normed,
        biases=EVERYWHERE | {"head": True},
        names=names,
    )
    return dense(c, style, partial=0.5)


@family(
    "stablelm",
    hf=["StableLmForCausalLM", "StableLMEpochForCausalLM"],
    gguf="stablelm",
    keys={"head_dim": ()},
    defaults={"max_position_embeddings": 4096},
)
def stablelm(c: Config) -> ModelSpec:
    """StableLM 2: a quarter of each head rotated; each query and key head may have a norm of its own. Bellagente et al., 2024."""
    names = {"query_norm": "self_attn.q_layernorm.norms.{head}", "key_norm": "self_attn.k_layernorm.norms.{head}"}
    normed = "blk.0.attn_q_norm.weight" in c.tensors if c.is_gguf else c.boolean("qk_layernorm", False)
    is_shared = "blk.0.ffn_norm.weight" not in c.tensors if c.is_gguf else c.boolean("use_parallel_residual", False)
    if c.is_gguf and c.boolean("use_parallel_residual", is_shared) != is_shared:
        c.unsupported("use_parallel_residual", "use_parallel_residual does not fit the tensors of the norms")
    biases = {"qkv": bias(c, "use_qkv_bias")}
    spec = dense(
        c,
        Style(norm="layer", norm_bias=True, order="shared" if is_shared else "pre", head_norms=normed, biases=biases, names=names),
        partial=0.25,
    )
    for layer in spec.layers if normed else []:
        norms = layer.attention.norms
        norms.own_weights, norms.query.bias, norms.key.bias = True, TensorBinding(), TensorBinding()
    return spec


def cohere_style(c: Config, *, normed: bool) -> Style:
    """Both have one norm without a bias, and interleaved rotation."""
    return Style(
        norm="layer", order="shared", pairs=True, gguf_pairs=True, head_norms=normed, biases={} if c.is_gguf else attention_biases(c)
    )


COHERE = {"tie_word_embeddings": True, "max_position_embeddings": 8192, "logit_scale": 0.0625}


@family("cohere", hf="CohereForCausalLM", gguf="command-r", defaults=COHERE)
def cohere(c: Config) -> ModelSpec:
    """Command-R and Aya: logits are multiplied; the largest norms each query and key head."""
    normed = "blk.0.attn_q_norm.weight" in c.tensors if c.is_gguf else c.boolean("use_qk_norm", False)
    spec = dense(c, cohere_style(c, normed=normed), theta=500000.0)
    spec.head.scale = c.number("logit_scale", 1.0)
    for layer in spec.layers:
        layer.attention.norms.own_weights = normed
    return spec


@family("cohere2", hf="Cohere2ForCausalLM", gguf="cohere2", defaults=COHERE | {"sliding_window": 4096})
def cohere2(c: Config) -> ModelSpec:
    """Command-R7B: windows in three of four layers, and only these are rotated. Cohere, 2025."""
    spec = dense(c, cohere_style(c, normed=False))
    spec.head.scale = c.number("logit_scale", 1.0)
    kinds = kinds_of(c, spec, every(4 if c.is_gguf else pattern_of(c, 4), len(spec.layers)))
    use_windows(c, spec, kinds, c.optional_integer("sliding_window"))
    use_ropes(spec, kinds, {SLIDING: spec.ropes[0]})
    return spec
