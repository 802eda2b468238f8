"""`quantize` with llama.cpp's mixtures, a rotation before it, and column scales (AWQ)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_model import encode, metadata_of, tensors_of
from llmi import LLM, InvalidParamsError, UnsupportedModelError
from llmi.cli.commands import main
from llmi.compress import Calibration, calibrate, evaluate, quantize, rotate
from llmi.compress.chosen_types import TYPES
from llmi.compress.column_scales import ScaledSource, powers
from llmi.compress.gguf_file import GgufSource, StoredTensor
from llmi.compress.made_files import Source
from llmi.compress.mixtures import MIXTURES, of_mixture
from llmi.compress.replaying import replay_file
from llmi.families import ModelSpec
from llmi.families.spec import LayerSpec
from llmi.testing import tiny_model

RNG = np.random.default_rng(9)
TEXTS = [RNG.integers(1, 200, 300).tolist()]
SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 24}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama whose norms differ by column, so that some columns read much more than others."""
    folder = tmp_path_factory.mktemp("source")
    model = tiny_model(path=folder / "model", vocab_size=300, hidden_size=64, intermediate_size=96)
    tensors = tensors_of(model)
    for name, values in tensors.items():
        if "norm" in name:
            tensors[name] = values * np.exp(RNG.standard_normal(values.shape)).astype(np.float32)
    path = folder / "source.gguf"
    path.write_bytes(encode({**metadata_of(model), "general.file_type": 0}, tensors))
    return path


@pytest.fixture(scope="module")
def calibration(source: Path) -> Calibration:
    return calibrate(source, texts=TEXTS, gram=True, **SMALL)


def types_of(name: str, num_layers: int, *, family: str = "llama", experts: int = 0, tied: bool = False) -> dict[str, str]:
    """Of a model of these layers: {tensor: type}."""
    parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp", "attn_q_norm"]
    names = [f"blk.{layer}.{part}.weight" for layer in range(num_layers) for part in parts]
    names += ["token_embd.weight", *([] if tied else ["output.weight"])]
    spec = ModelSpec(family=family, num_heads=8, num_kv_heads=2, layers=[LayerSpec() for _ in range(num_layers)])
    spec.layers[0].moe.num_experts = experts
    return of_mixture(name, [StoredTensor(each, (512, 64), 0, 0) for each in names], spec, has_importance=False)


def test_more_bits_go_to_the_first_and_last_layers_and_every_third() -> None:
    found = types_of("Q4_K_M", 30)
    more = [layer for layer in range(30) if found[f"blk.{layer}.ffn_down.weight"] == "Q6_K"]
    assert more == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29]
    assert more == [layer for layer in range(30) if found[f"blk.{layer}.attn_v.weight"] == "Q6_K"]
    assert found["output.weight"] == "Q6_K" and found["token_embd.weight"] == "Q4_K"
    assert {found[f"blk.3.{part}.weight"] for part in ("attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up")} == {"Q4_K"}
    assert not [name for name in found if "gate_inp" in name or "norm" in name]
    assert types_of("Q4_K_M", 4, tied=True)["token_embd.weight"] == "Q6_K"


@pytest.mark.parametrize(
    ("name", "tensor", "settings", "want"),
    [
        ("Q4_K_S", "blk.3.attn_v", {}, "Q5_K"),
        ("Q4_K_S", "blk.4.attn_v", {}, "Q4_K"),
        ("Q4_K_S", "blk.1.ffn_down", {}, "Q5_K"),
        ("Q3_K_M", "blk.1.attn_v", {}, "Q5_K"),
        ("Q3_K_M", "blk.9.attn_output", {}, "Q4_K"),
        ("Q3_K_L", "blk.9.ffn_down", {}, "Q5_K"),
        ("Q5_K_M", "blk.0.attn_v", {}, "Q6_K"),
        ("Q8_0", "output", {}, "Q8_0"),
        ("Q4_0", "output", {}, "Q6_K"),
        ("IQ4_NL", "blk.5.attn_v", {}, "Q5_K"),
        ("IQ4_NL", "blk.1.ffn_down", {}, "Q5_K"),
        ("Q4_K_M", "blk.5.attn_k", {"experts": 8}, "Q8_0"),
        ("Q4_K_M", "blk.5.attn_output", {"experts": 8}, "Q5_K"),
        ("Q4_K_M", "blk.0.ffn_down", {"family": "falcon"}, "Q6_K"),
        ("Q4_K_M", "blk.1.ffn_down", {"family": "falcon"}, "Q5_K"),
        ("Q4_K_M", "output", {"family": "falcon"}, "Q8_0"),
    ],
)
def test_rules_of_mixtures(name: str, tensor: str, settings: dict[str, Any], want: str) -> None:
    assert types_of(name, 16, **settings)[f"{tensor}.weight"] == want
    assert {kind for kind, _ in MIXTURES.values()} <= set(TYPES)


