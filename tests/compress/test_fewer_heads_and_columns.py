"""`drop_heads` and `drop_columns`: what goes is what adds least, and what stays keeps its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_model import encode, metadata_of, tensors_of
from llmi import LLM
from llmi.cli.commands import main
from llmi.compress import drop_columns, drop_heads, evaluate, quantize
from llmi.compress.replaying import replay_file
from llmi.testing import tiny_model

RNG = np.random.default_rng(6)
TEXT = [RNG.integers(1, 200, 64).tolist()]
SIZE = 16
Array = np.ndarray[Any, Any]


def source_of(folder: Path, idle_head: int | None = None, idle_columns: slice | None = None) -> Path:
    """Four heads of keys and values with two of queries each; a head and columns that add almost nothing."""
    model = tiny_model(
        path=folder / "model", vocab_size=300, hidden_size=128, num_attention_heads=8, num_key_value_heads=4, head_dim=SIZE, num_layers=3
    )
    tensors = tensors_of(model)
    for name in list(tensors):
        tensors[name] = np.array(tensors[name])
        if idle_head is not None and "attn_output" in name:
            tensors[name][:, idle_head * 2 * SIZE : (idle_head + 1) * 2 * SIZE] *= np.float32(1e-3)
        if idle_columns is not None and "ffn_down" in name:
            tensors[name][:, idle_columns] *= np.float32(1e-3)
    path = folder / "source.gguf"
    path.write_bytes(encode(metadata_of(model), tensors))
    return path


def weights_of(path: Path) -> dict[str, Array]:
    with LLM(path, kv_cache_memory_bytes=1 << 24) as llm:
        return {name: np.array(llm.weights[name]) for name in llm.weights}


def cost(path: Path, base: Path) -> float:
    return evaluate(path, base=base, texts=TEXT, window=32, kv_cache_memory_bytes=1 << 24).kl or 0.0


def test_heads_that_are_named_go(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    report = drop_heads(source, tmp_path / "a.gguf", heads=[3, 1])
    assert report.remarks == {"heads": "1, 3 of 4 left out, with 2 of queries each"} and not report.tensors
    old, new = weights_of(source), weights_of(tmp_path / "a.gguf")
    for layer in range(3):
        for name, size in (("attn_q", 2 * SIZE), ("attn_k", SIZE), ("attn_v", SIZE)):
            heads = old[f"blk.{layer}.{name}.weight"].reshape(4, size, -1)
            assert (new[f"blk.{layer}.{name}.weight"] == heads[[0, 2]].reshape(2 * size, -1)).all()
        columns = old[f"blk.{layer}.attn_output.weight"].reshape(128, 4, 2 * SIZE)
        assert (new[f"blk.{layer}.attn_output.weight"] == columns[:, [0, 2]].reshape(128, -1)).all()
    with LLM(tmp_path / "a.gguf", kv_cache_memory_bytes=1 << 24) as llm:
        assert llm.model_info.num_kv_heads == 2 and llm.generate("the", max_tokens=3)[0].token_ids


def test_the_head_that_adds_least_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmi.compress.fewer_heads._TOKENS", 256)
    source = source_of(tmp_path, idle_head=2)
    out = tmp_path / "a.gguf"
    assert main(["prune", str(source), str(out), "--head-count", "1"]) == 0
    old, new = weights_of(source), weights_of(out)
    assert (new["blk.1.attn_k.weight"] == old["blk.1.attn_k.weight"].reshape(4, SIZE, -1)[[0, 1, 3]].reshape(3 * SIZE, -1)).all()
    assert cost(out, source) < 1e-4 and replay_file(out, source)[0]


def test_the_columns_that_add_least_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmi.compress.fewer_columns._TOKENS", 256)
    source = source_of(tmp_path, idle_columns=slice(3, 23))
    out = tmp_path / "a.gguf"
    assert main(["prune", str(source), str(out), "--mlp-columns", "20"]) == 0
    old, new = weights_of(source), weights_of(out)
    for name, axis in (("ffn_gate", 0), ("ffn_up", 0), ("ffn_down", 1)):
        assert (new[f"blk.2.{name}.weight"] == np.delete(old[f"blk.2.{name}.weight"], slice(3, 23), axis)).all(), name
    assert cost(out, source) < 1e-4 and replay_file(out, source)[0]


def test_quantised_matrices_keep_whole_blocks(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    quantize(source, tmp_path / "small.gguf", type="Q8_0")
    report = drop_heads(tmp_path / "small.gguf", tmp_path / "a.gguf", heads=[0])  # 32 columns: a block
    assert not report.tensors and report.requantized == ["Q8_0"]
    old, new = weights_of(tmp_path / "small.gguf"), weights_of(tmp_path / "a.gguf")
    assert (new["blk.0.attn_output.weight"] == old["blk.0.attn_output.weight"][:, 2 * SIZE :]).all()
    narrow = drop_columns(tmp_path / "small.gguf", tmp_path / "b.gguf", count=5)
    assert set(narrow.tensors.values()) == {"F16"} and set(narrow.tensors) == {f"blk.{layer}.ffn_down.weight" for layer in range(3)}
