"""Families with latent attention: the core and the specs against transformers, planted errors, GGUF and quantised layouts."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import family_gguf
from bits import assert_same_bits
from checkpoint_files import DATA, Array, Stored, Tensors, read_file, unquantised, write_file
from decoders import logits_of
from family_specs import SEEN, check_meaning, interpreter
from llmi.families.reader import Reading
from spec_float64 import Spec
from test_families import assert_near, own_logits
from tiny_families import LATENTS, TOKENS, make

pytestmark = pytest.mark.parity
MSCALE = 0.1 * 0.707 * math.log(40) + 1  # of DeepSeek-V2-Lite
LAYOUTS = ["ar-auto_awq", "ar-auto_gptq", "ct-FP8_BLOCK", "ct-MXFP4", "ct-W4A16", "bnb-nf4"]


def logits(path: Path, **options: Any) -> Array:
    """Of the first tokens, more than an original length."""
    rows: Array = logits_of(path, TOKENS[:80], **options)
    assert np.isfinite(rows).all()
    return rows


@pytest.mark.parametrize("name", LATENTS)
def test_logits_of_the_family(name: str, families: Path) -> None:
    family = make(name, families)
    assert_near(own_logits(family.path), family)


@pytest.mark.parametrize("name", LATENTS)
def test_the_spec_means_what_transformers_computes(name: str, families: Path) -> None:
    check_meaning(make(name, families))


@pytest.mark.parametrize(
    ("changes", "magnitude"),
    [({}, 1.0), ({"mscale": 1.0}, (0.1 * math.log(40) + 1) / MSCALE), ({"attention_factor": 1.25}, 1.25)],
    ids=["as published", "two factors", "explicit"],
)
def test_row_5_scores_grow_by_mscale_all_dim(changes: dict[str, float], magnitude: float) -> None:
    """mlx-lm#1507, llama.cpp#17945, transformers#47435: scores have the square of it, rotated values what is left, or what is said."""
    config: dict[str, Any] = json.loads((DATA.parent / "published_configs.json").read_text())["deepseek_v2_lite"]
    config["rope_parameters"] |= changes
    spec = Reading(config, "config.json", {}, {}, 1 << 20).of_config_json()
    assert {layer.attention.scale for layer in spec.layers} == {MSCALE**2 / math.sqrt(128 + 64)}
    assert spec.ropes[0].magnitude == magnitude


Change = Callable[[Spec], object]


def of_latent(change: Change) -> Change:
    return lambda spec: [change(layer["attention"]) for layer in spec["layers"]]


def halves(attention: Spec) -> None:
    for part in ("query_rotary", "rotary"):
        attention["latent"][part]["weight"]["order"]["adjacent_pairs"] = 0


PLANTED: dict[str, Change] = {
    "mscale": of_latent(lambda attention: attention.update(scale=48**-0.5)),
    "pairs": of_latent(halves),
    "norm of the latent": of_latent(lambda attention: attention["latent"].pop("latent_norm")),
    "norm of the latent of queries": of_latent(lambda attention: attention["latent"].pop("query_norm")),
    "rotation": of_latent(lambda attention: attention.pop("rope")),
    "order of keys and values": of_latent(
        lambda attention: attention["latent"]["key_up"].update(order={"first_row": 16, "head_rows": 32, "head_stride": 48})
    ),
    "scale of residuals": lambda spec: [layer.pop("residual_scale") for layer in spec["layers"]],
    "scale of logits": lambda spec: spec["head"].pop("scale"),
}
COMMON = ["norm of the latent", "rotation", "order of keys and values"]
MISTAKES = {
    "deepseek_v2": ["mscale", "pairs"],
    "deepseek_v3": ["mscale", "pairs", "norm of the latent of queries"],
    "glm4_moe_lite": ["pairs", "norm of the latent of queries"],
    "minicpm3": ["norm of the latent of queries", "scale of residuals", "scale of logits"],
}


@pytest.mark.parametrize("name", LATENTS)
def test_a_planted_error_is_seen(name: str, families: Path) -> None:
    model, tokens = interpreter(make(name, families).path), TOKENS[:80]
    right, spec = model.logits(tokens), model.spec
    for label in [*COMMON, *MISTAKES[name]]:
        model.spec = copy.deepcopy(spec)
        PLANTED[label](model.spec)
        moved = float(np.abs(model.logits(tokens) - right).max())
        print(f"{name}, {label}: {moved:.1e}")
        assert moved > SEEN, label


