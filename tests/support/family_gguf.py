"""Tiny models of families as GGUF files, in the conventions of llama.cpp's converter: names by the gguf package's own table, rows in the
order of its rotation, norms with their shift, fused tensors taken apart."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tiny_families import MAMBA

Array = np.ndarray[Any, Any]
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}

#: general.architecture, and what the tiny model must leave out because GGUF cannot say it.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": PLAIN}),
    "qwen2": ("qwen2", {"use_sliding_window": False, "layer_types": None}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 16}),
    "gemma3_text": ("gemma3", {"query_pre_attn_scalar": 16}),
    "mistral": ("llama", {"sliding_window": None}),
    "ministral3": ("mistral3", {}),
    "phi3": ("phi3", {}),
    "smollm3": ("smollm3", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo2", {}),
    "gpt2": ("gpt2", {}),
    "gpt_neox": ("gptneox", {}),
    "granite": ("granite", {}),
    "granite_swa": ("granite_swa", {}),
    "glm4": ("glm4", {}),
    "nemotron": ("nemotron", {}),
    "cohere": ("command-r", {}),
    "cohere2": ("cohere2", {}),
    "exaone4": ("exaone4", {}),
    "apertus": ("apertus", {"rope_parameters": PLAIN}),
    "seed_oss": ("seed_oss", {}),
    "hunyuan_v1_dense": ("hunyuan-dense", {}),
    "ernie4_5": ("ernie4_5", {}),
    "arcee": ("arcee", {}),
    "starcoder2": ("starcoder2", {"sliding_window": None}),
    "stablelm": ("stablelm", {}),
    "gpt_bigcode": ("starcoder", {}),
    "phi": ("phi2", {}),
    "gptj": ("gptj", {}),
    "bitnet": ("bitnet", {}),
    "bloom": ("bloom", {}),
    "gemma": ("gemma", {}),
    "olmo": ("olmo", {}),
    "glm": ("chatglm", {}),
    "internlm3": ("llama", {}),
    "lfm2": ("lfm2", {"conv_bias": False}),
    "qwen3_5_text": ("qwen35", {"linear_num_key_heads": 4}),  # with fewer of them value heads change places
}
#: The same of models with experts. llama.cpp has no layers without experts between those of Qwen's, and one limit of gpt-oss' SwiGLU.
EXPERTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("llama", {"sliding_window": None}),
    "qwen2_moe": ("qwen2moe", {"mlp_only_layers": []}),
    "qwen3_moe": ("qwen3moe", {"decoder_sparse_step": 1}),
    "olmoe": ("olmoe", {}),
    "gpt_oss": ("gpt-oss", {"swiglu_limit": 7.0}),
    "granitemoe": ("granitemoe", {}),
    "granitemoeshared": ("granitemoe", {}),
    "ernie4_5_moe": ("ernie4_5-moe", {}),
    "glm4_moe": ("glm4moe", {}),
    "lfm2_moe": ("lfm2moe", {}),
    "qwen3_5_moe_text": ("qwen35moe", {"linear_num_key_heads": 4}),
    "qwen3_next": ("qwen3next", {}),
    "granitemoehybrid": ("granitehybrid", {**MAMBA, "time_step_limit": [0.0, float("inf")], "mamba_proj_bias": False}),
}
#: The same of models with a latent. MiniCPM3's files have no factor of the rotation.
LATENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": ("deepseek2", {}),
    "deepseek_v3": ("deepseek2", {"attention_bias": False}),
    "glm4_moe_lite": ("deepseek2", {}),
    "minicpm3": ("minicpm3", {"rope_parameters": PLAIN}),
}
#: Whose rotated rows the converter puts into adjacent pairs; others have them so already, or rotate halves in llama.cpp too.
PERMUTED = {"llama", "olmo", "mistral3", "smollm3", "granite", "granite_swa", "arcee", "granitemoe", "granitehybrid"}
#: Names that the gguf package's table lacks for these architectures.
EXTRA_NAMES = {"self_attn.sinks": "attn_sinks", "lm_head": "output", "query_layernorm": "attn_q_norm", "key_layernorm": "attn_k_norm",
               "attn_sub_norm": "attn_sub_norm", "ffn_sub_norm": "ffn_sub_norm"}  # fmt: skip


def _pairs(rows: Array, heads: int) -> Array:
    """Each head's rows, from halves to adjacent pairs (llama.cpp: permute)."""
    half = len(rows) // heads // 2
    return rows.reshape(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _by_kind(rows: Array, heads: int) -> Array:
    """Queries, keys and values that lie head by head, one kind after the other."""
    parts = rows.reshape(heads, 3, -1, *rows.shape[1:])
    return np.concatenate([parts[:, kind].reshape(-1, *rows.shape[1:]) for kind in range(3)])


def _stacked(stored: dict[str, Array]) -> dict[str, Array]:
    """All experts' matrices of one role in one tensor; gate and up apart; names that the gguf package's table has."""
    found: dict[str, Array] = {}
    each: dict[str, list[Array]] = {}
    has_experts = any("block_sparse_moe" in name for name in stored)  # Granite's
    for name, tensor in stored.items():
        if number := re.search(r"\.experts\.(\d+)\.", name):
            name = name.replace(number[0], ".experts.")
            for own, common in {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.items() if "feed_forward" in name else ():
                name = name.replace(f"feed_forward.experts.{own}", f"mlp.experts.{common}")
            parts = each.setdefault(name, [])
            assert len(parts) == int(number[1]), "experts lie in ascending order"
            parts.append(tensor)
            continue
        stem = name.rpartition(".")[0]
        if name.endswith("feed_forward.expert_bias"):  # LFM2's
            found[name.replace("feed_forward.expert_bias", "mlp.gate.e_score_correction.bias")] = tensor
        elif name.endswith("_linear.weight"):  # Granite's
            gate, up = np.split(tensor, 2, axis=-2)
            halves = {"gate_proj": gate, "up_proj": up} if "input_linear" in name else {"down_proj": tensor}
            own = "mlp.shared_experts" if has_experts else "mlp"
            place = stem.replace("block_sparse_moe", "mlp.experts").replace("shared_mlp", own).rpartition(".")[0]
            found |= {f"{place}.{part}.weight": matrix for part, matrix in halves.items()}
        elif ".mlp.experts." in name:  # gpt-oss': columns of gate and up in turn
            suffix, matrix = ("bias", tensor) if name.endswith("_bias") else ("weight", tensor.swapaxes(1, 2))
            halves = {"gate_proj": matrix[:, ::2], "up_proj": matrix[:, 1::2]} if "gate_up" in name else {"down_proj": matrix}
            found |= {f"{stem}.{part}.{suffix}": matrix for part, matrix in halves.items()}
        elif name.endswith("e_score_correction_bias"):
            found[name.replace("_bias", ".bias")] = tensor.reshape(-1)
        else:
            found[name] = tensor
    return found | {name: np.stack(parts) for name, parts in each.items()}


def _tiled(name: str, tensor: Array, config: dict[str, Any]) -> Array:
    """Of Qwen 3.5's delta rules: value heads so that those of a key head are not together (llama.cpp: _LinearAttentionVReorderBase)."""
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]

    def reorder(values: Array, size: int) -> Array:
        return values.reshape(groups, heads // groups, size, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)

    size, keys = config["linear_value_head_dim"], 2 * groups * config["linear_key_head_dim"]
    if "in_proj_qkv" in name or "conv1d" in name:
        return np.concatenate([tensor[:keys], reorder(tensor[keys:], size)])
    if "in_proj_z" in name:
        return reorder(tensor, size)
    if "out_proj" in name:
        return reorder(tensor.T, size).T
    return reorder(tensor, 1) if any(part in name for part in ("in_proj_a", "in_proj_b", "A_log", "dt_bias")) else tensor


def _state_tensors(full: str, tensor: Array, config: dict[str, Any], arch: str) -> dict[str, Array]:
    """A recurrence's tensor by its name in a GGUF."""
    names = {"in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "in_proj_a": "ssm_alpha", "in_proj_b": "ssm_beta", "conv1d": "ssm_conv1d",
             "norm": "ssm_norm", "out_proj": "ssm_out", "in_proj": "ssm_in", "in_proj_ba": "ssm_ba"}  # fmt: skip
    _, _, layer, _, part, *rest = full.split(".")
    suffix, is_mamba = ".".join(["", *rest]), arch == "granitehybrid"
    if arch in ("qwen35", "qwen35moe"):
        tensor = _tiled(full, tensor, config)
    if part == "A_log":
        tensor = -np.exp(tensor.astype(np.float64)).astype(np.float32)
    if part in ("A_log", "D"):
        return {f"blk.{layer}.ssm_{part[0].lower()}": tensor[:, None] if is_mamba else tensor}
    if part == "dt_bias":
        return {f"blk.{layer}.ssm_dt.bias": tensor}
    if part == "in_proj_qkvz":  # key head by key head
        keys, values = config["linear_key_head_dim"], config["linear_value_head_dim"] * config["linear_num_value_heads"]
        by_head = tensor.reshape(config["linear_num_key_heads"], -1, tensor.shape[1])
        own = values // len(by_head)
        parts = [part.reshape(-1, tensor.shape[1]) for part in np.split(by_head, [keys, 2 * keys, 2 * keys + own], axis=1)]
        return {f"blk.{layer}.attn_qkv.weight": np.concatenate(parts[:3]), f"blk.{layer}.attn_gate.weight": parts[3]}
    if part == "norm" and is_mamba:
        tensor = tensor.reshape(config["mamba_n_groups"], -1)
    return {f"blk.{layer}.{names[part]}{suffix}": tensor[:, 0] if tensor.ndim == 3 else tensor}


def _absorbed(config: dict[str, Any], stored: dict[str, Array]) -> dict[str, Array]:
    """Each kv_b_proj as a tensor of keys, turned, and one of values."""
    found = {}
    for name, tensor in stored.items():
        if "kv_b_proj" not in name:
            found[name] = tensor
            continue
        heads = tensor.reshape(config["num_attention_heads"], -1, tensor.shape[-1])
        found[name.replace("kv_b", "k_b")] = heads[:, : config["qk_nope_head_dim"]].swapaxes(1, 2)
        found[name.replace("kv_b", "v_b")] = heads[:, config["qk_nope_head_dim"] :]
    return found


def _latent_keys(config: dict[str, Any], arch: str) -> dict[str, Any]:
    rank, rotary, key = config["kv_lora_rank"], config["qk_rope_head_dim"], config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    keys = {"attention.kv_lora_rank": rank, "rope.dimension_count": rotary, "attention.key_length": key}
    if config["q_lora_rank"]:
        keys["attention.q_lora_rank"] = config["q_lora_rank"]
    if arch == "minicpm3":
        return keys
    keys |= {"attention.head_count_kv": 1, "attention.key_length": rank + rotary, "attention.value_length": rank}
    keys |= {"attention.key_length_mla": key, "attention.value_length_mla": config["v_head_dim"]}
    keys |= {"expert_gating_func": 1 if config["model_type"] == "deepseek_v2" else 2, "leading_dense_block_count": 1}
    if config["norm_topk_prob"]:
        keys["expert_weights_norm"] = True
    if all_dims := (config.get("rope_parameters") or {}).get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = 0.1 * all_dims
    return keys


def _tensors(name: str, arch: str, config: dict[str, Any], stored: dict[str, Array], whole: bool = False) -> dict[str, Array]:
    import gguf

    stored = _stacked(stored)

    number = (
        next(number for number, text in gguf.MODEL_ARCH_NAMES.items() if text == arch) if arch != "granite_swa" else gguf.MODEL_ARCH.GRANITE
    )
    table = gguf.get_tensor_name_map(number, 4)
    heads, kv_heads = config.get("num_attention_heads") or config["n_head"], config.get("num_key_value_heads")
    found: dict[str, Array] = {}
    if arch == "deepseek2" and not whole:
        stored = _absorbed(config, stored)
    for full, tensor in stored.items():
        if "act_fn" in full or "layernorm.norms." in full:
            continue
        if ".linear_attn." in full or ".mamba." in full:
            found |= {target: np.ascontiguousarray(own) for target, own in _state_tensors(full, tensor, config, arch).items()}
            continue
        stem, dot, suffix = full.rpartition(".")
        if suffix not in ("weight", "bias"):
            stem, dot, suffix = full, ".", "weight"
        if arch in PERMUTED and ".q_proj" in stem:
            tensor = _pairs(tensor, heads)
        if arch in PERMUTED and ".k_proj" in stem:
            tensor = _pairs(tensor, kv_heads or heads)
        if "query_key_value" in stem:
            tensor = _by_kind(tensor, heads)
        if arch in ("gemma", "gemma2", "gemma3", "nemotron", "qwen35", "qwen35moe", "qwen3next") and "norm" in stem and suffix == "weight":
            tensor = tensor + np.float32(1)
        if arch in ("lfm2", "lfm2moe") and tensor.ndim == 3 and tensor.shape[1] == 1:
            tensor = tensor[:, 0]
        if arch == "gpt2" and suffix == "weight" and ".c_" in stem:
            tensor = tensor.T
        target = table.get_name(stem) or table.get_name(stem.removeprefix("transformer."))
        if target is None:
            layer = next((part for part in stem.split(".") if part.isdecimal()), "")
            part = next(part for part in EXTRA_NAMES if stem.endswith(part))
            target = (f"blk.{layer}." if layer else "") + EXTRA_NAMES[part]
        found[target + dot + suffix] = np.ascontiguousarray(tensor)
    for kind, count in (("q", heads), ("k", kv_heads)) if name == "stablelm" else ():
        for layer in range(4):
            each = [stored[f"model.layers.{layer}.self_attn.{kind}_layernorm.norms.{head}.weight"] for head in range(count or heads)]
            found[f"blk.{layer}.attn_{kind}_norm.weight"] = np.stack(each)
    return found


def _rope_keys(config: dict[str, Any], arch: str) -> dict[str, Any]:
    parameters = config.get("rope_parameters") or {}
    full = parameters.get("full_attention", parameters)
    keys: dict[str, Any] = {"rope.freq_base": float(full.get("rope_theta", 10000.0))} if full else {}
    if full.get("partial_rotary_factor", 1.0) != 1.0:
        keys["rope.dimension_count"] = int(config["head_dim"] * full["partial_rotary_factor"])
    kind = full.get("rope_type")
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(full["factor"])}
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = full["original_max_position_embeddings"]
        keys |= {f"rope.scaling.yarn_{name}": float(full[name]) for name in ("beta_fast", "beta_slow")}
    if arch == "mistral3":
        keys |= {
            "rope.scaling.yarn_log_multiplier": float(full["mscale_all_dim"]),
            "attention.temperature_scale": float(full["llama_4_scaling_beta"]),
        }
    if arch == "phi3":
        original = full["original_max_position_embeddings"]
        growth = config["max_position_embeddings"] / original
        keys |= {
            "rope.scaling.original_context_length": original,
            "rope.scaling.attn_factor": float(np.sqrt(1 + np.log(growth) / np.log(original))),
        }
    if arch == "gemma3":
        keys["rope.freq_base_swa"] = float(parameters["sliding_attention"]["rope_theta"])
    if arch == "olmo2" and "sliding_attention" in parameters:
        keys["rope.freq_base_swa"] = float(parameters["sliding_attention"]["rope_theta"])
    if arch == "gptj":
        keys["rope.dimension_count"] = config["rotary_dim"]
    return keys


#: Metadata by config.json's keys, for the architectures that have them.
KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "attn_logit_softcapping": ("attn_logit_softcapping", float),
    "final_logit_softcapping": ("final_logit_softcapping", float),
    "embedding_multiplier": ("embedding_scale", float),
    "residual_multiplier": ("residual_scale", float),
    "attention_multiplier": ("attention.scale", float),
    "logits_scaling": ("logit_scale", float),
    "logit_scale": ("logit_scale", float),
    "use_parallel_residual": ("use_parallel_residual", bool),
    "layer_rope_theta": ("attention.rope_pattern", lambda thetas: [bool(theta) for theta in thetas]),
    "rms_norm_eps": ("attention.layer_norm_rms_epsilon", float),
    "layer_norm_eps": ("attention.layer_norm_epsilon", float),
    "layer_norm_epsilon": ("attention.layer_norm_epsilon", float),
    "norm_eps": ("attention.layer_norm_epsilon", float),
    "norm_epsilon": ("attention.layer_norm_epsilon", float),
    "vocab_size": ("vocab_size", int),
    "clip_qkv": ("attention.clamp_kqv", float),
}


