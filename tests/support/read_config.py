"""A spec from a config, or from metadata, without a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmi.families import ModelSpec
from llmi.families.reader import Reading

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
    "head_dim": 16,
}
Shapes = Mapping[str, tuple[int, ...]]


def read_config(
    architecture: str,
    more: dict[str, Any] | None = None,
    *,
    tensors: Shapes | None = None,
    changes: dict[str, Any] | None = None,
    max_model_len: int | None = None,
) -> ModelSpec:
    """Of a small config with these keys besides the sizes; None: without the key."""
    values = {key: value for key, value in (SIZES | {"architectures": [architecture]} | (more or {})).items() if value is not None}
    return Reading(values, "config.json", tensors or {}, changes or {}, max_model_len).of_config_json()


def read_metadata(
    architecture: str, more: dict[str, Any] | None = None, *, tensors: Shapes | None = None, max_model_len: int | None = None
) -> ModelSpec:
    """Of a small GGUF file with this metadata and these tensors besides the embedding."""
    sizes = {
        "embedding_length": 64,
        "feed_forward_length": 96,
        "block_count": 4,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "context_length": 512,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    values = {f"{architecture}.{key}": value for key, value in sizes.items()} | {"general.architecture": architecture} | (more or {})
    values = {key: value for key, value in values.items() if value is not None}
    shapes = {"token_embd.weight": (264, 64)} | dict(tensors or {})
    return Reading(values, "model.gguf", shapes, {}, max_model_len).of_gguf()
