"""Keys of models with experts: what cannot be is refused by the key's name, and keys that change nothing change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from llmi.errors import LlmiError, ModelFileError, UnsupportedModelError
from read_config import EXPERTS, read_config, read_metadata

#: An architecture, keys that differ from its own, the key that the error names, and what it says.
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("MixtralForCausalLM", {"num_experts_per_tok": 9}, "num_experts_per_tok", "9, but there are 8 experts"),
    ("MixtralForCausalLM", {"num_local_experts": 0}, "num_experts", "must be positive"),
    ("MixtralForCausalLM", {"num_local_experts": 2**40}, "num_experts", "outside"),
    ("MixtralForCausalLM", {"num_experts": 4}, "num_local_experts", "different things"),
    ("Qwen3MoeForCausalLM", {"num_experts": -1}, "num_experts", "must be positive"),
    ("Qwen3MoeForCausalLM", {"moe_intermediate_size": None}, "moe_intermediate_size", "missing"),
    ("Qwen3MoeForCausalLM", {"decoder_sparse_step": 0}, "decoder_sparse_step", "must be positive"),
    ("Qwen3MoeForCausalLM", {"mlp_only_layers": [1.5]}, "mlp_only_layers", "not an array of integers"),
    ("Qwen3MoeForCausalLM", {"use_sliding_window": True, "sliding_window": 24}, "use_sliding_window", "libraries do not agree"),
    ("Qwen3VLMoeTextModel", {"norm_topk_prob": False}, "norm_topk_prob", "does not read"),
    ("Qwen2MoeForCausalLM", {"layer_types": ["sliding_attention"] * 4}, "layer_types", "use_sliding_window is off"),
    ("Qwen2MoeForCausalLM", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size", "must be positive"),
    ("OlmoeForCausalLM", {"clip_qkv": 8.0}, "clip_qkv", "clipped behind their norms"),
    ("GptOssForCausalLM", {"hidden_act": "gelu"}, "hidden_act", "gelu"),
    ("GptOssForCausalLM", {"experts_per_token": 3}, "num_experts_per_tok", "different things"),
    ("GptOssForCausalLM", {"sliding_window": 0}, "sliding_window", "must be positive"),
    ("GraniteMoeHybridForCausalLM", {"layer_types": ["attention", "rwkv"] * 2}, "layer_types", "'rwkv'"),
    ("GraniteMoeHybridForCausalLM", {"position_embedding_type": "alibi"}, "position_embedding_type", "alibi"),
    ("PhiMoEForCausalLM", {"num_experts_per_tok": 3}, "num_experts_per_tok", "takes two"),
    ("Glm4MoeForCausalLM", {"n_group": 3}, "n_group", "does not divide the 8 experts"),
    ("Glm4MoeForCausalLM", {"n_group": 8}, "n_group", "groups of 2 or more"),
    ("Glm4MoeForCausalLM", {"n_group": 4, "topk_group": 5}, "topk_group", "5, but there are 4 groups"),
    ("Glm4MoeForCausalLM", {"scoring_func": "softmax"}, "scoring_func", "does not read"),
    ("Glm4MoeForCausalLM", {"first_k_dense_replace": -1}, "first_k_dense_replace", "outside"),
    ("Glm4MoeForCausalLM", {"num_nextn_predict_layers": 2**40}, "num_nextn_predict_layers", "outside"),
    ("Glm4MoeForCausalLM", {"n_shared_experts": -1}, "n_shared_experts", "outside"),
    ("GptOssForCausalLM", {"swiglu_limit": 0.0}, "swiglu_limit", "must be positive"),
    ("PhiMoEForCausalLM", {"router_jitter_noise": -0.1}, "router_jitter_noise", "must not be negative"),
    ("Ernie4_5_MoeForCausalLM", {"moe_layer_interval": 0}, "moe_layer_interval", "must be positive"),
    ("LlamaForCausalLM", {"num_local_experts": 8}, "num_experts", "8 experts of a family that has none"),
]


@pytest.mark.parametrize("architecture", EXPERTS)
def test_an_unknown_key_of_a_router_is_refused(architecture: str) -> None:
    with pytest.raises(UnsupportedModelError, match="'router_temperature' = 2"):
        read_config(architecture, {"router_temperature": 2})


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_is_refused_by_its_key(number: int) -> None:
    architecture, change, key, says = REFUSED[number]
    read_config(architecture)
    with pytest.raises(LlmiError, match=says) as caught:
        read_config(architecture, change)
    assert isinstance(caught.value, ModelFileError) and caught.value.field == key


def test_a_gguf_whose_scores_are_no_sigmoids() -> None:
    read_metadata("glm4moe", {"glm4moe.expert_gating_func": 2})
    with pytest.raises(UnsupportedModelError, match="no sigmoids"):
        read_metadata("glm4moe", {"glm4moe.expert_gating_func": 1})


@pytest.mark.parametrize("architecture", EXPERTS)
def test_keys_of_training_change_nothing(architecture: str) -> None:
    plain = read_config(architecture)
    noted = {"router_aux_loss_coef": 0.02, "output_router_logits": False}
    assert read_config(architecture, noted).to_json() == plain.to_json()