#: Of layers with experts; what the converter writes for each family that has the key.
_EXPERT_KEYS = {
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "n_routed_experts": "expert_count",
    "moe_num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_k": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "moe_num_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "moe_layer_start_index": "leading_dense_block_count",
    "moe_layer_interval": "interleave_moe_layer_step",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "routed_scaling_factor": "expert_weights_scale",
}


def metadata_of(config: dict[str, Any], arch: str, stored: dict[str, Array]) -> dict[str, Any]:
    """Without the architecture's name in front."""
    heads = config.get("num_attention_heads") or config["n_head"]
    hidden = config.get("hidden_size") or config["n_embd"]
    no_groups = arch in ("gpt2", "gptneox", "bloom", "gptj")
    fields: dict[str, Any] = {
        "block_count": 4,
        "embedding_length": hidden,
        "attention.head_count": heads,
        "context_length": config.get("max_position_embeddings") or config.get("n_positions", 2048),
        "attention.head_count_kv": 1 if arch == "starcoder" else heads if no_groups else config["num_key_value_heads"],
        "feed_forward_length": 4 * hidden if arch == "bloom" else config.get("n_inner") or config["intermediate_size"],
    }
    fields |= {_EXPERT_KEYS[key]: config[key] for key in _EXPERT_KEYS if config.get(key)}
    if arch == "gpt-oss":
        fields["expert_feed_forward_length"] = config["intermediate_size"]
    if arch == "ernie4_5-moe":
        fields["expert_shared_feed_forward_length"] = config["intermediate_size"] // config["num_key_value_heads"]
    if arch == "glm4moe":
        fields |= {"expert_gating_func": 2, "expert_weights_norm": config["norm_topk_prob"]}
    if arch in ("deepseek2", "minicpm3"):
        fields |= _latent_keys(config, arch)
    if arch in ("gemma2", "gemma3", "qwen3", "qwen3moe", "gpt-oss", "qwen35", "qwen35moe", "qwen3next"):
        fields |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    for key, (name, convert) in KEYS.items():
        if config.get(key) is not None and (key != "use_parallel_residual" or arch in ("stablelm", "gptneox")):
            fields[name] = convert(config[key])
    if arch == "gpt-oss":
        fields["attention.sliding_window"] = config["sliding_window"]
    elif config.get("sliding_window") and config.get("layer_types") and arch not in ("qwen2", "qwen3", "smollm3"):
        fields["attention.sliding_window"] = config["sliding_window"]
        fields["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config["layer_types"]]
    if arch in ("lfm2", "lfm2moe"):
        fields["attention.layer_norm_rms_epsilon"] = fields.pop("attention.layer_norm_epsilon")
        fields["attention.head_count_kv"] = [config["num_key_value_heads"] * (kind != "conv") for kind in config["layer_types"]]
        fields["feed_forward_length"] = len(stored["model.layers.0.feed_forward.w1.weight"])
        fields["shortconv.l_cache"] = config["conv_L_cache"]
    if arch == "lfm2moe":
        fields |= {"expert_gating_func": 2, "expert_weights_norm": config["norm_topk_prob"]}
        fields["leading_dense_block_count"] = config["num_dense_layers"]
    if arch in ("qwen35", "qwen35moe", "qwen3next"):
        heads = config["linear_num_value_heads"]
        fields |= {"ssm.conv_kernel": config["linear_conv_kernel_dim"], "ssm.state_size": config["linear_key_head_dim"]}
        fields |= {"ssm.group_count": config["linear_num_key_heads"], "ssm.time_step_rank": heads}
        fields |= {"ssm.inner_size": heads * config["linear_value_head_dim"], "full_attention_interval": 3}
    if arch in ("qwen35", "qwen35moe"):
        fields |= {"rope.dimension_sections": [11, 11, 10, 0]}
    if arch == "granitehybrid":
        fields |= {"ssm.conv_kernel": config["mamba_d_conv"], "ssm.state_size": config["mamba_d_state"]}
        fields |= {"ssm.group_count": config["mamba_n_groups"], "ssm.time_step_rank": config["mamba_n_heads"]}
        fields |= {"ssm.inner_size": config["mamba_n_heads"] * config["mamba_d_head"]}
        fields |= {"rope.scaling.finetuned": config.get("position_embedding_type") == "rope"}
        kinds = config["layer_types"]
        fields["attention.head_count_kv"] = [config["num_key_value_heads"] * (kind in ("attention", "full_attention")) for kind in kinds]
    if arch == "olmo":
        fields["attention.layer_norm_epsilon"] = 1e-5
    if arch == "apertus":
        for name in ("alpha_p", "alpha_n", "beta", "eps"):
            fields[f"=xielu.{name}"] = [float(stored[f"model.layers.{layer}.mlp.act_fn.{name}"].reshape(-1)[0]) for layer in range(4)]
    return fields | _rope_keys(config, arch)


def write(
    name: str,
    directory: Path,
    path: Path,
    metadata: dict[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
    whole_up: Any = None,
    unpacks: bool = False,
) -> Path:
    """The model of the directory as one file; with other metadata, and with further tensors or without some (None). whole_up: the type of
    attn_kv_b, which then stands for a latent's keys and values; unpacks: its values are stored in fp32."""
    import gguf
    from safetensors.numpy import load_file

    arch, _ = (FAMILIES | EXPERTS | LATENTS)[name]
    config, stored = json.loads((directory / "config.json").read_text()), load_file(directory / "model.safetensors")
    writer = gguf.GGUFWriter(path, arch)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    for key, value in (metadata_of(config, arch, stored) | (metadata or {})).items():
        add[type(value)](key[1:] if key[0] == "=" else f"{arch}.{key}", value)
    for target, tensor in {**_tensors(name, arch, config, stored, whole=whole_up is not None), **(tensors or {})}.items():
        if tensor is None:
            continue
        if whole_up is None or "attn_kv_b" not in target:
            writer.add_tensor(target, tensor)
            continue
        packed = gguf.quantize(tensor, whole_up)
        if unpacks:
            writer.add_tensor(target, gguf.dequantize(packed, whole_up))
        else:
            writer.add_tensor(target, packed, raw_dtype=whole_up)
    for kind in ("long", "short") if name == "phi3" else ():
        writer.add_tensor(f"rope_factors_{kind}.weight", np.array(config["rope_parameters"][f"{kind}_factor"], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
