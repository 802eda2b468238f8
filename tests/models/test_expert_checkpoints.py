"""Quantised checkpoints with experts: one matrix for each expert as the quantisers write it, and gpt-oss' blocks and scales. The logits are
those of the plain model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from checkpoint_files import DATA, Array, Stored, Tensors, float4, read_file, unquantised, write_file
from decoders import logits_of

PROMPT = list(range(10, 90))
#: Of tests/data/checkpoints, whose matrices are read into the place of each expert's.
LAYOUTS = ["ar-auto_awq", "ar-auto_gptq", "gm-gptq-v2", "ct-FP8_BLOCK", "ct-FP8_DYNAMIC", "ct-MXFP4", "ct-W4A16", "ct-W8A8", "bnb-nf4"]
NUM_EXPERTS = 4


def logits(path: Path, dtype: str = "float32", activation_bits: int = 8) -> Array:
    rows: Array = logits_of(path, PROMPT, dtype=dtype, activation_bits=activation_bits)
    return rows


def build(layout: str, path: Path) -> Path:
    """A Qwen3-MoE of one layer: its experts are the layout's queries and outputs in turn, both of [128, 128]."""
    path.mkdir(parents=True)
    stored, rng = read_file(DATA / layout / "model.safetensors"), np.random.default_rng(1)
    quantization = json.loads((DATA / layout / "config.json").read_text())["quantization_config"]
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 260,
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
        "quantization_config": quantization,
    }

    def random(shape: int | tuple[int, int], mean: float = 0.0, scale: float = 0.1) -> Stored:
        return Stored("F32", np.float32(mean) + rng.standard_normal(shape, np.float32) * np.float32(scale))

    layer = "model.layers.0."
    tensors: Tensors = {name: random((260, 128)) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    tensors |= {f"{name}.weight": random(128, 1) for name in ("model.norm", f"{layer}input_layernorm", f"{layer}post_attention_layernorm")}
    tensors |= {f"{layer}self_attn.{name}_norm.weight": random(32, 1) for name in "qk"}
    tensors[f"{layer}mlp.gate.weight"] = random((NUM_EXPERTS, 128), scale=0.3)
    tensors |= {name: tensor for name, tensor in stored.items() if ".self_attn." in name}
    for expert in range(NUM_EXPERTS):
        for role in ("gate", "up", "down"):
            source = f"{layer}self_attn.{'qo'[(expert + (role == 'up')) % 2]}_proj."
            place = f"{layer}mlp.experts.{expert}.{role}_proj."
            tensors |= {place + name.removeprefix(source): tensor for name, tensor in stored.items() if name.startswith(source)}
    write_file(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_the_plain_model(tmp_path: Path, layout: str) -> None:
    folder = build(layout, tmp_path / "quantised")
    plain = logits(unquantised(folder, tmp_path / "plain"))
    assert np.ptp(plain) > 1
    assert_same_bits(logits(folder), plain)
    if layout not in ("ct-FP8_BLOCK", "ct-FP8_DYNAMIC", "bnb-nf4"):  # the others are packed, and read activations of 8 or 16 bits
        assert 0 < np.abs(logits(folder, "auto", 16) - plain).max() < 1e-2


# --- gpt-oss' own


def gpt_oss(folder: Path) -> tuple[dict[str, Any], Tensors, Tensors]:
    """Its config.json, the tensors beside the experts' matrices, and these: blocks of 32 codes and a power of two for each."""
    config = json.loads((folder / "config.json").read_text())
    stored, rng = read_file(folder / "model.safetensors"), np.random.default_rng(3)
    packed: Tensors = {}
    for name in [name for name in stored if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        number, cols, rows = stored.pop(name).values.shape
        packed[f"{name}_blocks"] = Stored("U8", rng.integers(0, 256, (number, rows, cols // 32, 16), np.uint8))
        packed[f"{name}_scales"] = Stored("U8", rng.integers(122, 126, (number, rows, cols // 32), np.uint8))
    return config, stored, packed


def values(packed: Tensors, name: str) -> Array:
    """[experts, rows, cols]: the low half of a byte is the first code."""
    blocks, scales = packed[f"{name}_blocks"].values, packed[f"{name}_scales"].values
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*scales.shape, 32)
    found: Array = (float4(codes) * np.ldexp(np.float32(1), scales[..., None].astype(np.int32) - 127)).astype(np.float32)
    return found.reshape(*scales.shape[:2], -1)


def write(path: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    path.mkdir(parents=True)
    write_file(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parity
def test_blocks_and_scales_of_gpt_oss(tmp_path: Path, families: Path) -> None:
    from tiny_families import make

    config, rest, packed = gpt_oss(make("gpt_oss", families).path)
    described = config | {
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    }
    folder = write(tmp_path / "packed", described, rest | packed)
    matrices = {name.removesuffix("_blocks") for name in packed if name.endswith("_blocks")}
    plain = rest | {name: Stored("F32", np.ascontiguousarray(values(packed, name).swapaxes(1, 2))) for name in matrices}
    expected = logits(write(tmp_path / "plain", config, plain))
    assert_same_bits(logits(folder), expected)
    assert 0 < np.abs(logits(folder, "auto", 16) - expected).max() < 1e-2


# --- Qwen3-VL's: all experts of a layer in two tensors, [experts, columns, rows]


@pytest.mark.parity
def test_stacked_experts_of_qwen3_vl(tmp_path: Path, families: Path) -> None:
    from tiny_families import make

    source = make("qwen3_moe", families).path
    config, stored = json.loads((source / "config.json").read_text()), read_file(source / "model.safetensors")
    tensors: Tensors = {}
    for name, tensor in stored.items():
        name = name.replace("model.", "model.language_model.", 1)
        place, found, _ = name.partition(".0.gate_proj.weight")
        if found:
            each = [
                {
                    role: stored[name.replace("language_model.", "").replace(".0.gate", f".{expert}.{role}")].values
                    for role in ("gate", "up", "down")
                }
                for expert in range(8)
            ]
            fused = np.stack([np.concatenate([expert["gate"], expert["up"]]).T for expert in each])
            tensors[f"{place}.gate_up_proj"] = Stored("F32", np.ascontiguousarray(fused))
            tensors[f"{place}.down_proj"] = Stored("F32", np.ascontiguousarray(np.stack([expert["down"].T for expert in each])))
        elif ".experts." not in name:
            tensors[name] = tensor
    names = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe", "tie_word_embeddings": False}
    text = {key: value for key, value in config.items() if key != "architectures"} | {"model_type": "qwen3_vl_moe_text"}
    folder = write(tmp_path / "vl", names | {"text_config": text}, tensors)
    assert_same_bits(logits(folder), logits(source))