@pytest.mark.parametrize("name", LATENTS)
def test_a_gguf_has_the_bits_of_its_directory(name: str, tmp_path: Path, families: Path) -> None:
    directory = make(name, families, **family_gguf.LATENTS[name][1]).path
    assert_same_bits(logits(family_gguf.write(name, directory, tmp_path / "model.gguf")), logits(directory))


@pytest.mark.parametrize("dtype", ["F32", "Q8_0"])
def test_a_gguf_with_keys_and_values_in_one_tensor(dtype: str, tmp_path: Path, families: Path) -> None:
    """Older files have attn_kv_b. A quantised one is split without another rounding: its values are those of the file."""
    import gguf

    directory = make("deepseek_v2", families, kv_lora_rank=64).path
    split = logits(family_gguf.write("deepseek_v2", directory, tmp_path / "split.gguf"))
    quantised = gguf.GGMLQuantizationType[dtype]
    file = family_gguf.write("deepseek_v2", directory, tmp_path / "whole.gguf", whole_up=quantised)
    assert (logits(file).tobytes() == split.tobytes()) is (dtype == "F32")
    plain = family_gguf.write("deepseek_v2", directory, tmp_path / "plain.gguf", whole_up=quantised, unpacks=True)
    assert_same_bits(logits(file), logits(plain))


def test_layers_that_draft_are_left_out(tmp_path: Path, families: Path) -> None:
    """In GGUF they are counted as layers (llama.cpp#26848)."""
    directory = make("deepseek_v3", families, **family_gguf.LATENTS["deepseek_v3"][1]).path
    plain = logits(family_gguf.write("deepseek_v3", directory, tmp_path / "plain.gguf"))
    extra = {"blk.4.nextn.eh_proj.weight": np.zeros((64, 128), np.float32)}
    file = family_gguf.write("deepseek_v3", directory, tmp_path / "drafts.gguf", {"block_count": 5, "nextn_predict_layers": 1}, extra)
    assert_same_bits(logits(file), plain)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_of_a_quantised_layout_are_those_of_the_plain_model(tmp_path: Path, layout: str) -> None:
    """kv_b_proj is one of the quantised matrices."""
    folder = build(layout, tmp_path / "quantised")
    plain = logits(unquantised(folder, tmp_path / "plain"))
    assert np.ptp(plain) > 1
    assert_same_bits(logits(folder), plain)


def build(layout: str, path: Path) -> Path:
    """A DeepSeek V2 of one dense layer: q_proj and kv_b_proj are the layout's queries and outputs, both of [128, 128]."""
    path.mkdir(parents=True)
    stored, rng = read_file(DATA / layout / "model.safetensors"), np.random.default_rng(1)
    config = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "hidden_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 260,
        "intermediate_size": 96,
        "q_lora_rank": None,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "quantization_config": json.loads((DATA / layout / "config.json").read_text())["quantization_config"],
    }

    def random(shape: int | tuple[int, int], mean: float = 0.0) -> Stored:
        return Stored("F32", np.float32(mean) + rng.standard_normal(shape, np.float32) * np.float32(0.1))

    layer = "model.layers.0."
    tensors: Tensors = {name: random((260, 128)) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    tensors |= {f"{name}.weight": random(128, 1) for name in ("model.norm", f"{layer}input_layernorm", f"{layer}post_attention_layernorm")}
    tensors[f"{layer}self_attn.kv_a_layernorm.weight"] = random(128, 1)
    tensors[f"{layer}self_attn.kv_a_proj_with_mqa.weight"] = random((144, 128))
    tensors[f"{layer}self_attn.o_proj.weight"] = random((128, 64))
    tensors |= {f"{layer}mlp.{role}_proj.weight": random((96, 128)) for role in ("gate", "up")}
    tensors[f"{layer}mlp.down_proj.weight"] = random((128, 96))
    for source, role in (("q_proj.", "q_proj."), ("o_proj.", "kv_b_proj.")):
        begin = f"{layer}self_attn.{source}"
        tensors |= {f"{layer}self_attn.{role}{name.removeprefix(begin)}": part for name, part in stored.items() if name.startswith(begin)}
    write_file(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps(config))
    return path
