"""Families whose experts have a plain router: the softmax of all, of which the largest are taken."""

from __future__ import annotations

from llmi.families.config import Config
from llmi.families.dense import Style, Tensors, dense
from llmi.families.experts import HF_EXPERTS, ExpertTensors, every_step, no_windows, sizes_of, use_mixtral_experts
from llmi.families.layers import bias, use_one_window
from llmi.families.llama_like import LLAMA_7B, attention_biases
from llmi.families.registry import family
from llmi.families.spec import ModelSpec, MoeSpec, RouterSpec

LOCAL = {"num_experts": ("num_local_experts", "num_experts")}


@family(
    "mixtral",
    hf="MixtralForCausalLM",
    keys=LOCAL,
    text_defaults=LLAMA_7B | {"intermediate_size": 14336},
    defaults={
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
)
def mixtral(c: Config) -> ModelSpec:
    """Mixtral: 8 experts of which 2 are taken, their weights renormalised. Its GGUF files are Llama's. Jiang et al., 2024."""
    style = Style(experts=True)
    spec = dense(c, style, theta=1e6)
    use_one_window(c, spec, c.optional_integer("sliding_window"))
    use_mixtral_experts(c, spec, style)
    return spec


def qwen(c: Config, style: Style, *, renormalise: bool, shared: bool = False, stacked: bool = False) -> ModelSpec:
    """The common part of Qwen's. stacked: config.json's files have two tensors of all experts of a layer."""
    spec = dense(c, style)
    no_windows(c, spec)
    number, used, size = sizes_of(c)
    experts = ExpertTensors(Tensors(c, style, spec), HF_EXPERTS, "mlp.shared_expert")
    router = RouterSpec(renormalise=renormalise)
    shared_size = c.positive("shared_expert_intermediate_size", 5632) if shared else 0
    layers = range(len(spec.layers))
    for index in [i for i in layers if experts.has_experts(i)] if c.is_gguf else every_step(c, len(layers)):
        expert = experts.transposed(index, size) if stacked and not c.is_gguf else experts.expert(index, size)
        moe = MoeSpec(number, used, experts.router(index, router), expert)
        if shared:
            moe.shared_gate = experts.linear(experts.shared_names["shared_gate"], index)
        experts.set(index, moe, experts.shared(index, shared_size))
    return spec


@family(
    "qwen2_moe",
    hf="Qwen2MoeForCausalLM",
    gguf="qwen2moe",
    defaults={"max_position_embeddings": 32768, "num_key_value_heads": 16},
)
def qwen2_moe(c: Config) -> ModelSpec:
    """Qwen 1.5 and 2 with experts: a shared expert with a gate, weights that are not renormalised. Qwen Team, 2024."""
    style = Style(biases={"qkv": bias(c, "qkv_bias", True)}, experts=True)
    return qwen(c, style, renormalise=not c.is_gguf and c.boolean("norm_topk_prob", False), shared=True)


@family(
    "qwen3_moe",
    hf="Qwen3MoeForCausalLM",
    gguf="qwen3moe",
    keys={"num_experts": ("num_experts", "num_local_experts")},
    defaults={"max_position_embeddings": 32768, "num_key_value_heads": 4},
)
def qwen3_moe(c: Config) -> ModelSpec:
    """Qwen 3 with experts: queries and keys normed by head, weights renormalised where norm_topk_prob says so. Yang et al., 2025."""
    style = Style(head_norms=True, biases=attention_biases(c), experts=True)
    return qwen(c, style, renormalise=c.is_gguf or c.boolean("norm_topk_prob", False))


@family(
    "qwen3_vl_moe",
    hf="Qwen3VLMoeTextModel",
    model_type="qwen3_vl_moe_text",
    gguf="qwen3vlmoe",
    keys={"num_experts": ("num_experts", "num_local_experts")},
    defaults={"max_position_embeddings": 128000, "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4},
)
def qwen3_vl_moe(c: Config) -> ModelSpec:
    """The text model of Qwen3-VL with experts: Qwen 3's, whose matrices lie in two tensors of a layer. Weights are always renormalised."""
    if not c.is_gguf and not c.boolean("norm_topk_prob", True):
        c.unsupported("norm_topk_prob", "norm_topk_prob: false, which transformers' class of this family does not read")
    return qwen(c, Style(head_norms=True, biases=attention_biases(c), experts=True), renormalise=True, stacked=True)


@family(
    "olmoe",
    hf="OlmoeForCausalLM",
    gguf="olmoe",
    keys={"num_experts": ("num_experts", "num_local_experts")},
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
)
def olmoe(c: Config) -> ModelSpec:
    """OLMoE: 64 small experts of which 8 are taken; queries and keys are normed as a whole. Muennighoff et al., 2024."""
    style = Style(head_norms=True, biases=attention_biases(c), experts=True)
    spec = dense(c, style)
    if c.optional_number("clip_qkv"):
        c.unsupported("clip_qkv", f"{c.name('clip_qkv')}: queries and keys that are clipped behind their norms")
    number, used, size = sizes_of(c, "intermediate_size")
    experts = ExpertTensors(Tensors(c, style, spec), HF_EXPERTS)
    router = RouterSpec(renormalise=not c.is_gguf and c.boolean("norm_topk_prob", False))
    for index, layer in enumerate(spec.layers):
        layer.attention.norms.span = "projection"
        experts.set(index, MoeSpec(number, used, experts.router(index, router), experts.expert(index, size)))
    return spec
