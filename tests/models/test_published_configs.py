"""config.json as published: all of a family that runs must be readable, and none may be read over: the same file with another value is
refused, or is another model."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import published_page
from llmi.errors import LlmiError, UnsupportedModelError
from llmi.families.reader import Reading
from llmi.models.inspection import inspect_model
from read_config import read_config

DATA = Path(__file__).parents[1] / "data"
#: By the repository's name on the hub: where the file was found, and the file.
PUBLISHED: dict[str, dict[str, Any]] = json.loads((DATA / "published_files.json").read_text())
#: The same of models whose kind is not run yet.
LATER: dict[str, dict[str, Any]] = json.loads((DATA / "published_later.json").read_text())
#: The keys that further published models have, at their sizes.
CONFIGS: dict[str, dict[str, Any]] = json.loads((DATA / "published_configs.json").read_text())
#: Those of them with latent attention.
LATENT = ["deepseek_v2_lite", "glm47_flash", "minicpm3_4b", "moonlight"]
#: Of some, the parameters that their cards name, in millions.
MILLIONS = {
    "gpt2": 124,
    "qwen25": 494,
    "qwen3": 596,
    "llama32": 1236,
    "mistral": 7242,
    "phi2": 2780,
    "pythia": 70,
    "opt": 125,
    "gemma2": 2614,
    "gemma4_31b": 30697,
    "gemma4_26b_a4b": 25233,
    "deepseek_v2_lite": 15706,
    "phi35": 3821,
    "meta-llama/Llama-3.1-8B-Instruct": 8030,
    "meta-llama/Llama-3.1-70B-Instruct": 70554,
    "Qwen/Qwen2.5-7B-Instruct": 7616,
    "Qwen/Qwen3-14B": 14768,
    "internlm/internlm3-8b-instruct": 8804,
    "LGAI-EXAONE/EXAONE-4.0-32B": 32003,
    "allenai/Olmo-3.1-32B-Instruct": 32234,
    "google/gemma-2-9b-it": 9242,
    "ibm-granite/granite-3.3-8b-instruct": 8171,
    "microsoft/phi-4": 14660,
    "mistralai/Mixtral-8x7B-v0.1": 46703,
    "Qwen/Qwen3-30B-A3B": 30532,
    "allenai/OLMoE-1B-7B-0125-Instruct": 6919,
    "openai/gpt-oss-120b": 116829,
    "openai/gpt-oss-20b": 20915,
    "llava-hf/llava-1.5-7b-hf": 6739,
}
#: Keys that say what is computed, in any of the files. Others are of training, of generation, of the tokenizer, or of what is switched off.
MATTERS = {
    "num_hidden_layers",
    "n_layer",
    "hidden_size",
    "n_embd",
    "intermediate_size",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "rope_theta",
    "rotary_emb_base",
    "rotary_pct",
    "rotary_dim",
    "partial_rotary_factor",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "qkv_bias",
    "bias",
    "use_qkv_bias",
    "hidden_act",
    "activation_function",
    "model_type",
    "architectures",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "embedding_multiplier",
    "logits_scaling",
    "residual_multiplier",
    "layer_types",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "rope_type",
    "llama_4_scaling_beta",
    "alpha",
    "mrope_section_of_text",
    "use_mrope",
    "use_cla",
    "use_qk_norm",
    "norm_type",
    "attention_head_dim",
    "add_classification_head",
    "class_num",
    "use_rotary_pos_emb",
    "multi_query",
    "offset",
    "do_layer_norm_before",
    "word_embed_proj_dim",
    "apply_residual_connection_post_layernorm",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "rotary",
    "qk_layernorm",
    "sliding_window_size",
    "is_decoder_of_text",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "experts_per_token",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "n_routed_experts",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
    "first_k_dense_replace",
    "swiglu_limit",
    "truncate",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "mscale",
    "mscale_all_dim",
    "scoring_func",
    "topk_method",
    "moe_layer_freq",
    "scale_emb",
    "scale_depth",
    "dim_model_base",
}


def read(config: dict[str, Any]) -> str:
    """The spec of a config alone, for texts so long that each scaling of the rotation shows."""
    return Reading(config, "config.json", {}, {}, 1 << 20).of_config_json().to_json()


def changed(value: Any) -> Any:
    """Another value, changed by as little as its kind allows."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value[:-1], changed(value[-1])]
    return None


