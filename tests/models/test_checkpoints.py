"""Quantised checkpoints: each layout's values are exact, the model's logits are those of the plain model, and what does not fit is refused
by name."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from checkpoint_files import (
    DATA,
    Array,
    Stored,
    Tensors,
    build,
    modules,
    pack,
    plain_values,
    read_file,
    read_matrix,
    unquantised,
    write_file,
)
from decoders import logits_of
from llmi import LLM, ModelFileError, OutOfMemoryError, UnsupportedModelError, _core
from llmi.models.inspection import inspect_model

PROMPT = [10, 20, 30, 40, 50, 60, 70, 80]
UP = "model.layers.0.self_attn.q_proj"
# Of each folder in tests/data/checkpoints: the type in which its quantised matrices are kept.
LAYOUTS = {
    "ao-fp8": "F32",
    "ao-int8wo": "Q8_0",
    "ao-intx": "Q8_0",
    "ar-auto_awq": "W8",
    "ar-auto_gptq": "Q4_0",
    "bnb-int8": "F32",
    "bnb-nf4": "F32",
    "ct-FP8_BLOCK": "F32",
    "ct-FP8_DYNAMIC": "F32",
    "ct-MXFP4": "MXFP4",
    "ct-NVFP4A16": "W8",
    "ct-W4A16": "Q4_0",
    "ct-W4A16_ASYM": "W8",
    "ct-W8A16": "Q8_0",
    "ct-W8A8": "Q8_0",
    "gm-gptq-act": "F32",
    "gm-gptq-v2": "W8",
}


def logits(path: Path, dtype: str = "float32", activation_bits: int = 8) -> Array:
    rows: Array = logits_of(path, PROMPT, dtype=dtype, activation_bits=activation_bits)
    return rows


def quantization_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return found


def test_every_layout_is_listed() -> None:
    assert sorted(LAYOUTS) == sorted(folder.name for folder in DATA.iterdir())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_exact(layout: str) -> None:
    tensors, quantization = read_file(DATA / layout / "model.safetensors"), quantization_of(DATA / layout)
    assert len(modules(tensors)) == 5
    for module in modules(tensors):
        dtype, values = read_matrix(DATA / layout, f"{module}.weight")
        assert dtype == LAYOUTS[layout]
        assert np.array_equal(values, plain_values(tensors, quantization, module)), module


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_the_plain_model(tmp_path: Path, layout: str) -> None:
    folder = build(layout, tmp_path / "quantised")
    plain = logits(unquantised(folder, tmp_path / "plain"))
    assert np.ptp(plain) > 1
    assert_same_bits(logits(folder), plain)
    if LAYOUTS[layout] != "F32":  # packed layers read activations of 8 or 16 bits
        assert 0 < np.abs(logits(folder, "auto") - plain).max() < 0.1
        assert 0 < np.abs(logits(folder, "auto", 16) - plain).max() < 1e-3


def test_a_model_runs_and_says_what_grew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = build("bnb-nf4", tmp_path)
    stored = sum(tensor.values.nbytes for tensor in read_file(DATA / "bnb-nf4" / "model.safetensors").values())
    held = 4 * (2 * 128 * 128 + 2 * 64 * 128 + 128 * 256)
    grown = f"bitsandbytes as fp32 {stored / 1e6:.1f} MB in the file, {held / 1e6:.1f} MB in memory"
    with caplog.at_level(logging.INFO, "llmi"), LLM(folder, kv_cache_memory_bytes=1 << 20) as llm:
        assert len(llm.generate([PROMPT], max_tokens=3, ignore_eos=True)[0].token_ids) == 3
    assert any(f"unpacked at load: {grown}" in record.getMessage() for record in caplog.records)
    report = inspect_model(folder)
    assert f"  unpacked     at load: {grown}" in str(report)
    whole = inspect_model(unquantised(folder, tmp_path / "plain"))
    assert (report.num_params, report.weight_bytes) == (whole.num_params, whole.weight_bytes)
    assert "unpacked" not in str(whole)
    awq = str(inspect_model(build("ar-auto_awq", tmp_path / "awq")))
    assert "at load: awq as 8-bit codes with fp32 scales 0.0 MB in the file, 0.1 MB in memory" in awq


def test_packed_matrices_stay_small(tmp_path: Path) -> None:
    report = inspect_model(build("ct-W4A16", tmp_path))
    held = {tensor.name: tensor for tensor in report.tensors}[f"{UP}.weight"]
    assert (held.dtype, held.shape, held.num_bytes, held.stored_bytes) == ("Q4_0", [128, 128], 128 * 4 * 18, 128 * 64 + 128 * 2 + 16)
    assert not report.unpacked and report.has_quantized_layers
    with LLM(tmp_path, kv_cache_memory_bytes=1 << 20) as llm:
        assert "q4" in llm.model_info.numerics_id


def test_scales_that_no_half_holds_stay_in_fp32(tmp_path: Path) -> None:
    """A bf16 scale below 2^-17 has bits that fp16 lacks."""
    folder = build("ct-W4A16", tmp_path)
    tensors = read_file(folder / "model.safetensors")
    scales = tensors[f"{UP}.weight_scale"].values.copy()
    scales[7, 0] = 0x3681  # (1 + 2^-7) 2^-18
    tensors[f"{UP}.weight_scale"] = Stored("BF16", scales)
    write_file(folder / "model.safetensors", tensors)
    dtype, values = read_matrix(folder, f"{UP}.weight")
    assert dtype == "W8" and np.array_equal(values, plain_values(tensors, quantization_of(folder), UP))


@pytest.mark.parametrize(("code", "dtype"), [(1, "MXFP4"), (252, "MXFP4"), (255, "F32")])
def test_extreme_powers_of_two(tmp_path: Path, code: int, dtype: str) -> None:
    """255 is NaN, which no form of fp4 holds."""
    folder = build("ct-MXFP4", tmp_path)
    tensors = read_file(folder / "model.safetensors")
    tensors[f"{UP}.weight_scale"] = Stored("U8", np.full_like(tensors[f"{UP}.weight_scale"].values, code))
    write_file(folder / "model.safetensors", tensors)
    found, values = read_matrix(folder, f"{UP}.weight")
    assert found == dtype
    if code == 255:
        assert np.isnan(values).all()
    else:
        assert np.array_equal(values, plain_values(tensors, quantization_of(folder), UP))


def test_widened_sizes_count_before_anything_is_read(tmp_path: Path) -> None:
    """A sparse file: 64 layers whose down projections are nf4 of 1 GB each, and 8.6 GB each in fp32."""
    folder = build("bnb-nf4", tmp_path)
    layers, inner = 64, 1 << 24
    count = 128 * inner
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": layers, "intermediate_size": inner}
    (folder / "config.json").write_text(json.dumps(config))
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [128, inner]}).encode()
    header: dict[str, Any] = {}
    end = 0

    def add(name: str, dtype: str, shape: list[int], value_bytes: int) -> None:
        nonlocal end
        size = int(np.prod(shape, dtype=object)) * value_bytes
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size

    for i in range(layers):
        add(f"model.layers.{i}.mlp.down_proj.weight.quant_state.bitsandbytes__nf4", "U8", [len(state)], 1)
    for name in ("model.embed_tokens", "lm_head"):
        add(f"{name}.weight", "BF16", [260, 128], 2)
    add("model.norm.weight", "BF16", [128], 2)
    for i in range(layers):
        for name, shape in (("q", [128, 128]), ("k", [64, 128]), ("v", [64, 128]), ("o", [128, 128])):
            add(f"model.layers.{i}.self_attn.{name}_proj.weight", "BF16", shape, 2)
        for name in ("gate", "up"):
            add(f"model.layers.{i}.mlp.{name}_proj.weight", "BF16", [inner, 128], 2)
        for name in ("input", "post_attention"):
            add(f"model.layers.{i}.{name}_layernorm.weight", "BF16", [128], 2)
        add(f"model.layers.{i}.mlp.down_proj.weight", "U8", [count // 2, 1], 1)
        add(f"model.layers.{i}.mlp.down_proj.weight.absmax", "F32", [count // 64], 4)
        add(f"model.layers.{i}.mlp.down_proj.weight.quant_map", "F32", [16], 4)
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + state * layers)
        file.truncate(8 + len(text) + end)
    with pytest.raises(OutOfMemoryError) as caught:
        LLM(folder, max_model_len=64)
    named = re.search(r"weights ([\d,]+) MB \(bf16 ([\d,]+) MB, f32 ([\d,]+) MB\)", str(caught.value))
    assert named is not None, str(caught.value)
    total, halves, widened = (int(part.replace(",", "")) for part in named.groups())
    assert abs(widened - layers * count * 4 / 1e6) < 2 and abs(total - halves - widened) < 2


# --- layouts that no committed folder has


def integers(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    how = {
        "type": "int",
        "num_bits": 8,
        "symmetric": True,
        "strategy": "channel",
        "group_size": None,
        "block_structure": None,
        "actorder": None,
    }
    group = {"format": "int-quantized", "targets": ["Linear"], "weights": how | weights, **more}
    return {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": group}}


RNG = np.random.default_rng(5)
HALVES = (RNG.standard_normal((6, 48)) * 0.1).astype(np.float16)
CODES = RNG.integers(0, 256, (96, 48))
BYTES = RNG.integers(-128, 128, (24, 96)).astype(np.int8)
FP8 = (RNG.integers(0, 126, (100, 72)) + 128 * RNG.integers(0, 2, (100, 72))).astype(np.uint8)
GROUPS = RNG.permutation(np.arange(96) // 16).astype(np.int32)
ZEROS = RNG.integers(1, 256, (6, 48))
ROWS = (RNG.standard_normal((24, 6)) * 0.1).astype(np.float32)
GPTQ = {"quant_method": "gptq", "bits": 8, "group_size": 16, "desc_act": True, "sym": False}
PLAIN_NF4 = {"quant_type": "nf4", "blocksize": 32, "dtype": "float16", "shape": [24, 96]}
SCALES = {"I8": Stored("F32", ROWS[:, :1].copy()), "F8": Stored("F32", ROWS[:3, :2].copy())}


def gptq(zeros: Array, groups: Array = GROUPS) -> Tensors:
    return {
        "qweight": Stored("I32", pack(CODES, 8, 0)),
        "qzeros": Stored("I32", pack(zeros, 8, 1)),
        "scales": Stored("F16", HALVES),
        "g_idx": Stored("I32", groups),
    }


OTHERS: dict[str, tuple[dict[str, Any], Tensors]] = {
    "gptq of 8 bits, by activation order": (GPTQ, gptq(ZEROS - 1)),
    "gptq v2 of 8 bits": (GPTQ | {"checkpoint_format": "gptq_v2", "desc_act": False}, gptq(ZEROS, np.arange(96, dtype=np.int32) // 16)),
    "8-bit rows with zeros": (
        integers({"symmetric": False}),
        {"weight": Stored("I8", BYTES), "weight_scale": SCALES["I8"], "weight_zero_point": Stored("I8", BYTES[:, :1].copy())},
    ),
    "8-bit groups of 16": (
        integers({"strategy": "group", "group_size": 16}),
        {"weight": Stored("I8", BYTES), "weight_scale": Stored("F32", ROWS)},
    ),
    "4-bit codes by activation order": (
        integers({"num_bits": 4, "strategy": "group", "group_size": 16, "actorder": "group"}, format="pack-quantized"),
        {
            "weight_packed": Stored("I32", pack(BYTES & 15, 4, 1)),
            "weight_scale": Stored("F32", ROWS),
            "weight_shape": Stored("I64", np.array([24, 96])),
            "weight_g_idx": Stored("I32", GROUPS),
        },
    ),
    "fp8 with one scale": (
        integers({"type": "float", "strategy": "tensor"}, format="float-quantized"),
        {"weight": Stored("F8_E4M3", FP8), "weight_scale": Stored("F32", ROWS[0, :1].copy())},
    ),
    "fp8 with one scale of the other name": (
        {"quant_method": "fp8", "activation_scheme": "static", "dequantize": False, "weight_block_size": None},
        {
            "weight": Stored("F8_E4M3", FP8),
            "weight_scale_inv": Stored("F32", np.float32(0.0625)),
            "activation_scale": Stored("F32", np.float32(0.05)),
        },
    ),
    "fp8 in blocks as text": (
        integers({"type": "float", "strategy": "block", "block_structure": "48x40"}, format="float-quantized"),
        {"weight": Stored("F8_E4M3", FP8), "weight_scale": SCALES["F8"]},
    ),
    "fp8 in blocks that do not fill": (
        {"quant_method": "fp8", "weight_block_size": [48, 40], "activation_scheme": "dynamic"},
        {"weight": Stored("F8_E4M3", FP8), "weight_scale_inv": SCALES["F8"]},
    ),
    "nf4 with scales in fp32": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"},
        {
            "weight": Stored("U8", RNG.integers(0, 256, (24 * 48, 1)).astype(np.uint8)),
            "weight.absmax": Stored("F32", RNG.standard_normal(72).astype(np.float32)),
            "weight.quant_map": Stored("F32", np.sort(RNG.standard_normal(16)).astype(np.float32)),
            "weight.quant_state.bitsandbytes__nf4": Stored("U8", np.frombuffer(json.dumps(PLAIN_NF4).encode(), np.uint8)),
        },
    ),
}


def write_matrix(path: Path, quantization: dict[str, Any], parts: Tensors) -> Path:
    write_file(path / "model.safetensors", {f"m.{part}": stored for part, stored in parts.items()})
    (path / "config.json").write_text(json.dumps({"quantization_config": quantization}))
    return path


@pytest.mark.parametrize("layout", OTHERS)
def test_other_layouts(tmp_path: Path, layout: str) -> None:
    quantization, parts = OTHERS[layout]
    _, values = read_matrix(write_matrix(tmp_path, quantization, parts), "m.weight")
    expected = plain_values({f"m.{part}": stored for part, stored in parts.items()}, quantization, "m")
    assert np.array_equal(values, expected) and np.unique(values).size > 100


# --- what is refused

Change = Callable[[dict[str, Any], Tensors], object]


def of_weights(**changes: Any) -> Change:
    return lambda quantization, tensors: quantization["config_groups"]["group_0"]["weights"].update(changes)


def keys(**changes: Any) -> Change:
    return lambda quantization, tensors: quantization.update(changes)


def without(part: str) -> Change:
    return lambda quantization, tensors: tensors.pop(f"{UP}.{part}")


def replaced(part: str, change: Callable[[Stored], Stored]) -> Change:
    return lambda quantization, tensors: tensors.update({f"{UP}.{part}": change(tensors[f"{UP}.{part}"])})


def added(part: str) -> Change:
    return lambda quantization, tensors: tensors.update({f"{UP}.{part}": Stored("F32", np.ones(3, np.float32))})


def shorter(stored: Stored) -> Stored:
    return Stored(stored.dtype, np.ascontiguousarray(stored.values[:-1]))


def filled(value: int) -> Callable[[Stored], Stored]:
    return lambda stored: Stored(stored.dtype, np.full_like(stored.values, value))


REFUSALS: dict[str, tuple[str, Change, type[Exception], str]] = {
    "scheme": ("ar-auto_awq", keys(quant_method="hqq"), UnsupportedModelError, "quantised by hqq"),
    "key": ("ar-auto_awq", keys(outlier_rows=3), UnsupportedModelError, "'outlier_rows' = 3"),
    "awq bits": ("ar-auto_awq", keys(bits=3), UnsupportedModelError, "'bits' of awq is 3"),
    "awq version": ("ar-auto_awq", keys(version="gemv"), UnsupportedModelError, "'gemv'"),
    "awq group": ("ar-auto_awq", keys(group_size=64), ModelFileError, "group_size = 64"),
    "awq group of 0": ("ar-auto_awq", keys(group_size=0), UnsupportedModelError, "'group_size' of awq is 0"),
    "awq without scales": ("ar-auto_awq", without("scales"), ModelFileError, f"'{UP}.scales' is missing"),
    "awq without zeros": ("ar-auto_awq", without("qzeros"), ModelFileError, f"'{UP}.qzeros' is missing"),
    "gptq bits": ("ar-auto_gptq", keys(bits=2), UnsupportedModelError, "'bits' of gptq is 2"),
    "gptq bits of another size": ("ar-auto_gptq", keys(bits=8), ModelFileError, "bits = 8"),
    "gptq format": ("gm-gptq-v2", keys(checkpoint_format="marlin", format="marlin"), UnsupportedModelError, "'marlin'"),
    "gptq two formats": ("gm-gptq-v2", keys(format="gptq"), UnsupportedModelError, "'gptq_v2', and format is 'gptq'"),
    "gptq zeros of the other version": ("ar-auto_gptq", keys(checkpoint_format="gptq_v2"), ModelFileError, "a zero of 7"),
    "gptq zeros": ("ar-auto_gptq", replaced("qzeros", filled(-1)), ModelFileError, "less one"),
    "gptq bits by module": ("gm-gptq-v2", keys(dynamic={"+:q_proj": {"bits": 8}}), UnsupportedModelError, "'dynamic'"),
    "gptq group": ("gm-gptq-act", replaced("g_idx", filled(4)), ModelFileError, "group 4 of 4"),
    "gptq negative group": ("gm-gptq-act", replaced("g_idx", filled(-1)), ModelFileError, "group -1 of 4"),
    "gptq without order": ("gm-gptq-act", without("g_idx"), ModelFileError, f"'{UP}.g_idx' is missing"),
    "ct bits": ("ct-W4A16", of_weights(num_bits=3), UnsupportedModelError, "num_bits' of compressed-tensors is 3"),
    "ct bits of another size": ("ct-W4A16", of_weights(num_bits=8), ModelFileError, "weight_shape is [128, 256]"),
    "ct group": ("ct-W4A16", of_weights(group_size=64), ModelFileError, "groups of 64) makes it [128, 4]"),
    "ct order": ("ct-W4A16", of_weights(actorder="column"), UnsupportedModelError, "'column'"),
    "ct order without g_idx": ("ct-W4A16", of_weights(actorder="group"), ModelFileError, "weight_g_idx' is missing"),
    "ct strategy": ("ct-W8A8", of_weights(strategy="attn_head"), UnsupportedModelError, "'attn_head'"),
    "ct another strategy": ("ct-W8A8", of_weights(strategy="tensor"), ModelFileError, "strategy 'tensor'"),
    "ct type": ("ct-W8A8", of_weights(type="float"), UnsupportedModelError, "'config_groups.group_0.weights.type'"),
    "ct key": ("ct-W8A8", of_weights(rotation=2), UnsupportedModelError, "weights.rotation' = 2"),
    "ct zeros": ("ct-W4A16_ASYM", of_weights(symmetric=True), UnsupportedModelError, "weight_zero_point' has no place"),
    "ct without zeros": ("ct-W4A16", of_weights(symmetric=False), ModelFileError, "weight_zero_point' is missing"),
    "ct transform": ("ct-W4A16", keys(transform_config={"config_groups": {"u": {}}}), UnsupportedModelError, "'transform_config'"),
    "ct sparsity": ("ct-W4A16", keys(sparsity_config={"format": "sparse-bitmask"}), UnsupportedModelError, "'sparse-bitmask'"),
    "ct without scale": ("ct-FP8_DYNAMIC", without("weight_scale"), ModelFileError, f"'{UP}.weight_scale' is missing"),
    "ct block": ("ct-FP8_BLOCK", of_weights(block_structure=[64, 128]), ModelFileError, "makes it [2, 2]"),
    "ct block of one number": ("ct-FP8_BLOCK", of_weights(block_structure=[128]), UnsupportedModelError, "block_structure"),
    "ct block as another text": ("ct-FP8_BLOCK", of_weights(block_structure="128x"), UnsupportedModelError, "block_structure"),
    "ct block of a huge text": (
        "ct-FP8_BLOCK",
        of_weights(block_structure="99999999999999999999x1"),
        UnsupportedModelError,
        "block_structure",
    ),
    "ct without global scale": ("ct-NVFP4A16", without("weight_global_scale"), ModelFileError, "weight_global_scale' is missing"),
    "ct short scales": ("ct-MXFP4", replaced("weight_scale", shorter), ModelFileError, "[127, 4]"),
    "ct tensor more": ("ct-MXFP4", added("weight_global_scale"), UnsupportedModelError, "weight_global_scale' has no place"),
    "nf4 state": ("bnb-nf4", without("weight.quant_state.bitsandbytes__nf4"), ModelFileError, "quant_state.bitsandbytes__nf4' is missing"),
    "nf4 type": ("bnb-nf4", keys(bnb_4bit_quant_type="fp4"), UnsupportedModelError, "'fp4'"),
    "nf4 storage": ("bnb-nf4", keys(bnb_4bit_quant_storage="bfloat16"), UnsupportedModelError, "'bfloat16'"),
    "nf4 scales": ("bnb-nf4", replaced("weight.absmax", shorter), ModelFileError, "blocksize 64 makes it [256]"),
    "nf4 without weight": ("bnb-nf4", without("weight"), ModelFileError, f"'{UP}.weight' is missing"),
    "int8 order": ("bnb-int8", replaced("weight_format", filled(2)), ModelFileError, "weight_format' names an order"),
    "int8 without scale": ("bnb-int8", without("SCB"), ModelFileError, f"'{UP}.SCB' is missing"),
    "torchao scheme": (
        "ao-fp8",
        keys(quant_type={"default": {"_type": "Int4WeightOnlyConfig"}}),
        UnsupportedModelError,
        "'Int4WeightOnlyConfig'",
    ),
    "torchao scales": ("ao-int8wo", replaced("_weight_scale", shorter), ModelFileError, "no equal groups"),
    "plain tensor of integers": (
        "ct-W4A16",
        lambda quantization, tensors: tensors.update({"model.norm.weight": Stored("I32", np.ones(128, np.int32))}),
        ModelFileError,
        "model.norm.weight_packed' is missing",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_does_not_fit_is_named(tmp_path: Path, case: str) -> None:
    layout, change, kind, words = REFUSALS[case]
    folder = build(layout, tmp_path)
    config, tensors = json.loads((folder / "config.json").read_text()), read_file(folder / "model.safetensors")
    change(config["quantization_config"], tensors)
    (folder / "config.json").write_text(json.dumps(config))
    write_file(folder / "model.safetensors", tensors)
    with pytest.raises(kind) as caught:
        LLM(folder, kv_cache_memory_bytes=1 << 20)
    assert words in str(caught.value)


def test_two_scales_of_an_fp8_matrix(tmp_path: Path) -> None:
    scales = {"weight_scale": Stored("F32", np.float32(1.0)), "weight_scale_inv": Stored("F32", np.float32(1.0))}
    folder = write_matrix(tmp_path, {"quant_method": "fp8", "weight_block_size": None}, {"weight": Stored("F8_E4M3", FP8)} | scales)
    with pytest.raises(_core.CoreError, match="weight_scale_inv' has no place"):
        read_matrix(folder, "m.weight")


def test_descriptions_of_other_programs_are_named(tmp_path: Path) -> None:
    folder = build("ct-FP8_DYNAMIC", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "hf_quant_config.json").write_text("{}")
    with pytest.raises(UnsupportedModelError, match=r"hf_quant_config\.json: NVIDIA ModelOpt's"):
        LLM(folder, kv_cache_memory_bytes=1 << 20)
    (folder / "config.json").write_text(json.dumps(config | {"quantization": {"group_size": 64, "bits": 4}}))
    with pytest.raises(UnsupportedModelError, match="'quantization' says that the weights are in MLX's packed format"):
        LLM(folder, kv_cache_memory_bytes=1 << 20)


def test_quantised_tensors_without_a_config(tmp_path: Path) -> None:
    folder = build("ar-auto_gptq", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    given = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"quantization_config in config\.json describes"):
        LLM(folder, kv_cache_memory_bytes=1 << 20)
    (folder / "quantize_config.json").write_text(json.dumps(given))
    with pytest.raises(
        UnsupportedModelError, match=r"quantize_config\.json: AutoGPTQ's description .*hf_overrides={\"quantization_config\""
    ):
        LLM(folder, kv_cache_memory_bytes=1 << 20)
    with LLM(folder, kv_cache_memory_bytes=1 << 20, hf_overrides={"quantization_config": given}) as llm:
        assert "q4" in llm.model_info.numerics_id
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": given}))
    plain = {name: stored for name, stored in read_file(folder / "model.safetensors").items() if stored.dtype == "F32"}
    write_file(folder / "model.safetensors", plain)
    with pytest.raises(ModelFileError, match="no tensor is quantised"):
        LLM(folder, kv_cache_memory_bytes=1 << 20)
