"""Quantisation at load, and drafts by a cheaper form of the target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from llmi import LLM, SamplingParams, SelfDraft, SpeculativeConfig, _core
from llmi.testing import assert_lossless, assert_same_tokens, tiny_model

T = _core.testing


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0"])
def test_blocks_are_ggmls(dtype: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the extra `test` brings gguf")
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((64, 256)) * 10.0 ** rng.integers(-6, 3, (64, 1))).astype(np.float32)
    values[3, :32] = 0
    values[4, :64] = np.float32(0.5)
    kind = getattr(gguf.GGMLQuantizationType, dtype)
    assert T.quantize_blocks(dtype, values.reshape(-1)) == gguf.quantize(values, kind).tobytes()


def test_packed_like_a_file_of_that_type() -> None:
    """Quantised as it is loaded, and stored quantised: the same products."""
    rng = np.random.default_rng(1)
    weights, x = rng.standard_normal((48, 64)).astype(np.float32), rng.standard_normal((3, 64)).astype(np.float32)
    table = _core.system_info()["tables"][-1]
    for dtype, name in (("Q8_0", "q8_0"), ("Q4_0", "q4_0")):
        stored = T.PackedMatrix(table, dtype, T.quantize_blocks(dtype, weights.reshape(-1)), 48, 64)
        loaded = T.PackedMatrix(table, "F32", weights.tobytes(), 48, 64, name)
        assert_same_bits(T.linear(table, [stored], x), T.linear(table, [loaded], x))


def test_quantization_of_a_model(tiny_path: Callable[..., Path]) -> None:
    path, size = tiny_path(), {}
    for quantization in (None, "q8_0", "q4_0"):
        with LLM(path, quantization=quantization, kv_cache_memory_bytes=1 << 22, max_model_len=128) as llm:
            size[quantization] = llm.model_info.weight_bytes
            name = {None: "w:f32", "q8_0": "w:q8-", "q4_0": "w:q4-"}[quantization]
            assert name in llm.model_info.numerics_id
            out = llm.generate([[1, 2, 3]], max_tokens=8, seed=1, ignore_eos=True, logprobs=0)[0]
            assert llmi.replay(out.receipt(), llm)
            assert out.receipt().fields["quantization"] == quantization
    assert size[None] > 3.5 * size["q8_0"] > 6 * size["q4_0"]
    with pytest.raises(llmi.UnsupportedCombinationError, match="not both"):
        LLM(path, quantization="q8_0", dtype="float32")
    with pytest.raises(llmi.UnsupportedCombinationError, match="None, q8_0 or q4_0"):
        LLM(path, quantization="awq")


def test_bad_values_are_not_quantised(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    import shutil

    from safetensors.numpy import load_file, save_file

    shutil.copytree(tiny_path(), tmp_path / "nan")
    tensors = load_file(tmp_path / "nan/model.safetensors")
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    tensors[name][3, 5] = np.nan
    save_file(tensors, tmp_path / "nan/model.safetensors")
    with pytest.raises(llmi.ModelFileError, match=r"down_proj.weight' holds NaN or infinity: it cannot be quantised"):
        LLM(tmp_path / "nan", quantization="q4_0", kv_cache_memory_bytes=1 << 22)


DRAFTS: dict[str, Any] = {
    "skip": {"skip_layers": [1]},
    "exit": {"exit_layer": 2},
    "q8_0": {"quantization": "q8_0"},
    "q4_0": {"quantization": "q4_0"},
}


@pytest.fixture(scope="module")
def target() -> Any:
    with LLM(tiny_model(num_layers=3), kv_cache_memory_bytes=1 << 24, max_model_len=256) as llm:
        yield llm


@pytest.mark.parametrize("name", DRAFTS)
def test_drafts_change_nothing(target: LLM, name: str) -> None:
    drafter = SelfDraft(**DRAFTS[name])
    assert_lossless(SpeculativeConfig(drafter, 3), target, num_tokens=400)
    params = SamplingParams(max_tokens=40, seed=2, ignore_eos=True)
    plain = target.generate([[1, 2, 3], [4]], params)
    drafted = target.generate([[1, 2, 3], [4]], params, speculative_config=SpeculativeConfig(drafter, 3))
    assert_same_tokens(drafted, plain)
    rate = np.mean([out.outputs[0].spec_decode_metrics.acceptance_rate for out in drafted])  # type: ignore[union-attr]
    assert rate > (0.6 if name == "q8_0" else 0.02), rate


def test_layers_left_out_are_the_model_without_them(tmp_path: Path) -> None:
    """exit_layer=1 of three is a model of one layer; skip_layers=[1] has the others in their order."""
    from safetensors.numpy import load_file, save_file

    whole = tiny_model(num_layers=3)
    tensors = load_file(whole / "model.safetensors")
    for kept in ([0], [0, 2]):
        path = tmp_path / str(len(kept))
        path.mkdir()
        for file in whole.iterdir():
            (path / file.name).write_bytes(file.read_bytes())
        config = (whole / "config.json").read_text().replace('"num_hidden_layers": 3', f'"num_hidden_layers": {len(kept)}')
        (path / "config.json").write_text(config)
        part = {name: tensor for name, tensor in tensors.items() if ".layers." not in name}
        for new, old in enumerate(kept):
            part |= {name.replace(f".layers.{old}.", f".layers.{new}."): t for name, t in tensors.items() if f".layers.{old}." in name}
        save_file(part, path / "model.safetensors")
        with LLM(path, kv_cache_memory_bytes=1 << 22) as built, LLM(whole, _layers=kept, kv_cache_memory_bytes=1 << 22) as left:
            assert left.model_info.num_layers == built.model_info.num_layers == len(kept)
            assert_same_bits(left.sequence([1, 2, 3]).logits, built.sequence([1, 2, 3]).logits)


def test_what_self_draft_refuses(target: LLM, tiny_path: Callable[..., Path]) -> None:
    for wrong in ({}, {"exit_layer": 1, "quantization": "q8_0"}):
        with pytest.raises(llmi.InvalidParamsError, match="exactly one"):
            SelfDraft(**wrong)  # type: ignore[arg-type]
    for arguments, message in (
        ({"exit_layer": 3}, r"exit_layer must lie in \[1, 2\]"),
        ({"skip_layers": [3]}, "has layers 0 to 2"),
        ({"skip_layers": [0, 1, 2]}, "leaves no layer"),
    ):
        with pytest.raises(llmi.InvalidParamsError, match=message):
            target.generate([1], speculative_config=SelfDraft(**arguments))  # type: ignore[arg-type]
    drafter = SelfDraft(exit_layer=1)
    target.generate([1], max_tokens=2, seed=1, speculative_config=drafter)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22) as other, pytest.raises(llmi.UnsupportedCombinationError, match="another model"):
        other.generate([1], speculative_config=drafter)
    with (
        LLM(tiny_path(), quantization="q4_0", kv_cache_memory_bytes=1 << 22, max_model_len=64) as small,
        pytest.raises(llmi.UnsupportedCombinationError, match="no smaller"),
    ):
        small.generate([1], speculative_config=SelfDraft(quantization="q8_0"))
    assert "exit_layer=1" in repr(drafter)