def text_objects(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects that describe the text model."""
    for part in (config, config.get("text_config") or {}):
        yield part
        yield from (part[key] for key in ("rope_scaling", "rope_parameters") if isinstance(part.get(key), dict))


def test_there_are_enough() -> None:
    assert len(PUBLISHED) >= 60
    for entry in (PUBLISHED | LATER).values():
        assert entry["source"].count("/") >= 2 and " at " in entry["source"]


@pytest.mark.parametrize("name", [*PUBLISHED, *CONFIGS])
def test_published_config(name: str, tmp_path: Path) -> None:
    config = PUBLISHED[name]["config"] if name in PUBLISHED else CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = inspect_model(tmp_path)
    if name in MILLIONS:
        assert round(report.num_params / 1e6) == MILLIONS[name]


@pytest.mark.parametrize("name", [*PUBLISHED, *LATENT])
def test_a_published_value_changed_by_one(name: str) -> None:
    config = PUBLISHED[name]["config"] if name in PUBLISHED else CONFIGS[name]
    before, silent, tried = read(config), [], 0
    for number, part in enumerate(text_objects(config)):
        for key in sorted(MATTERS & set(part)):
            if part[key] is None or (key == "original_max_position_embeddings" and number == 0) or key in unused(config, part):
                continue
            other = copy.deepcopy(config)
            value = changed(part[key])
            if key == "original_max_position_embeddings":  # YaRN rounds what it makes of it, and LongRoPE asks whether it is exceeded
                value = part[key] // 2 if "long_factor" in part else 2 * part[key]
            list(text_objects(other))[number][key] = value
            tried += 1
            try:
                if read(other) == before:
                    silent.append(f"{key} = {value!r}")
            except LlmiError:
                continue
    assert tried >= 5 and not silent


def unused(config: dict[str, Any], part: dict[str, Any]) -> set[str]:
    """What this file itself makes meaningless: a text model's sizes and type at the top, the factor of a dynamic scaling with alpha,
    LLaMA's kind of a text model, the size of layers without experts where there are none, groups of a choice that has none, a scale of
    YaRN without the other one; and of two statements about tied embeddings that contradict each other the stored tensors decide."""
    if "text_config" in config and all("tie_word_embeddings" in each for each in (config, config["text_config"])):
        return {"model_type", "architectures", "tie_word_embeddings"} if part is config else {"architectures", "tie_word_embeddings"}
    if config["architectures"][0].endswith(("Model", "ForMaskedLM", "ForSequenceClassification")):
        return {"tie_word_embeddings"}
    if "moe_intermediate_size" in part and "first_k_dense_replace" not in part:
        return {"intermediate_size"}
    if part is config and "text_config" in config:
        return {"model_type", "architectures"}
    if part is config.get("text_config"):
        return {"architectures"}
    if part.get("topk_method") == "greedy":
        return {"n_group", "topk_group"}
    if part.get("mscale_all_dim") == 0:
        return {"mscale"}
    return {"factor"} if "alpha" in part else set()


@pytest.mark.parametrize("name", LATER)
def test_a_model_of_a_kind_that_is_not_run_is_refused_by_name(name: str, tmp_path: Path) -> None:
    config = LATER[name]["config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    kind = config.get("text_config", {}).get("model_type")
    with pytest.raises(
        UnsupportedModelError, match=f"model_type '{kind}'" if kind else f"unknown architecture '{config['architectures'][0]}'"
    ):
        inspect_model(tmp_path)


def test_the_list_of_published_models() -> None:
    path = Path(__file__).parents[2] / "docs" / "published-models.md"
    if not path.is_file():
        pytest.skip("the documents are not beside the tests")
    assert path.read_text() == published_page.page(), "python tests/support/published_page.py > docs/published-models.md"


# --- keys that say what is computed anyway

PHI4_MINI: dict[str, Any] = {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False}
COMMAND_R7B: dict[str, Any] = {
    "layer_switch": 4,
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": False,
}
SAID: dict[str, tuple[str, dict[str, Any]]] = {
    "Phi-4-mini": ("Phi3ForCausalLM", PHI4_MINI),
    "R1-Distill-Qwen": ("Qwen2ForCausalLM", {"use_mrope": False}),
    "Command R7B": ("Cohere2ForCausalLM", COMMAND_R7B),
    "EXAONE 4.0 32B": ("Exaone4ForCausalLM", {"reorder_qk_norm": True}),
    "Apertus": ("ApertusForCausalLM", {"mlp_bias": False, "post_norm": False, "qk_norm": True}),
    "Hunyuan": (
        "HunYuanDenseV1ForCausalLM",
        {"use_cla": False, "use_qk_norm": True, "norm_type": "rms", "attention_head_dim": 16, "use_rotary_pos_emb": True},
    ),
    "StarCoder2": ("Starcoder2ForCausalLM", {"norm_type": "layer_norm", "lm_head_bias": False, "mlp_bias": True}),
}


@pytest.mark.parametrize("name", SAID)
def test_a_key_may_say_what_is_computed_anyway(name: str) -> None:
    architecture, keys = SAID[name]
    plain = read_config(architecture).digest()
    assert read_config(architecture, keys).digest() == plain
    for key, value in keys.items():
        for other in (changed(value), "other", 0.5):
            with pytest.raises(UnsupportedModelError, match=f"'{key}'.*hf_overrides={{\"{key}\": None}}"):
                read_config(architecture, keys | {key: other})
