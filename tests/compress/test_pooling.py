"""Heads pooled by least squares: heads of values that are maps of each other become one without loss."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_model import encode, metadata_of, tensors_of
from llmi import InvalidParamsError
from llmi.compress import Calibration, calibrate, evaluate, pool_heads
from llmi.compress.replaying import replay_file
from llmi.testing import tiny_model

RNG = np.random.default_rng(1)
TEXTS = [RNG.integers(1, 200, 300).tolist() for _ in range(2)]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads 1 and 3 of values are those before them, turned; their keys are equal."""
    folder = tmp_path_factory.mktemp("source")
    model = tiny_model(path=folder / "model", vocab_size=300, hidden_size=128, num_attention_heads=8, num_key_value_heads=4, head_dim=16)
    tensors: dict[str, Any] = {name: np.array(values) for name, values in tensors_of(model).items()}
    for name, values in tensors.items():
        if "attn_k" in name or "attn_v" in name:
            heads = values.reshape(4, 16, -1)
            for head in (0, 2):
                turn = np.eye(16) if "attn_k" in name else np.linalg.qr(RNG.standard_normal((16, 16)))[0]
                heads[head + 1] = turn @ heads[head]
    path = folder / "source.gguf"
    path.write_bytes(encode(metadata_of(model), tensors))
    return path


@pytest.fixture(scope="module")
def calibration(source: Path) -> Calibration:
    return calibrate(source, texts=TEXTS, gram=True)


def test_maps_go_into_the_output_projection(source: Path, calibration: Calibration, tmp_path: Path) -> None:
    pool_heads(source, tmp_path / "a.gguf", num_kv_heads=2)
    pool_heads(source, tmp_path / "b.gguf", num_kv_heads=2, calibration=calibration)

    def cost(name: str) -> float:
        return evaluate(tmp_path / name, base=source, texts=TEXTS, window=64, kv_cache_memory_bytes=1 << 24).kl or 0.0

    assert cost("a.gguf") > 1 and cost("b.gguf") < 1e-2


def test_bytes_are_equal_on_any_threads_and_instruction_set(
    source: Path, calibration: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration.save(tmp_path / "c.imatrix")
    pool_heads(source, tmp_path / "a.gguf", num_kv_heads=2, calibration=tmp_path / "c.imatrix")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setenv("LLMI_ISA", "reference")
    assert replay_file(tmp_path / "a.gguf", source)[0]


def test_products_are_needed(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParamsError, match="gram=True"):
        pool_heads(source, tmp_path / "a.gguf", num_kv_heads=2, calibration=calibrate(source, texts=TEXTS))
    assert not (tmp_path / "a.gguf").exists()
