"""A spec from a config, or from metadata, without a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmi.families import ModelSpec
from llmi.families.reader import Reading

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
    "head_dim": 16,
}
LOCAL_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
SMALL_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
#: What the architectures with experts have besides.
EXPERTS: dict[str, dict[str, Any]] = {
    "MixtralForCausalLM": LOCAL_EXPERTS,
    "Qwen2MoeForCausalLM": SMALL_EXPERTS,
    "Qwen3MoeForCausalLM": SMALL_EXPERTS,
    "Qwen3VLMoeTextModel": SMALL_EXPERTS,
    "OlmoeForCausalLM": {"num_experts": 8, "num_experts_per_tok": 2},
    "GptOssForCausalLM": LOCAL_EXPERTS,
    "GraniteMoeForCausalLM": LOCAL_EXPERTS,
    "GraniteMoeSharedForCausalLM": LOCAL_EXPERTS | {"shared_intermediate_size": 48},
    "GraniteMoeHybridForCausalLM": LOCAL_EXPERTS | {"layer_types": ["attention"] * 4},
    "PhiMoEForCausalLM": LOCAL_EXPERTS,
    "Ernie4_5_MoeForCausalLM": {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32},
    "Qwen3_5MoeForCausalLM": SMALL_EXPERTS,
    "Lfm2MoeForCausalLM": SMALL_EXPERTS,
    "Qwen3NextForCausalLM": SMALL_EXPERTS,
    "Glm4MoeForCausalLM": {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1},
}
_LATENT = {"num_key_value_heads": 4, "kv_lora_rank": 48, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 16}
_ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1}
EXPERTS |= {
    "DeepseekV2ForCausalLM": _LATENT | _ROUTED,
    "DeepseekV3ForCausalLM": _LATENT | _ROUTED | {"n_group": 2, "topk_group": 1},
    "Glm4MoeLiteForCausalLM": _LATENT | _ROUTED,
    "MiniCPM3ForCausalLM": _LATENT | {"scale_emb": 2, "dim_model_base": 32, "scale_depth": 1.4},
}
_TWO_KINDS = {f"{kind}_attention": {"rope_type": "default", "rope_theta": 1e4} for kind in ("full", "sliding")}
EXPERTS |= {f"ModernBert{name}": {"rope_parameters": _TWO_KINDS} for name in ("Model", "ForMaskedLM", "ForSequenceClassification")}
GGUF_EXPERTS = [
    "deepseek2",
    "qwen3next",
    "qwen2moe",
    "qwen3moe",
    "qwen3vlmoe",
    "olmoe",
    "gpt-oss",
    "granitemoe",
    "ernie4_5-moe",
    "glm4moe",
    "qwen35moe",
    "lfm2moe",
]
Shapes = Mapping[str, tuple[int, ...]]


def read_config(
    architecture: str,
    more: dict[str, Any] | None = None,
    *,
    tensors: Shapes | None = None,
    changes: dict[str, Any] | None = None,
    max_model_len: int | None = None,
) -> ModelSpec:
    """Of a small config with these keys besides the sizes (and experts, where the architecture has them); None: without the key."""
    values = SIZES | EXPERTS.get(architecture, {}) | {"architectures": [architecture]} | (more or {})
    values = {key: value for key, value in values.items() if value is not None}
    return Reading(values, "config.json", tensors or {}, changes or {}, max_model_len).of_config_json()


def read_metadata(
    architecture: str, more: dict[str, Any] | None = None, *, tensors: Shapes | None = None, max_model_len: int | None = None
) -> ModelSpec:
    """Of a small GGUF file with this metadata and these tensors besides the embedding."""
    sizes: dict[str, Any] = {
        "embedding_length": 64,
        "feed_forward_length": 96,
        "block_count": 4,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "context_length": 512,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    if architecture in GGUF_EXPERTS:
        sizes |= {"expert_count": 8, "expert_used_count": 2}
    if architecture == "glm4moe":
        sizes |= {"expert_shared_count": 1, "expert_weights_norm": True}
    if architecture in ("deepseek2", "minicpm3"):
        sizes |= {"attention.kv_lora_rank": 48, "attention.key_length": 48, "attention.value_length": 16, "rope.dimension_count": 16}
    if architecture == "deepseek2":
        sizes |= {"expert_shared_count": 1, "expert_feed_forward_length": 32, "leading_dense_block_count": 1}
    if architecture in ("bert", "modern-bert"):
        sizes |= {"attention.layer_norm_epsilon": 1e-5, "attention.layer_norm_rms_epsilon": None, "attention.causal": False}
    if architecture in ("modern-bert", "gemma-embedding"):
        sizes |= {"attention.sliding_window": 128}
    if architecture in ("qwen35", "qwen35moe", "qwen3next"):
        sizes |= {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 64}
    if architecture in ("gpt-oss", "gemma4"):
        sizes |= {"attention.sliding_window": 128}
    if architecture == "gemma4":
        sizes |= {"attention.key_length_swa": 16}
    values = {f"{architecture}.{key}": value for key, value in sizes.items()} | {"general.architecture": architecture} | (more or {})
    values = {key: value for key, value in values.items() if value is not None}
    shapes = {"token_embd.weight": (264, 64)} | dict(tensors or {})
    return Reading(values, "model.gguf", shapes, {}, max_model_len).of_gguf()
