"""Wrong outputs of models with experts that were reported for other programs, each by the number of its row in the survey of them (in the
names of the tests)."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import family_gguf
from bits import assert_same_bits
from checkpoint_files import Array, Stored, read_file, write_file
from decoders import logits_of
from llmi.families import ModelSpec
from llmi.families.reader import Reading
from read_config import read_config, read_metadata
from tiny_families import TOKENS, WINDOW, make

DATA = Path(__file__).parents[1] / "data"
PUBLISHED: dict[str, Any] = json.loads((DATA / "published_files.json").read_text())
GPT_OSS = PUBLISHED["openai/gpt-oss-120b"]["config"]


def spec(config: dict[str, Any], *tensors: str) -> ModelSpec:
    return Reading(config, "config.json", dict.fromkeys(tensors, (264, 64)), {}, None).of_config_json()


def logits(path: Path) -> Array:
    rows: Array = logits_of(path, TOKENS[:80])
    return rows


# --- 7: gpt-oss, whose scaling stood under another key and whose windows were ignored: only prompts of more than 128 tokens showed it


def test_row_7_windows_of_gpt_oss() -> None:
    windows = [layer.attention.window for layer in spec(GPT_OSS).layers]
    assert windows == [128, 0] * 18
    by_rule = {key: value for key, value in GPT_OSS.items() if key != "layer_types"}
    assert spec(by_rule).to_json() == spec(GPT_OSS).to_json()


@pytest.mark.parity
def test_row_7_only_tokens_beyond_the_window_show_it(tmp_path: Path, families: Path) -> None:
    folder = make("gpt_oss", families).path
    whole = shutil.copytree(folder, tmp_path / "whole")
    config = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps(config | {"layer_types": ["full_attention"] * 4}))
    right, wrong = logits(folder), logits(whole)
    assert_same_bits(right[:WINDOW], wrong[:WINDOW])
    assert np.abs(right[WINDOW:] - wrong[WINDOW:]).max(-1).min() > 1e-3


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters", ""])
def test_row_7_and_6_yarn_of_gpt_oss_under_each_key(key: str) -> None:
    """Without a scaling transformers' class has this one. Its range is not rounded to whole dimensions, in a GGUF neither."""
    config, expected = copy.deepcopy(GPT_OSS), spec(GPT_OSS).ropes
    scaling = config.pop("rope_scaling")
    if key == "rope_parameters":
        scaling["rope_theta"] = config.pop("rope_theta")
    if key:
        config[key] = scaling
    assert spec(config).ropes == expected
    assert expected[0].yarn_factor == 32 and expected[0].yarn_low % 1 > 0.01 and expected[0].yarn_high % 1 > 0.01
    yarn = {"type": "yarn", "factor": 32.0, "original_context_length": 4096, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}
    metadata = {f"gpt-oss.rope.scaling.{name}": value for name, value in yarn.items()} | {
        "gpt-oss.rope.freq_base": 150000.0,
        "gpt-oss.attention.sliding_window": 128,
        "gpt-oss.attention.key_length": 64,
        "gpt-oss.attention.value_length": 64,
    }
    assert read_metadata("gpt-oss", metadata).ropes == expected


# --- 19: a tied head whose flag stands in the text model's part, or is overridden


@pytest.mark.parametrize(("outer", "inner", "stored", "tied"), [
    (None, True, False, True),
    (True, None, False, True),
    (False, None, True, False),
    (False, True, True, False),
    (True, False, False, True),
])  # fmt: skip
def test_row_19_tied_head(outer: bool | None, inner: bool | None, stored: bool, tied: bool) -> None:
    config = copy.deepcopy(PUBLISHED["Qwen/Qwen3-VL-235B-A22B-Thinking"]["config"])
    config.pop("tie_word_embeddings")
    config |= {} if outer is None else {"tie_word_embeddings": outer}
    config["text_config"] |= {} if inner is None else {"tie_word_embeddings": inner}
    names = ["model.language_model.embed_tokens.weight", *["lm_head.weight"] * stored]
    assert bool(spec(config, *names).head.weight.name) is not tied


# --- 20: a head's size that was derived instead of read


def test_row_20_head_size() -> None:
    assert spec(GPT_OSS).head_dim == 64 != GPT_OSS["hidden_size"] // GPT_OSS["num_attention_heads"]


# --- 23: the router with a bias: for the choice alone, groups by their two best, no score for those that are out, a factor of its own


