"""Tiny models with random weights."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llmi.text.token_bytes import byte_level_alphabet

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "gemma3": "Gemma3ForCausalLM"}


def _config(architecture: str, vocab_size: int, num_layers: int, hidden_size: int, overrides: dict[str, Any]) -> dict[str, Any]:
    head_dim = 16
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[architecture]],
        "vocab_size": vocab_size,
        "num_hidden_layers": num_layers,
        "hidden_size": hidden_size,
        "num_attention_heads": max(1, hidden_size // head_dim),
        "num_key_value_heads": max(1, hidden_size // head_dim // 2),
        "head_dim": head_dim,
        "intermediate_size": hidden_size * 2,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "bos_token_id": None,
        "eos_token_id": 0,
        "tie_word_embeddings": True,
        "model_type": "llama",
        "torch_dtype": "float32",
        "pad_token_id": None,
    }
    if architecture == "gemma3":
        config |= {
            "model_type": "gemma3_text",
            "sliding_window": 32,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": head_dim,
            "layer_types": [
                "full_attention" if (i + 1) % 3 == 0 or i == num_layers - 1 else "sliding_attention" for i in range(num_layers)
            ],
            "hidden_activation": "gelu_pytorch_tanh",
            "num_key_value_heads": 1,
        }
    else:
        config["hidden_act"] = "silu"
    return config | overrides


def _tensors(architecture: str, config: dict[str, Any], seed: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    rng = np.random.default_rng(seed)
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    query, kv, inner = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim, config["intermediate_size"]

    def matrix(rows: int, cols: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        values: np.ndarray[Any, np.dtype[np.float32]] = (rng.standard_normal((rows, cols)) * (1.5 / np.sqrt(cols))).astype(np.float32)
        return values

    def norm(size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        centre = 0.0 if architecture == "gemma3" else 1.0
        values: np.ndarray[Any, np.dtype[np.float32]] = (centre + 0.1 * rng.standard_normal(size)).astype(np.float32)
        return values

    embedding_scale = 0.3 if architecture == "gemma3" else 2.0  # Gemma scales embeddings by sqrt(hidden) itself
    tensors = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden) * np.float32(embedding_scale),
        "model.norm.weight": norm(hidden),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden) * 4
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        shapes = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for name, (rows, cols) in shapes.items():
            tensors[f"{layer}{name}.weight"] = matrix(rows, cols)
            if config.get("attention_bias" if name.startswith("self_attn") else "mlp_bias"):
                tensors[f"{layer}{name}.bias"] = norm(rows) * np.float32(0.1)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if architecture == "gemma3":
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
            tensors[f"{layer}self_attn.q_norm.weight"] = norm(head_dim)
            tensors[f"{layer}self_attn.k_norm.weight"] = norm(head_dim)
        for name in norms:
            tensors[f"{layer}{name}.weight"] = norm(hidden)
    return tensors


def save_safetensors(path: Path, tensors: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> None:
    """Writes arrays of fp32, int32, int64 and bool."""
    names = {"int32": "I32", "int64": "I64", "bool": "BOOL"}
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": names.get(tensor.dtype.name, "F32"),
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def byte_tokenizer(vocab_size: int) -> dict[str, Any]:
    """tokenizer.json of a vocabulary of bytes: id 0 is end-of-text, then as many bytes as fit."""
    alphabet = sorted(byte_level_alphabet().items(), key=lambda item: item[1])
    vocab = {"<eos>": 0}
    for character, _ in alphabet[: vocab_size - 1]:
        vocab[character] = len(vocab)
    special = {"id": 0, "content": "<eos>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def tiny_model(
    architecture: str = "llama",
    *,
    vocab_size: int = 256,
    num_layers: int = 2,
    hidden_size: int = 64,
    seed: int = 0,
    path: str | Path | None = None,
    **overrides: object,
) -> Path:
    """A model directory with random weights and a byte tokenizer.

    Parameters
    ----------
    architecture : {"llama", "gemma3"}
    vocab_size : int
        Id 0 is end-of-text; with 257 or more, every byte has an id.
    path : path, optional
        Where to write; None makes a temporary directory.
    **overrides
        Fields of config.json.

    Returns
    -------
    Path
        The directory, for LLM(path).

    Raises
    ------
    ValueError
        An architecture that is not listed.

    Examples
    --------
    >>> path = tiny_model("gemma3", num_layers=2, path="tiny")
    >>> sorted(file.name for file in path.iterdir())
    ['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']
    """
    if architecture not in _ARCHITECTURES:
        raise ValueError(f"architecture must be one of {sorted(_ARCHITECTURES)}")
    directory = Path(tempfile.mkdtemp(prefix="llmi-tiny-")) if path is None else Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    config = _config(architecture, vocab_size, num_layers, hidden_size, overrides)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(json.dumps(byte_tokenizer(vocab_size)))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}))
    save_safetensors(directory / "model.safetensors", _tensors(architecture, config, seed))
    return directory
