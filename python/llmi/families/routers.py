"""Families of experts with routers of their own: gpt-oss, Granite, Phi, ERNIE 4.5, GLM-4.5."""

from __future__ import annotations

import dataclasses

from llmi.families.config import Config
from llmi.families.dense import Style, Tensors, dense
from llmi.families.experts import BLOCK_SPARSE, HF_EXPERTS, MAX_SIZE, ExpertTensors, between, grouped_sigmoids, sizes_of
from llmi.families.layers import FULL, SLIDING, bias, kinds_of, multiply, positive, use_one_window, use_windows
from llmi.families.llama_like import attention_biases
from llmi.families.registry import family
from llmi.families.rope import rope_of
from llmi.families.spec import LinearSpec, MlpSpec, ModelSpec, MoeSpec, RouterSpec, RowOrder, TensorBinding

#: What transformers' class takes where a file names no scaling.
GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


@family(
    "gpt_oss",
    hf="GptOssForCausalLM",
    gguf="gpt-oss",
    keys={"num_experts": ("num_local_experts", "num_experts"), "num_experts_per_tok": ("num_experts_per_tok", "experts_per_token")},
    defaults={"head_dim": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": 128, "max_position_embeddings": 131072},
)
def gpt_oss(c: Config) -> ModelSpec:
    """gpt-oss: windows in every second layer, attention sinks, experts with biases and a clamped SwiGLU. OpenAI, 2025."""
    has_rope = c.is_gguf or c.has("rope_parameters") or c.has("rope_scaling")
    c = c if has_rope else c.with_default("rope_scaling", GPT_OSS_ROPE)
    c.choose("hidden_act", ["silu"], "silu")
    has = bias(c, "attention_bias", True)
    names = {"sinks": "self_attn.sinks"}
    gguf_norms = {"mlp_norm": "post_attention_norm"}
    style = Style(biases={"qkv": has, "output": has}, experts=True, names=names, gguf_names=gguf_norms)
    spec = dense(c, style, theta=None)
    spec.ropes = [rope_of(c, spec.head_dim, 150000.0, truncate=False)]
    number, used, size = sizes_of(c, "intermediate_size")
    use_windows(
        c,
        spec,
        kinds_of(c, spec, [FULL if index % 2 else SLIDING for index in range(len(spec.layers))]),
        c.optional_integer("sliding_window"),
    )
    tensors = Tensors(c, style, spec)
    experts = ExpertTensors(tensors, {"router": "mlp.router"})
    clamp = [positive(c, "swiglu_limit", 7.0), c.number("swiglu_alpha", 1.702), 1.0]
    for index, layer in enumerate(spec.layers):
        layer.attention.rope = 0
        layer.attention.sinks = TensorBinding(tensors.stem("sinks", index) + (".weight" if c.is_gguf else ""))
        expert = experts.expert(index, size) if c.is_gguf else _interleaved(c, experts.stem("mlp.experts.", index), size)
        expert.activation, expert.activation_values = "swiglu_clamped", clamp
        router = experts.router(index, RouterSpec(score="softmax_chosen"))
        router.linear.bias = TensorBinding(router.linear.weight.name.removesuffix("weight") + "bias")
        experts.set(index, MoeSpec(number, used, router, expert))
    return spec


def _interleaved(c: Config, stem: str, size: int) -> MlpSpec:
    """gpt-oss' experts: rows of gate and up in turn; [experts, columns, rows], but for those that are packed to MXFP4."""
    description = c.find("quantization_config")
    is_packed = isinstance(description, dict) and description.get("quant_method") == "mxfp4"

    def linear(name: str, order: RowOrder) -> LinearSpec:
        return LinearSpec(TensorBinding(stem + name, order, transposed=not is_packed), TensorBinding(f"{stem}{name}_bias", order))

    gate, up = (linear("gate_up_proj", RowOrder(first, 1, 2)) for first in (0, 1))
    return MlpSpec(size=size, gate=gate, up=up, down=linear("down_proj", RowOrder()))


GRANITE_KEYS: dict[str, str | tuple[str, ...]] = {
    "num_experts": ("num_local_experts", "num_experts"),
    "shared_expert_intermediate_size": "shared_intermediate_size",
}


def granite(c: Config, shared: int, *, has_experts: bool = True) -> ModelSpec:
    """Four multipliers, the softmax of the chosen, gate and up in one tensor. Without experts the shared one, of this size, is the MLP."""
    style = Style(biases=attention_biases(c), gguf_pairs=True, experts=True)
    spec = dense(c, style)
    multiply(c, spec)
    number, used, size = sizes_of(c, "intermediate_size") if has_experts else (0, 0, 0)
    experts = ExpertTensors(Tensors(c, style, spec), {"router": "block_sparse_moe.router.layer"})
    for index in range(len(spec.layers)):
        if c.is_gguf:
            mlp = experts.shared(index, shared) if has_experts else spec.layers[index].mlp
            expert = experts.expert(index, size)
        else:
            mlp = experts.fused(index, shared, "shared_mlp.input_linear", "shared_mlp.output_linear") if shared else MlpSpec()
            expert = experts.fused(index, size, "block_sparse_moe.input_linear", "block_sparse_moe.output_linear")
        moe = MoeSpec(number, used, experts.router(index, RouterSpec(score="softmax_chosen")), expert)
        experts.set(index, moe if has_experts else MoeSpec(), mlp)
    return spec


@family(
    "granitemoe",
    hf=["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    model_type=["granitemoe", "granitemoeshared"],
    gguf="granitemoe",
    keys=GRANITE_KEYS,
    defaults={"num_experts": 8, "num_experts_per_tok": 2},
)
def granitemoe(c: Config) -> ModelSpec:
    """Granite 3 with experts: four multipliers, the softmax of the chosen; a shared expert in some. Granite Team, 2024."""
    return granite(c, between(c, "shared_expert_intermediate_size", 0, MAX_SIZE))


@family(
    "phimoe",
    hf=["PhimoeForCausalLM", "PhiMoEForCausalLM"],
    keys={"num_experts": ("num_local_experts", "num_experts"), "layer_norm_eps": ("rms_norm_eps",)},
    defaults={"num_key_value_heads": 8, "num_experts": 16, "num_experts_per_tok": 2, "max_position_embeddings": 131072},
)
def phimoe(c: Config) -> ModelSpec:
    """Phi 3.5 MoE: a sparse mixer chooses two of 16 experts; LayerNorm, biases. Its GGUF files say another model. Abdin et al., 2024."""
    biases = attention_biases(c) | {"head": bias(c, "lm_head_bias")}
    style = Style(norm="layer", norm_bias=True, biases=biases, experts=True)
    spec = dense(c, style, theta=1e6)
    use_one_window(c, spec, c.optional_integer("sliding_window"))
    scaling = c.object("rope_parameters") or c.object("rope_scaling")
    if scaling is not None and spec.rope_choice:  # its own factors instead of those that follow from the lengths
        factors = {f"longrope_{name}": positive(scaling, f"{name}_mscale", spec.ropes[0].magnitude) for name in ("short", "long")}
        spec.ropes[0].magnitude = factors[spec.rope_choice]
    number, used, size = sizes_of(c, "intermediate_size")
    if used != 2:
        c.unsupported("num_experts_per_tok", f"{c.name('num_experts_per_tok')} = {used}: the sparse mixer takes two experts")
    jitter = c.number("router_jitter_noise", 0.01)
    if jitter < 0:
        c.refuse("router_jitter_noise", f"{c.name('router_jitter_noise')} must not be negative")
    experts = ExpertTensors(Tensors(c, style, spec), BLOCK_SPARSE)
    for index in range(len(spec.layers)):
        router = experts.router(index, RouterSpec(score="sparse_mixer", mixer_threshold=2 * jitter))
        experts.set(index, MoeSpec(number, used, router, experts.expert(index, size)))
    return spec


@family(
    "ernie4_5_moe",
    hf="Ernie4_5_MoeForCausalLM",
    gguf="ernie4_5-moe",
    keys={
        "num_experts": ("moe_num_experts", "num_experts"),
        "num_experts_per_tok": ("moe_k", "num_experts_per_tok"),
        "n_shared_experts": "moe_num_shared_experts",
        "first_k_dense_replace": "moe_layer_start_index",
    },
    defaults={
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1536,
    },
)
def ernie4_5_moe(c: Config) -> ModelSpec:
    """ERNIE 4.5 with experts: a bias for the choice alone, shared experts, interleaved rotation. Baidu, 2025."""
    has = bias(c, "use_bias")
    style = Style(pairs=True, gguf_pairs=True, biases={"qkv": has, "output": has, "mlp": has}, experts=True)
    spec = dense(c, style, theta=500000.0)
    number, used, size = sizes_of(c)
    first, step, layers = between(c, "first_k_dense_replace", 1), c.positive("moe_layer_interval", 1), len(spec.layers)
    end = -1 if c.is_gguf else c.integer("moe_layer_end_index", -1)
    last = layers - 1 if end == -1 else min(end, layers - 1)
    shared = between(c, "n_shared_experts", 2) * size
    shared = c.integer("shared_expert_intermediate_size", shared) if c.is_gguf and shared else shared
    experts = ExpertTensors(Tensors(c, style, spec), HF_EXPERTS)
    spec.ignored_tensors.append("model.mtp_*")  # layers that draft further tokens
    least = 1e-12 if c.is_gguf else c.number("moe_norm_min", 1e-12)
    for index in range(first, last + 1):
        if (index + 1) % step == 0:
            router = experts.router(index, RouterSpec(renormalise=True, least_sum=least), "mlp.moe_statics.e_score_correction_bias")
            experts.set(index, MoeSpec(number, used, router, experts.expert(index, size)), experts.shared(index, shared))
    return spec


@family(
    "glm4_moe",
    hf="Glm4MoeForCausalLM",
    gguf="glm4moe",
    keys={
        "num_experts": ("n_routed_experts", "num_local_experts", "num_experts"),
        "num_nextn_predict_layers": ("num_nextn_predict_layers", "num_mtp_layers"),
    },
    defaults={
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1408,
    },
)
def glm4_moe(c: Config) -> ModelSpec:
    """GLM-4.5: sigmoid scores, a bias for the choice alone, groups by the sum of their two best, a shared expert. GLM Team, 2025."""
    drafts = between(c, "num_nextn_predict_layers", 0 if c.is_gguf else 1)
    norms = "blk.0.attn_q_norm.weight" in c.tensors if c.is_gguf else c.boolean("use_qk_norm", False)
    style = Style(biases={"qkv": bias(c, "attention_bias")}, head_norms=norms, experts=True, gguf_names={"mlp_norm": "post_attention_norm"})
    spec = dense(c, style, partial=0.5)
    if c.is_gguf:
        del spec.layers[max(len(spec.layers) - drafts, 0) :]
    number, used, size = sizes_of(c)
    if c.is_gguf and c.integer(c.gguf_key("expert_gating_func"), 2) != 2:
        c.unsupported(c.gguf_key("expert_gating_func"), "scores of this family's experts that are no sigmoids (2)")
    router = grouped_sigmoids(c, number, c.number("routed_scaling_factor", 1.0))
    experts = ExpertTensors(Tensors(c, style, spec), HF_EXPERTS)
    shared = between(c, "n_shared_experts") * size
    for index in range(between(c, "first_k_dense_replace", 0), len(spec.layers)):
        own = experts.router(index, dataclasses.replace(router), "mlp.gate.e_score_correction_bias")
        experts.set(index, MoeSpec(number, used, own, experts.expert(index, size)), experts.shared(index, shared))
    spec.ignored_tensors += [experts.stem("*", len(spec.layers) + index) for index in range(drafts)]  # they draft further tokens
    return spec