@pytest.mark.parity
@pytest.mark.parametrize("shift", [-8.0, 8.0])
@pytest.mark.parametrize("name", ["glm4_moe", "ernie4_5_moe"])
def test_row_23_a_bias_of_all_experts_changes_no_bit(name: str, shift: float, tmp_path: Path, families: Path) -> None:
    """The weights are the scores themselves, not a sum minus the bias; negative sums do not lose to experts that are out."""
    folder = make(name, families).path
    shifted = shutil.copytree(folder, tmp_path / "shifted")
    tensors = read_file(folder / "model.safetensors")
    biases = [tensor for tensor in tensors if tensor.endswith("e_score_correction_bias")]
    assert len(biases) == 3
    tensors |= {tensor: Stored("F32", tensors[tensor].values + np.float32(shift)) for tensor in biases}
    write_file(shifted / "model.safetensors", tensors)
    assert_same_bits(logits(shifted), logits(folder))


def test_row_23_fields() -> None:
    config = PUBLISHED["zai-org/GLM-4.5"]["config"]
    router = spec(config).layers[3].moe.router
    assert (router.score, router.group_score, router.renormalise, router.sum_epsilon, router.factor) == (
        "sigmoid",
        "top2",
        True,
        1e-20,
        2.5,
    )
    assert spec(config | {"norm_topk_prob": False}).layers[3].moe.router.factor == 2.5
    grouped = spec(config | {"n_group": 8, "topk_group": 3}).layers[3].moe.router
    assert (grouped.num_groups, grouped.used_groups) == (8, 3)


# --- 24: weights that were renormalised, or were not


@pytest.mark.parametrize("architecture", ["Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "OlmoeForCausalLM", "Glm4MoeForCausalLM"])
@pytest.mark.parametrize("renormalise", [True, False])
def test_row_24_norm_topk_prob(architecture: str, renormalise: bool) -> None:
    assert read_config(architecture, {"norm_topk_prob": renormalise}).layers[3].moe.router.renormalise is renormalise


@pytest.mark.parametrize(
    ("architecture", "renormalise"), [("qwen2moe", False), ("qwen3moe", True), ("olmoe", False), ("llama", True), ("ernie4_5-moe", True)]
)
def test_row_24_gguf_has_no_key_for_it(architecture: str, renormalise: bool) -> None:
    metadata = {"llama.expert_count": 8, "llama.expert_used_count": 2} if architecture == "llama" else {}
    found = read_metadata(architecture, metadata, tensors={f"blk.{index}.ffn_gate_inp.weight": (8, 64) for index in range(4)})
    assert found.layers[3].moe.router.renormalise is renormalise


@pytest.mark.parity
def test_row_24_a_routers_weights_are_applied(families: Path, tmp_path: Path) -> None:
    """A router with twice the weights chooses the same experts, and weighs them otherwise."""
    folder = make("olmoe", families).path
    doubled = shutil.copytree(folder, tmp_path / "doubled")
    tensors = read_file(folder / "model.safetensors")
    tensors |= {name: Stored("F32", tensor.values * np.float32(2)) for name, tensor in tensors.items() if name.endswith("mlp.gate.weight")}
    write_file(doubled / "model.safetensors", tensors)
    assert np.abs(logits(doubled) - logits(folder)).max() > 1e-2


# --- 27: a trained clamp that a program's public code lacks


def test_row_27_the_clamp_of_gpt_oss() -> None:
    expert = spec(GPT_OSS).layers[0].moe.expert
    assert (expert.activation, expert.activation_values) == ("swiglu_clamped", [7.0, 1.702, 1.0])
    without = {key: value for key, value in GPT_OSS.items() if key != "swiglu_limit"}
    assert spec(without).to_json() == spec(GPT_OSS).to_json()
    other = spec(GPT_OSS | {"swiglu_limit": 6.0}).layers[0].moe.expert.activation_values
    assert other == [6.0, 1.702, 1.0]


# --- llama.cpp#26848: block_count counts the layers that draft further tokens


@pytest.mark.parity
def test_drafting_layers_of_a_gguf_are_left_out(tmp_path: Path, families: Path) -> None:
    directory = make("glm4_moe", families).path
    plain = family_gguf.write("glm4_moe", directory, tmp_path / "plain.gguf")
    extra = {f"blk.4.{name}.weight": np.ones((64, 128), np.float32) for name in ("nextn.eh_proj", "attn_norm")}
    with_drafts = family_gguf.write("glm4_moe", directory, tmp_path / "drafts.gguf", {"block_count": 5, "nextn_predict_layers": 1}, extra)
    assert_same_bits(logits(with_drafts), logits(plain))
