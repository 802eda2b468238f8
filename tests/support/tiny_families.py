"""Tiny random models of transformers' own dense families, with logits in fp32 and float64.

Each has what its family has: windows and original lengths shorter than the text, biases, multipliers. All norms and biases are
perturbed: at their initial values of 1 and 0 they would test nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import reference_float64
from llmi.testing.tiny import byte_tokenizer

Array = np.ndarray[Any, Any]
NUM_TOKENS, VOCAB, WINDOW, ORIGINAL = 300, 264, 24, 64
TOKENS = [(position * 37 + 11) % 257 for position in range(NUM_TOKENS)]

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
#: As GPT-2 and its like name them; there is no head_dim.
OLD_SIZES = {
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 4,
    "n_positions": 512,
    "n_inner": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": ORIGINAL,
    "short_factor": [1.0 + 0.05 * i for i in range(8)],
    "long_factor": [1.5 + 0.5 * i for i in range(8)],
}
MULTIPLIERS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.1, "logits_scaling": 2.0}
WINDOWED = {"sliding_window": WINDOW}

#: Names of transformers' model types, with a variant's behind a hyphen, and what their config says beside the sizes.
FAMILIES: dict[str, dict[str, Any]] = {
    # tier 1
    "llama": {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 2} | WINDOWED,
    "qwen3": {},
    "gemma": {},
    "gemma2": {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0} | WINDOWED,
    "gemma3_text": {
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
    }
    | WINDOWED,
    "mistral": WINDOWED,
    "ministral3": {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
    "phi3": {"rope_parameters": LONGROPE, "original_max_position_embeddings": ORIGINAL},
    "smollm3": {},
    "olmo": {"clip_qkv": 0.8},
    "olmo2": {},
    "olmo3": {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 500000.0}, "full_attention": YARN}}
    | WINDOWED,
    "gpt2": OLD_SIZES,
    "gpt_neox": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    # tier 2
    "granite": MULTIPLIERS,
    "granite_swa": {"layer_rope_theta": [0, 10000.0, 10000.0, 0]} | MULTIPLIERS | WINDOWED,
    "glm": {},
    "glm4": {},
    "nemotron": {},
    "cohere": {"logit_scale": 0.5},
    "cohere2": {"logit_scale": 0.5} | WINDOWED,
    "exaone4": WINDOWED,
    "apertus": {"rope_parameters": LLAMA3},
    "seed_oss": {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
    "hunyuan_v1_dense": {},
    "ernie4_5": {"use_bias": True},
    "helium": {},
    "arcee": {},
    "internlm3": {"attention_bias": True, "mlp_bias": True},
    "nanochat": {"final_logit_softcapping": 5.0},
    "starcoder2": WINDOWED,
    "stablelm": {"use_qkv_bias": True, "qk_layernorm": True, "use_parallel_residual": True},
    "gpt_bigcode": OLD_SIZES,
    "phi": {},
    "gptj": OLD_SIZES | {"rotary_dim": 8},
    "bitnet": {},
    # tier 3
    "bloom": {"n_layer": 4, "n_head": 4},
    "persimmon": {},
}

#: Models with experts. Of each seed every router is at least NEAREST from another choice (test_expert_cards.py).
EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2} | WINDOWED,
    "qwen2_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "mlp_only_layers": [1],
    },
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 2,
        "norm_topk_prob": True,
    },
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "gpt_oss": {
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "swiglu_limit": 0.8,
        "rope_parameters": YARN | {"rope_theta": 150000.0, "truncate": False},
    }
    | WINDOWED,
    "granitemoe": {"num_local_experts": 8, "num_experts_per_tok": 3} | MULTIPLIERS,
    "granitemoeshared": {"num_local_experts": 8, "num_experts_per_tok": 3, "shared_intermediate_size": 48} | MULTIPLIERS,
    "granitemoehybrid": {
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "shared_intermediate_size": 48,
        "layer_types": ["full_attention"] * 4,
        "mamba_n_heads": 8,
        "position_embedding_type": "rope",
    }
    | MULTIPLIERS,
    "phimoe": {
        "num_local_experts": 8,
        "attention_bias": True,
        "lm_head_bias": True,
        "router_jitter_noise": 0.2,
        # transformers' class takes the long factor of attention with the short ones of the frequencies: here they are the same
        "rope_parameters": LONGROPE | {"long_factor": LONGROPE["short_factor"], "short_mscale": 1.3, "long_mscale": 1.25},
    }
    | WINDOWED,
    "ernie4_5_moe": {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32, "intermediate_size": 128},
    "glm4_moe": {
        "n_routed_experts": 8,
        "n_group": 4,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "use_qk_norm": True,
        "attention_bias": True,
        "routed_scaling_factor": 1.5,
    },
}
#: Models with layers that have states.
STATES: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "conv"], "conv_bias": True, "conv_L_cache": 4, "block_multiple_of": 32},
    "lfm2_moe": {
        "layer_types": ["conv", "conv", "full_attention", "conv"],
        "num_dense_layers": 1,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "routed_scaling_factor": 1.5,
    },
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
DELTA_EXPERTS = DELTA | {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
#: Granite 4 with Mamba-2 layers: changes of granitemoehybrid.
MAMBA: dict[str, Any] = {
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 20,
    "mamba_d_head": 16,
    "mamba_d_conv": 3,
    "mamba_proj_bias": True,
    "time_step_limit": [0.3, 1.5],
    "shared_intermediate_size": 48,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "embedding_multiplier": 6.0,
    "logits_scaling": 3.0,
    "position_embedding_type": "rope",
}
#: Models with recurrences.
RECURRENT: dict[str, dict[str, Any]] = {"qwen3_5_text": DELTA, "qwen3_5_moe_text": DELTA_EXPERTS, "qwen3_next": DELTA_EXPERTS}
#: Models whose keys and values come from a latent; most have experts.
_LATENT_SIZES = {
    "head_dim": 16,
    "num_key_value_heads": 4,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}
_LATENT_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 2}
LATENTS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {
        "q_lora_rank": None,
        "first_k_dense_replace": 1,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
    }
    | _LATENT_SIZES
    | _LATENT_EXPERTS,
    "deepseek_v3": {
        "q_lora_rank": 32,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "attention_bias": True,
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    }
    | _LATENT_SIZES
    | _LATENT_EXPERTS,
    "glm4_moe_lite": {"q_lora_rank": 32, "n_group": 1, "topk_group": 1} | _LATENT_SIZES | _LATENT_EXPERTS,
    "minicpm3": {"q_lora_rank": 32, "rope_parameters": LONGROPE} | _LATENT_SIZES,
}
NEAREST = 1e-4
#: Gemma 4 as its sizes are made: in global layers heads are larger, and there may be fewer for keys, which are the values.
_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "global_head_dim": 32,
    "final_logit_softcapping": 5.0,
    "hidden_size_per_layer_input": 0,
} | WINDOWED
_FEW_KEYS = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
GEMMA4: dict[str, dict[str, Any]] = {
    "gemma4_text-e2b": _GEMMA4
    | {
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCAB,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "gemma4_text-31b": _GEMMA4 | _FEW_KEYS,
    "gemma4_text-26b": _GEMMA4
    | _FEW_KEYS
    | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32}
    | {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
}
SEEDS = {
    "qwen3_5_moe_text": 9,
    "gemma4_text-26b": 26,
    "qwen2_moe": 2,
    "granitemoeshared": 1,
    "ernie4_5_moe": 2,
    "glm4_moe": 2,
    "lfm2_moe": 1,
    "deepseek_v2": 1,
    "deepseek_v3": 2,
}

UNEVEN = {"sliding_window": WINDOW + 1}
#: Mistakes that a reader of these families could make, as changes of the config: each must move the logits, else the tiny model does not
#: test it.
MISTAKES: dict[str, list[dict[str, Any]]] = {
    "llama": [
        {"rope_parameters": LLAMA3 | {"low_freq_factor": 2.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    ],
    "qwen2": [UNEVEN, {"max_window_layers": 3, "layer_types": None}, {"use_sliding_window": False, "layer_types": None}],
    "gemma2": [
        UNEVEN,
        {"attn_logit_softcapping": None},
        {"final_logit_softcapping": None},
        {"query_pre_attn_scalar": 16},
        {"hidden_activation": "gelu"},
    ],
    "gemma3_text": [UNEVEN, {"query_pre_attn_scalar": 16}],
    "mistral": [UNEVEN],
    "ministral3": [
        {"rope_parameters": FAMILIES["ministral3"]["rope_parameters"] | change}
        for change in ({"llama_4_scaling_beta": 0.0}, {"beta_slow": 0.25}, {"attention_factor": 1.2})
    ],
    "phi3": [
        {"rope_parameters": LONGROPE | {"long_factor": LONGROPE["short_factor"]}},
        {"rope_parameters": LONGROPE | {"attention_factor": 1.0}},
    ],
    "smollm3": [{"no_rope_layers": [1, 1, 1, 1]}, {"no_rope_layers": [0, 0, 0, 1]}],
    "olmo3": [
        UNEVEN,
        {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 500000.0} for kind in ("sliding_attention", "full_attention")}},
    ],
    "gpt2": [{"activation_function": "gelu"}],
    "gpt_neox": [
        {"use_parallel_residual": False},
        {"hidden_act": "gelu_new"},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    ],
    "granite": [{name: 1.0} for name in MULTIPLIERS],
    "granite_swa": [UNEVEN, {"layer_rope_theta": [10000.0] * 4}, *({name: 1.0} for name in MULTIPLIERS)],
    "olmo": [{"clip_qkv": None}, {"clip_qkv": 0.9}],
    "glm": [{"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}],
    "glm4": [{"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}],
    "nemotron": [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
        {"hidden_act": "relu"},
    ],
    "cohere": [{"logit_scale": 1.0}],
    "cohere2": [UNEVEN, {"logit_scale": 1.0}],
    "exaone4": [UNEVEN],
    "apertus": [{"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}],
    "arcee": [{"hidden_act": "relu"}],
    "nanochat": [{"final_logit_softcapping": None}],
    "starcoder2": [UNEVEN, {"hidden_act": "gelu"}],
    "phi": [{"hidden_act": "gelu"}, {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}],
    "gptj": [{"rotary_dim": 16}, {"activation_function": "gelu"}],
    "bitnet": [{"hidden_act": "silu"}],
    "persimmon": [{"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}],
}


@dataclasses.dataclass(frozen=True)
class Family:
    """A tiny model's directory, and transformers' logits of TOKENS, [NUM_TOKENS, VOCAB]."""

    path: Path
    fp32: Array
    float64: Array


def config_of(name: str, **changes: Any) -> Any:
    """The config, as an object of the family's class."""
    from transformers import AutoConfig

    special = (FAMILIES | EXPERTS | STATES | RECURRENT | GEMMA4 | LATENTS)[name]
    sizes = {} if special.items() >= OLD_SIZES.items() else SIZES
    if name in ("bloom", "opt"):
        sizes = {key: value for key, value in sizes.items() if key != "head_dim"}
    return AutoConfig.for_model(name.split("-")[0], **(sizes | special | changes))


