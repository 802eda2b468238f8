"""How files store experts: quantised, one matrix for each; MXFP4 of all in one tensor, as gpt-oss has it; what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from checkpoint_files import DATA, Array, Stored, build, read_file, unquantised, write_file
from decoders import logits_of, open_decoder
from llmi import LLM, ModelFileError, UnsupportedModelError, _core
from llmi.families import spec_of
from llmi.models.files import open_model
from llmi.models.inspection import inspect_model
from tiny_families import make

PROMPT = [10, 20, 30, 40, 50, 60, 70, 80]
LAYOUTS = sorted(folder.name for folder in DATA.iterdir())
BLOCK = "model.layers.0.block_sparse_moe"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def logits(path: Path, dtype: str = "float32", activation_bits: int = 16) -> Array:
    rows: Array = logits_of(path, PROMPT, dtype=dtype, activation_bits=activation_bits)
    return rows


def weight_types(path: Path) -> str:
    with LLM(path, kv_cache_memory_bytes=1 << 20, max_model_len=64) as llm:
        types: str = llm._engine.info()["weight_types"]
        return types


def mixtral(layout: str, path: Path) -> Path:
    """The folder that `build` makes with four experts of 128: in turn its two matrices [128, 128]."""
    folder = build(layout, path)
    tensors = {name: stored for name, stored in read_file(folder / "model.safetensors").items() if ".mlp." not in name}
    own = {which: f"model.layers.0.self_attn.{which}_proj" for which in "qo"}
    for expert in range(4):
        for place, part in enumerate(("w1", "w3", "w2")):
            module = own["qo"[(expert >> place) % 2]]
            for name in [name for name in tensors if name.startswith(f"{module}.")]:
                tensors[name.replace(module, f"{BLOCK}.experts.{expert}.{part}")] = tensors[name]
    router = np.random.default_rng(2).standard_normal((4, 128)).astype(np.float32)
    tensors[f"{BLOCK}.gate.weight"] = Stored("F32", router)
    write_file(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in ("mlp_bias", "attention_bias", "pretraining_tp")}
    config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": 128, "num_local_experts": 4}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_matrix_an_expert(tmp_path: Path, layout: str) -> None:
    folder = mixtral(layout, tmp_path / "quantised")
    plain = logits(unquantised(folder, tmp_path / "plain"))
    assert np.ptp(plain) > 1
    assert_same_bits(logits(folder), plain)
    assert np.abs(logits(folder, "auto") - plain).max() < 1e-2


def test_experts_of_several_types(tmp_path: Path) -> None:
    """A scale that fp16 does not hold makes one expert W8, and so all."""
    folder = mixtral("ct-W4A16", tmp_path / "quantised")
    tensors = read_file(folder / "model.safetensors")
    name = f"{BLOCK}.experts.1.w1.weight_scale"
    scales = tensors[name].values.copy()
    scales[0, 0] = np.array([1e-30], np.float32).view(np.uint32)[0] >> 16
    write_file(folder / "model.safetensors", tensors | {name: Stored("BF16", scales)})
    assert weight_types(folder) == "f32+q4+q8f"
    assert_same_bits(logits(folder), logits(unquantised(folder, tmp_path / "plain")))
    assert np.abs(logits(folder, "auto") - logits(folder)).max() < 1e-2


def mxfp4(folder: Path, path: Path) -> tuple[Path, Path]:
    """A gpt-oss with random blocks, and the same with their values in fp32."""
    tensors, config = read_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    packed, plain, rng = dict(tensors), dict(tensors), np.random.default_rng(3)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, cols, rows = tensors[name].values.shape
        codes = rng.integers(0, 16, (experts, rows, cols // 32, 32)).astype(np.uint8)
        exponents = rng.integers(122, 126, (experts, rows, cols // 32)).astype(np.uint8)
        values = E2M1[codes] * np.exp2(exponents.astype(np.float32) - 127)[..., None]
        plain[name] = Stored("F32", np.ascontiguousarray(values.reshape(experts, rows, cols).transpose(0, 2, 1)))
        packed[f"{name}_blocks"] = Stored("U8", codes[..., ::2] | codes[..., 1::2] << 4)
        packed[f"{name}_scales"] = Stored("U8", exponents)
        del packed[name]
    for kind, kept, more in (("packed", packed, {"quantization_config": {"quant_method": "mxfp4"}}), ("plain", plain, {})):
        (path / kind).mkdir(parents=True)
        write_file(path / kind / "model.safetensors", kept)
        (path / kind / "config.json").write_text(json.dumps(config | more))
        (path / kind / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    return path / "packed", path / "plain"


@pytest.mark.parity
def test_mxfp4_of_gpt_oss(tmp_path: Path, families: Path) -> None:
    packed, plain = mxfp4(make("gpt_oss", families).path, tmp_path)
    assert_same_bits(logits(packed), logits(plain))
    assert 0 < np.abs(logits(packed, "auto") - logits(plain)).max() < 1e-2
    assert weight_types(packed) == "f32+q4te"
    report = inspect_model(packed)
    assert report.num_params == inspect_model(plain).num_params
    assert 0 < report.num_active_params < report.num_params and 0 < report.active_bytes < report.weight_bytes
    assert "  experts      3 of 8 of 96, in 4 layers; a token uses" in str(report)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"_blocks": (8, 192, 2, 8)}, "where blocks are"),
        ({"_scales": (8, 192, 1)}, "has shape"),
        ({"_blocks": None}, "is missing"),
        ({"_other": (1,)}, "does not read in this place"),
    ],
)
def test_blocks_that_do_not_fit(tmp_path: Path, families: Path, changes: dict[str, Any], message: str) -> None:
    folder, _ = mxfp4(make("gpt_oss", families).path, tmp_path)
    tensors, stem = read_file(folder / "model.safetensors"), "model.layers.0.mlp.experts.gate_up_proj"
    for ending, shape in changes.items():
        tensors.pop(stem + ending, None)
        if shape is not None:
            tensors[stem + ending] = Stored("U8", np.zeros(shape, np.uint8))
    write_file(folder / "model.safetensors", tensors)
    with pytest.raises((ModelFileError, UnsupportedModelError, _core.CoreError), match=message):
        open_decoder(folder)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("name", "tensor", "shape", "message"),
    [
        ("mixtral", "model.layers.1.block_sparse_moe.experts.5.w1.weight", None, "experts.5.w1.weight' is missing"),
        ("mixtral", "model.layers.1.block_sparse_moe.experts.5.w2.weight", (64, 64), r"shape \[64, 64\], the config says \[64, 96\]"),
        ("mixtral", "model.layers.0.block_sparse_moe.gate.weight", (7, 64), r"shape \[7, 64\], the config says \[8, 64\]"),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.8.w1.weight", (96, 64), "no place in the model"),
        ("gpt_oss", "model.layers.0.mlp.experts.down_proj", (7, 96, 64), r"shape \[7, 96, 64\], the config says \[8, 96, 64\]"),
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj_bias", (8, 190), r"shape \[8, 190\], the config says \[8, 192\]"),
    ],
)
def test_experts_that_do_not_fit(tmp_path: Path, families: Path, name: str, tensor: str, shape: tuple[int, ...], message: str) -> None:
    source = make(name, families).path
    tensors = read_file(source / "model.safetensors")
    tensors.pop(tensor, None)
    if shape is not None:
        tensors[tensor] = Stored("F32", np.zeros(shape, np.float32))
    write_file(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    with pytest.raises(_core.CoreError, match=message):
        open_decoder(tmp_path)


@pytest.mark.parity
def test_names_of_experts(families: Path) -> None:
    """Which the spec's text and lists show."""
    spec = spec_of(open_model(make("mixtral", families).path).core)
    assert "model.layers.3.block_sparse_moe.experts.7.w2.weight" in spec.tensor_names()
    assert spec.used_shares()["model.layers.0.block_sparse_moe.experts.0.w1.weight"] == 2 / 8
    assert "moe.num_experts" in str(spec) and "moe.router.renormalise" in str(spec)
