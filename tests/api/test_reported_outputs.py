"""Wrong outputs that were reported of other engines, by their number in the project's notes on models: what a reader of files must get
right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from llmi.errors import ModelFileError
from llmi.families.spec import ModelSpec, RopeSpec
from read_config import read_config, read_metadata
from spec_reference import frequencies

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}


def rope(spec: ModelSpec) -> RopeSpec:
    return spec.ropes[0]


def windows(spec: ModelSpec) -> list[int]:
    return [layer.attention.window for layer in spec.layers]


def rotated(spec: ModelSpec) -> list[bool]:
    return [layer.attention.rope >= 0 for layer in spec.layers]


def test_1_theta_and_scaling_in_rope_parameters() -> None:
    old = read_config("LlamaForCausalLM", {"rope_theta": 500000.0, "rope_scaling": LLAMA3})
    new = read_config("LlamaForCausalLM", {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}})
    assert rope(old) == rope(new) and rope(new).theta == 500000.0 and rope(new).llama3_factor == 8.0


def test_2_scaling_is_applied() -> None:
    scaled = frequencies(rope(read_config("LlamaForCausalLM", {"rope_theta": 500000.0, "rope_scaling": LLAMA3})), {})
    plain = frequencies(rope(read_config("LlamaForCausalLM", {"rope_theta": 500000.0})), {})
    assert scaled[0] == plain[0] and scaled[-1] == pytest.approx(plain[-1] / 8)


def test_3_the_frequency_factors_of_a_gguf() -> None:
    spec = read_metadata("llama", tensors={"rope_freqs.weight": (8,)})
    assert rope(spec).divisors_tensor == "rope_freqs.weight" and "rope_freqs.weight" in spec.tensor_names()


def test_4_longrope_has_two_tables() -> None:
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 64}
    config = {"rope_scaling": scaling, "original_max_position_embeddings": 64, "max_position_embeddings": 512}
    short, long = (read_config("Phi3ForCausalLM", config, max_model_len=length) for length in (64, 65))
    assert rope(short).frequency_divisors == [1.0] * 8 and rope(long).frequency_divisors == [4.0] * 8
    assert (short.rope_choice, long.rope_choice) == ("longrope_short", "longrope_long")
    assert rope(short).magnitude == rope(long).magnitude == pytest.approx(math.sqrt(1 + math.log(8) / math.log(64)))


def test_5_an_explicit_attention_factor_replaces_the_others() -> None:
    worked_out = 0.1 * math.log(4) + 1
    for more, magnitude in (
        ({}, worked_out),
        ({"attention_factor": 1.25}, 1.25),
        ({"attention_factor": 1.25, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.25),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * math.log(4) + 1) / worked_out),
        ({"mscale": 2.0}, worked_out),
    ):
        spec = read_config("LlamaForCausalLM", {"rope_parameters": YARN | more})
        assert rope(spec).magnitude == pytest.approx(magnitude), more
        assert spec.layers[0].attention.scale == 0.25, "the scale of attention stays"


def test_6_a_range_that_is_not_truncated() -> None:
    whole, exact = (rope(read_config("LlamaForCausalLM", {"rope_parameters": YARN | {"truncate": truncate}})) for truncate in (True, False))
    assert whole.yarn_high == math.ceil(exact.yarn_high) and exact.yarn_high % 1


@pytest.mark.parametrize(
    "architecture", ["MistralForCausalLM", "Gemma2ForCausalLM", "Olmo3ForCausalLM", "Starcoder2ForCausalLM", "Cohere2ForCausalLM"]
)
def test_8_a_window_counts_the_token_itself(architecture: str) -> None:
    """ModelSpec's windows are transformers' numbers: a query sees itself and window - 1 before it (spec_reference.py, test_cards.py)."""
    assert set(windows(read_config(architecture, {"sliding_window": 24}))) <= {0, 24}
    assert 24 in windows(read_config(architecture, {"sliding_window": 24}))


def test_9_gemma_2_caps_and_alternates() -> None:
    spec = read_config("Gemma2ForCausalLM")
    assert windows(spec) == [4096, 0, 4096, 0]
    assert {layer.attention.soft_cap for layer in spec.layers} == {50.0} and spec.head.soft_cap == 30.0
    metadata = {"gemma2.attention.sliding_window": 24, "gemma2.attn_logit_softcapping": 50.0, "gemma2.final_logit_softcapping": 30.0}
    gguf = read_metadata("gemma2", metadata)
    assert windows(gguf) == [24, 0, 24, 0] and gguf.layers[0].attention.soft_cap == 50.0 and gguf.head.soft_cap == 30.0


def test_10_gemmas_activation_norms_and_scale() -> None:
    spec = read_config("Gemma2ForCausalLM", {"hidden_act": "gelu_pytorch_tanh"})
    assert spec.layers[0].mlp.activation == "gelu_tanh"
    assert spec.embedding.scale == float(np.sqrt(np.float32(64)))
    assert spec.final_norm.weight.plus == spec.layers[0].attention_norm.weight.plus == 1.0


@pytest.mark.parametrize(
    ("architecture", "gguf"), [("Gemma2ForCausalLM", "gemma2"), ("Gemma3ForCausalLM", "gemma3"), ("NemotronForCausalLM", "nemotron")]
)
def test_11_the_norms_shift_is_in_config_jsons_files_alone(architecture: str, gguf: str) -> None:
    assert read_config(architecture).final_norm.weight.plus == 1.0
    more = {f"{gguf}.attention.sliding_window": 24} if gguf != "nemotron" else {"nemotron.attention.layer_norm_epsilon": 1e-5}
    assert read_metadata(gguf, more).final_norm.weight.plus == 0.0


def test_19_where_the_flag_of_a_tied_head_stands() -> None:
    inner: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 264,
    }

    def is_tied(outer: bool | None, own: bool | None, *, stored: bool) -> bool:
        config = {"text_config": {key: value for key, value in (inner | {"tie_word_embeddings": own}).items() if value is not None}}
        tensors = {"model.language_model.embed_tokens.weight": (264, 64)} | ({"lm_head.weight": (264, 64)} if stored else {})
        gone = dict.fromkeys(
            (
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "vocab_size",
                "head_dim",
            )
        )
        spec = read_config("SomeForConditionalGeneration", gone | config | {"tie_word_embeddings": outer}, tensors=tensors)
        return not spec.head.weight.name

    assert is_tied(None, True, stored=False) and is_tied(True, None, stored=False) and is_tied(True, True, stored=False)
    assert not is_tied(None, None, stored=True) and not is_tied(False, None, stored=True)
    assert is_tied(True, False, stored=False) and not is_tied(True, False, stored=True), "what is stored decides between two flags"


def test_20_head_dim_is_read() -> None:
    assert read_config("MistralForCausalLM", {"hidden_size": 80, "head_dim": 32}).head_dim == 32
    assert read_config("MistralForCausalLM", {"head_dim": None}).head_dim == 16


def test_21_glm_rotates_half_of_each_head_in_pairs() -> None:
    spec = read_config("Glm4ForCausalLM")
    assert rope(spec).rotary_dim == 8 and spec.layers[0].attention.query.weight.order.adjacent_pairs == 8


def test_22_smollm3s_layers_without_rotation() -> None:
    assert rotated(read_config("SmolLM3ForCausalLM")) == [True, True, True, False]
    assert rotated(read_config("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0, 0, 1]})) == [True, False, False, True]
    assert rotated(read_metadata("smollm3")) == [True, True, True, False]


def test_30_granites_four_multipliers() -> None:
    four = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0625, "logits_scaling": 8.0}
    spec = read_config("GraniteForCausalLM", four)
    assert (spec.embedding.scale, spec.layers[3].residual_scale, spec.layers[3].attention.scale) == (12.0, 0.22, 0.0625)
    assert spec.head.scale == 1 / 8, "logits are divided"
    keys = {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.0625, "logit_scale": 8.0}
    assert read_metadata("granite", {f"granite.{key}": value for key, value in keys.items()}).head.scale == 1 / 8
    with pytest.raises(ModelFileError, match="logits_scaling"):
        read_config("GraniteForCausalLM", four | {"logits_scaling": 0.0})
