"""Quantised checkpoints of Qwen 3.5: the projections of a gated delta rule, of which one tensor holds three, and queries with their gates, as
the quantisers write matrices; small projections stay as they are. The logits are those of the plain model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from checkpoint_files import DATA, Stored, Tensors, read_file, unquantised, write_file
from test_expert_checkpoints import logits

#: Of tests/data/checkpoints; "fp8" has the maker's own names and block of scales.
LAYOUTS = ["ar-auto_awq", "ar-auto_gptq", "gm-gptq-v2", "ct-FP8_DYNAMIC", "ct-W4A16", "fp8"]
SIZES: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 260,
    "tie_word_embeddings": False,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}


def source(layout: str) -> tuple[dict[str, Any], Tensors]:
    """What a quantiser wrote, and how it describes it."""
    folder = DATA / ("ct-FP8_BLOCK" if layout == "fp8" else layout)
    stored = read_file(folder / "model.safetensors")
    if layout == "fp8":
        described = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
        return described, {name.replace("weight_scale", "weight_scale_inv"): tensor for name, tensor in stored.items()}
    return json.loads((folder / "config.json").read_text())["quantization_config"], stored


def build(layout: str, path: Path) -> Path:
    path.mkdir(parents=True)
    (quantization, stored), rng = source(layout), np.random.default_rng(1)

    def random(*shape: int, mean: float = 0.0, scale: float = 0.1) -> Stored:
        return Stored("F32", np.float32(mean) + rng.standard_normal(shape, np.float32) * np.float32(scale))

    tensors: Tensors = {f"{name}.weight": random(260, 128) for name in ("model.embed_tokens", "lm_head")}
    tensors["model.norm.weight"] = random(128)
    for layer in ("model.layers.0.", "model.layers.1."):
        tensors |= {f"{layer}{name}_layernorm.weight": random(128) for name in ("input", "post_attention")}
        tensors |= {f"{layer}mlp.{name}_proj.weight": random(96, 128) for name in ("gate", "up")}
        tensors[f"{layer}mlp.down_proj.weight"] = random(128, 96)
    delta, attention = "model.layers.0.linear_attn.", "model.layers.1.self_attn."
    tensors |= {f"{delta}in_proj_{name}.weight": random(2, 128, scale=0.3) for name in "ab"}
    tensors |= {f"{delta}conv1d.weight": random(128, 1, 4, scale=0.5), f"{delta}out_proj.weight": random(128, 64)}
    tensors |= {f"{delta}dt_bias": random(2), f"{delta}A_log": random(2), f"{delta}norm.weight": random(32, mean=1)}
    tensors |= {f"{attention}o_proj.weight": random(128, 64)} | {f"{attention}{name}_norm.weight": random(32) for name in "qk"}
    own = "model.layers.0.self_attn."
    for name, part in {f"{delta}in_proj_qkv": "q", f"{delta}in_proj_z": "k", **{f"{attention}{role}_proj": role for role in "qkv"}}.items():
        begin = f"{own}{part}_proj"
        tensors |= {name + key.removeprefix(begin): tensor for key, tensor in stored.items() if key.startswith(f"{begin}.")}
    write_file(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps(SIZES | {"quantization_config": quantization}))
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_the_plain_model(tmp_path: Path, layout: str) -> None:
    folder = build(layout, tmp_path / "quantised")
    plain = logits(unquantised(folder, tmp_path / "plain"))
    assert np.ptp(plain) > 1
    assert_same_bits(logits(folder), plain)