def test_a_mixture_is_a_whole_file(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    assert main(["quantize", str(source), str(path), "--like", "Q5_K_M", "--tensor", "*attn_q*=Q4_0"]) == 0
    types = {tensor.name: tensor.type for tensor in GgufSource(path).tensors}
    assert (types["token_embd.weight"], types["blk.0.attn_v.weight"], types["blk.0.attn_q.weight"]) == (8, 7, 2)  # 64 columns: no K types
    assert GgufSource(path).entries["general.file_type"][4:] == (17).to_bytes(4, "little")
    assert replay_file(path, source)[0]


def test_a_rotation_first(source: Path, tmp_path: Path) -> None:
    turned = tmp_path / "turned" / source.name
    turned.parent.mkdir()
    rotate(source, turned, seed=3)
    sums = calibrate(turned, tokens=500, gram=True)
    report = quantize(source, tmp_path / "a.gguf", type="Q8_0", rotate=3, method="gptq", calibration=sums)
    assert report.source_bytes == source.stat().st_size and not report.requantized
    with LLM(tmp_path / "a.gguf", **SMALL) as small, LLM(turned, **SMALL) as whole:
        for name in ("blk.0.ffn_down.weight", "blk.1.attn_q.weight"):
            assert 0 < np.abs(small.weights[name] - whole.weights[name]).max() < 0.02 * np.abs(whole.weights[name]).max()
    assert replay_file(tmp_path / "a.gguf", source)[0]  # the rotated model's calibration is made again


def test_a_calibration_made_now(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmi.compress.preparing.OWN_TOKENS", 400)
    quantize(source, tmp_path / "a.gguf", calibration="own")
    quantize(source, tmp_path / "b.gguf", calibration=calibrate(source, tokens=400))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_scaled_columns_are_the_same_function(source: Path, calibration: Calibration, tmp_path: Path) -> None:
    kinds = {tensor.name: "Q4_0" for tensor in GgufSource(source).tensors if "norm" not in tensor.name}
    scaled = ScaledSource(Source(source), kinds, calibration)
    assert {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"} <= set(scaled.exponents)
    before = Source(source)
    tensors = {tensor.name: scaled.values(tensor.name).reshape(tensor.shape[::-1]) for tensor in before.gguf.tensors}
    changed = tmp_path / "scaled.gguf"
    changed.write_bytes(encode(metadata_of(source.parent / "model"), tensors))
    assert (evaluate(changed, base=source, texts=TEXTS, window=64, **SMALL).kl or 0.0) < 1e-4  # a cache of fp16 rounds other values
    for name, values in tensors.items():
        assert bool((values != before.values(name).reshape(values.shape)).any()) == scaled.changes(name)
    sums = calibrate(changed, texts=TEXTS, gram=True, **SMALL)
    for name in ("blk.1.attn_q.weight", "blk.1.attn_output.weight", "blk.1.ffn_down.weight"):
        assert np.allclose(sums.norms(name), scaled.calibration.norms(name), rtol=0.01)
        assert np.allclose(np.diag(sums.gram(name)), np.diag(scaled.calibration.gram(name)), rtol=0.02)


@pytest.mark.parametrize("eighths", range(9))
def test_powers_are_roots(eighths: int) -> None:
    norms = np.exp(RNG.standard_normal(40))
    found = powers(norms, eighths).astype(np.float64)
    middle = (np.log(norms.max()) + np.log(norms.min())) / 2
    assert np.allclose(np.log(found), eighths / 8 * (np.log(norms) - middle), atol=1e-6)
    assert (powers(np.zeros(3), eighths) == 1).all()


@pytest.mark.parametrize("method", ["search", "absmax", "gptq"])
def test_column_scales_lose_less(source: Path, calibration: Calibration, tmp_path: Path, method: str) -> None:
    costs = []
    for name, awq in (("a.gguf", True), ("b.gguf", False)):
        given = calibration if awq or method != "absmax" else None
        report = quantize(source, tmp_path / name, type="Q4_0", method=method, calibration=given, awq=awq)
        assert any("awq, exponent" in remark for remark in report.remarks.values()) == awq
        costs.append(evaluate(tmp_path / name, base=source, texts=TEXTS, window=64, **SMALL).kl or 0.0)
    assert costs[0] < costs[1] * (1.3 if method == "gptq" else 1.0)  # feedback makes up for most of it already
    calibration.save(tmp_path / "c.imatrix")
    assert replay_file(tmp_path / "a.gguf", source, tmp_path / "c.imatrix")[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"like": "Q4_K_M", "type": "Q4_0"}, "take one of both"),
        ({"like": "Q4_K_XL"}, "like must be one of"),
        ({"rotate": -1}, "rotate must be"),
        ({"awq": True}, "needs a calibration"),
        ({"awq": 3}, "awq must be"),
        ({"method": "absmax", "calibration": "own"}, "reads none"),
        ({"rotate": 0, "calibration": "of the source"}, "must be of the rotated model"),
    ],
)
def test_what_cannot_be(source: Path, calibration: Calibration, tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    if settings.get("calibration") == "of the source":
        settings = {**settings, "calibration": calibration}
    with pytest.raises(InvalidParamsError, match=says):
        quantize(source, tmp_path / "a.gguf", **settings)
    assert not list(tmp_path.iterdir())


def test_bytes_are_equal_on_any_threads(source: Path, calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.gguf", "b.gguf"):
        quantize(source, tmp_path / name, like="Q4_K_S", calibration=calibration, awq=True)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_graphs_without_such_links(source: Path, calibration: Calibration) -> None:
    opened = Source(source)
    opened.spec.layers[1].moe.num_experts = 4
    with pytest.raises(UnsupportedModelError, match=r"awq: .* whose layer 1 is not plain attention"):
        ScaledSource(opened, {}, calibration)
