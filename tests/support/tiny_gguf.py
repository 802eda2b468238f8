"""A tiny model's directory as a GGUF file, in llama.cpp's conventions."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from llmi.testing import tiny_model

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}
_NORMS = {
    "llama": {"post_attention_layernorm": "ffn_norm"},
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def _pairs(rows: np.ndarray[Any, Any], head_dim: int, rotary_dim: int) -> np.ndarray[Any, Any]:
    """Each head's rotated rows, from halves to adjacent pairs."""
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    rotated = (
        heads[:, :rotary_dim].reshape(len(heads), 2, rotary_dim // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(heads[:, :rotary_dim].shape)
    )
    return np.concatenate([rotated, heads[:, rotary_dim:]], axis=1).reshape(rows.shape)


def tensors_of(directory: Path) -> dict[str, np.ndarray[Any, Any]]:
    """By their names in GGUF."""
    from safetensors.numpy import load_file

    config = json.loads((directory / "config.json").read_text())
    architecture = "gemma3" if config["model_type"] == "gemma3_text" else "llama"
    head_dim = config["head_dim"]
    tensors = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        stem, _, kind = name.rpartition(".")
        if architecture == "gemma3" and stem.endswith("norm"):
            tensor = tensor + 1
        if stem in _TOP:
            tensors[f"{_TOP[stem]}.{kind}"] = tensor
            continue
        _, _, layer, part = stem.split(".", 3)
        if architecture == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            tensor = _pairs(tensor, head_dim, int(head_dim * config.get("partial_rotary_factor", 1)))
        tensors[f"blk.{layer}.{(_NAMES | _NORMS[architecture])[part]}.{kind}"] = np.ascontiguousarray(tensor)
    return tensors


def write(
    path: Path,
    directory: Path,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    without: Collection[str] = (),
) -> Path:
    """The directory's model, with further metadata (None: without the key), and with and without tensors: an array, or (the bytes
    of its rows as an array, their type). Returns the file's path."""
    import gguf

    config = json.loads((directory / "config.json").read_text())
    prefix = "gemma3" if config["model_type"] == "gemma3_text" else "llama"
    fields: dict[str, Any] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
    }
    if prefix == "gemma3":
        fields |= {"attention.sliding_window": config["sliding_window"], "rope.freq_base_swa": float(config["rope_local_base_freq"])}
        fields["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config["layer_types"]]
    else:
        fields["rope.dimension_count"] = int(config["head_dim"] * config.get("partial_rotary_factor", 1))
    alphabet = [
        *range(33, 127),
        *range(161, 173),
        *range(174, 256),
    ]  # GPT-2's: these bytes stand for themselves, the others for 256, 257, ...
    hidden = [byte for byte in range(256) if byte not in alphabet]
    letters = [chr(byte) if byte in alphabet else chr(256 + hidden.index(byte)) for byte in range(256)]
    fields = {f"{prefix}.{name}": value for name, value in fields.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<eos>", *letters, "ab"][: config["vocab_size"]],
        "tokenizer.ggml.token_type": [3, *[1] * (config["vocab_size"] - 1)],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.merges": ["a b"] if config["vocab_size"] > 257 else None,
    }
    writer = gguf.GGUFWriter(str(path), prefix)
    for key, value in (fields | (metadata or {})).items():
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, tensor in (tensors_of(directory) | (tensors or {})).items():
        if name not in without:
            data, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


#: Types of matrices, by the end of their names: every quantised one, and each maker of codes meets several.
MIXED = {
    "attn_q": "Q4_K",
    "attn_k": "Q6_K",
    "attn_v": "Q5_0",
    "attn_output": "Q4_1",
    "ffn_gate": "Q4_0",
    "ffn_up": "Q4_K",
    "ffn_down": "Q8_0",
    "token_embd": "Q6_K",
}


def mixed_gguf(path: Path, **overrides: Any) -> Path:
    """A tiny llama of 256 columns with matrices of all quantised types, random codes with scales such that weights are of the usual
    size."""
    import gguf

    directory = tiny_model(path=path / "directory", **{"vocab_size": 258, "num_layers": 2, "hidden_size": 256, **overrides})
    rng = np.random.default_rng(7)
    tensors = {}
    for name, values in tensors_of(directory).items():
        dtype = MIXED.get(name.rsplit(".", 2)[-2])
        if dtype is None or values.ndim == 1:
            continue
        kind = getattr(gguf.GGMLQuantizationType, dtype)
        if dtype in ("Q4_K", "Q6_K"):
            tensors[name] = (_super_blocks(dtype, values, rng), kind)
        else:
            tensors[name] = (gguf.quantize(values, kind), kind)
    return write(path / "mixed.gguf", directory, tensors=tensors)


def _super_blocks(dtype: str, values: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Random codes about zero, of the values' size."""
    count, size = values.size // 256, float(values.std())
    if dtype == "Q6_K":  # codes of -32 to 31 have a deviation of 18.5, scales of 8 to 15
        scales = rng.integers(8, 16, (count, 16), dtype=np.int8).view(np.uint8)
        parts = [rng.integers(0, 256, (count, 192), dtype=np.uint8), scales]
        d = np.full((count, 1), size / 18.5 / 11.5)
        parts.append(d.astype(np.float16).view(np.uint8))
    else:  # codes of 0 to 15 have a mean of 7.5 and a deviation of 4.6: scales and minima of 8 to 15, so six bits with the upper two empty
        scale = rng.integers(8, 16, (count, 8), dtype=np.uint8)
        lower = scale[:, :4]
        packed = np.concatenate([lower, lower, scale[:, 4:] | scale[:, 4:] << 4], axis=1)
        d = np.full((count, 1), size / 4.6 / 11.5)
        parts = [
            d.astype(np.float16).view(np.uint8),
            (7.5 * d).astype(np.float16).view(np.uint8),
            packed,
            rng.integers(0, 256, (count, 128), dtype=np.uint8),
        ]
    return np.concatenate(parts, axis=1).reshape(len(values), -1)


def tiny_gguf(path: Path, architecture: str = "llama", metadata: dict[str, Any] | None = None, **overrides: Any) -> tuple[Path, Path]:
    """(file, directory) of one tiny model."""
    directory = tiny_model(architecture, path=path / "directory", **{"vocab_size": 257, **overrides})
    return write(path / "model.gguf", directory, metadata), directory
