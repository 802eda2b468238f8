"""The arithmetic of memory and cost, with published numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from llmi.models.inspection import (
    decode_flops,
    devices_needed,
    inspect_model,
    kv_bytes_per_token,
    prefill_flops,
    windowed_kv_bytes,
)
from llmi.testing import tiny_model


def test_published_numbers() -> None:
    assert windowed_kv_bytes([0] * 32, 32, 128, 2048) == 1_073_741_824  # LLaMA-7B, 2,048 tokens, fp16: 1073.7 MB
    assert kv_bytes_per_token(40, 40, 128) == 819_200  # LLaMA-13B: 0.82 MB a token
    assert 14_000_000_000 // kv_bytes_per_token(40, 40, 128) == 17_089  # so 14 GB hold 17,089 tokens
    assert 17_089 // 2048 == 8  # 8 sequences of 2,048
    assert kv_bytes_per_token(80, 64, 128) == 2_621_440  # a 70B with MHA: 2.62 MB a token
    assert round(16 * windowed_kv_bytes([0] * 80, 64, 128, 1024) / 1e9, 2) == 42.95  # 16 sequences of 1,024
    assert round(kv_bytes_per_token(80, 8, 128) / 1e6, 2) == 0.33  # the real LLaMA-2-70B, 8 KV heads
    assert [2 * billions for billions in (7, 13, 70)] == [14, 26, 140]  # GB of fp16 weights


def test_the_one_sum(tmp_path: Path) -> None:
    """LLaMA-7B with 2,048 tokens: weights + cache + activations + overhead. 7e9 parameters of 2 bytes make it 14 + 1.07 + ... = 15 to 16
    GB."""
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "float16",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    report = inspect_model(tmp_path)
    parts = (report.weight_bytes, 1_073_741_824, report.workspace_bytes, report.overhead_bytes)
    assert report.weight_bytes == 13_476_831_232 and report.total_bytes(2048) == sum(parts)
    assert 15e9 < report.total_bytes(2048) - report.weight_bytes + 14e9 < 16e9
    shown = " + ".join(
        f"{name} {size / 1e6:,.1f}"
        for name, size in zip(("weights", "cache of 2,048 tokens", "activations", "overhead"), parts, strict=True)
    )
    assert f"  in all       {shown} (Python, tokenizer) = {sum(parts) / 1e6:,.1f} MB\n" in str(report)


def test_what_is_left_out_does_not_count(tmp_path: Path) -> None:
    """A stored mask, or the tensors of images, are no parameters of the text model."""
    directory = tiny_model(path=tmp_path)
    plain = inspect_model(directory)
    tensors = load_file(directory / "model.safetensors")
    save_file({**tensors, "extra.mask": np.ones((64, 64), np.uint8)}, directory / "model.safetensors")
    report = inspect_model(directory, hf_overrides={"extra.*": None})
    assert (report.num_params, report.weight_bytes) == (plain.num_params, plain.weight_bytes)
    assert inspect_model(directory).num_params == plain.num_params + 64 * 64


def test_operations() -> None:
    params, layers, width = 7_000_000_000, 32, 4096
    assert prefill_flops(params, layers, width, 1) == 2 * params + 2 * layers * width
    assert decode_flops(params, layers, width, 0) == 2 * params
    assert decode_flops(params, layers, width, 100) - 2 * params == 4 * layers * 100 * width
    assert devices_needed(10.0, 3.0) == 4 and devices_needed(9.0, 3.0) == 3


def test_windows() -> None:
    assert windowed_kv_bytes([0, 512], 1, 256, 2048) == 2 * 256 * 2 * (2048 + 512)


def test_report_on_real_models(smollm_path: Path, gemma_path: Path) -> None:
    report = str(inspect_model(smollm_path))
    for fact in ("llama", "134.5 M parameters", "GQA: 9 heads, 3 KV heads of 64", "23,040 bytes a token", "2,048 tokens: 47.2 MB", "tied"):
        assert fact in report
    gemma = str(inspect_model(gemma_path, num_tokens=4096, list_tensors=True))
    assert "15 layers with window 512, 3 global" in gemma and "MQA" in gemma and "blk.17.ffn_up.weight" in gemma


@pytest.mark.parametrize("num_tokens", [1, 100_000])
def test_engine_agrees_with_the_arithmetic(smollm_path: Path, num_tokens: int) -> None:
    from llmi import LLM

    with LLM(smollm_path, kv_cache_memory_bytes=1 << 26, max_model_len=256) as llm:
        assert llm.model_info.kv_bytes_per_token * num_tokens == windowed_kv_bytes([0] * 30, 3, 64, num_tokens)