def make(name: str, folder: Path, **changes: Any) -> Family:
    """Once for equal arguments and one version of transformers; what is there already is read."""
    import transformers

    recipe = json.dumps([name, config_of(name, **changes).to_dict(), transformers.__version__, Path(__file__).read_text()], default=str)
    target = folder / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _write(name, Path(scratch) / "model", changes)
            try:
                (Path(scratch) / "model").rename(target)
            except OSError:
                assert target.exists(), "else another process has made it meanwhile"
    stored = np.load(target / "logits.npz")
    return Family(target, stored["fp32"], stored["float64"])


def draw_parameters(model: Any) -> None:
    """Matrices anew, so that rows keep their size; vectors a little off what they are."""
    import torch

    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.normal_(0, 1.2 / parameter.shape[-1] ** 0.5)
        else:
            parameter.add_(0.1 * torch.randn_like(parameter))


def _write(name: str, path: Path, changes: dict[str, Any]) -> None:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) + SEEDS.get(name, 0))
    config = config_of(name, **changes)
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        draw_parameters(model)
        for part, tensor in (*model.named_parameters(), *model.named_buffers()):
            if part.endswith(("e_score_correction_bias", "expert_bias")):  # one is a buffer, one has two dimensions
                tensor.normal_(0, 0.1)
            if part.endswith("layer_scalar"):
                tensor.uniform_(0.6, 1.3)
            if part.endswith("router.scale"):  # which is divided by the root of the hidden size
                tensor.mul_(8)
        model.save_pretrained(path)
        (path / "tokenizer.json").write_text(json.dumps(byte_tokenizer(257)))
        fp32 = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    np.savez(path / "logits.npz", fp32=fp32, float64=reference_float64.logits(reference_float64.in_float64(model), TOKENS))
