"""A tiny model's directory as GGUF files, written field by field so that any of them can be made wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_KINDS = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
PADDING = 32


def metadata_of(directory: Path) -> dict[str, Any]:
    """What a GGUF says of a tiny llama: integers are u32, floats f32."""
    config = json.loads((directory / "config.json").read_text())
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's alphabet: these bytes stand for themselves
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]
    tokens = [*["<eos>", *letters, "he"], *(f"<unused{i}>" for i in range(config["vocab_size"]))][: config["vocab_size"]]
    return {
        "general.architecture": "llama",
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.freq_base": float(config["rope_theta"]),
        "llama.rope.dimension_count": config["head_dim"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, *[1] * (len(tokens) - 1)],
        "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.eos_token_id": 0,
    }


def tensors_of(directory: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The directory's tensors by their names in GGUF, as they lie (their rows are not permuted: another model, but a sound one)."""
    raw = (directory / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    tensors = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        array = np.frombuffer(raw, "<f4", int(np.prod(entry["shape"])), 8 + size + entry["data_offsets"][0]).reshape(entry["shape"])
        stem, _, kind = name.rpartition(".")
        if stem in _TOP:
            tensors[f"{_TOP[stem]}.{kind}"] = array
        else:
            _, _, layer, part = stem.split(".", 3)
            tensors[f"blk.{layer}.{_NAMES[part]}.{kind}"] = array
    return tensors


def encode(metadata: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]], endian: str = "<") -> bytes:
    """The bytes of one file."""

    def text(value: str) -> bytes:
        return struct.pack(endian + "Q", len(value.encode())) + value.encode()

    def entry(value: Any) -> bytes:
        if isinstance(value, str):
            return struct.pack(endian + "I", 8) + text(value)
        if isinstance(value, list):
            if isinstance(value[0], str):
                return struct.pack(endian + "IIQ", 9, 8, len(value)) + b"".join(text(item) for item in value)
            return struct.pack(f"{endian}IIQ{len(value)}i", 9, 5, len(value), *value)
        number, code = _KINDS[type(value)]
        return struct.pack(endian + "I" + code, number, value)

    head = b"GGUF" + struct.pack(endian + "IQQ", 3, len(tensors), len(metadata))
    head += b"".join(text(key) + entry(value) for key, value in metadata.items())
    data = b""
    for name, array in tensors.items():
        head += text(name) + struct.pack(f"{endian}I{array.ndim}QIQ", array.ndim, *reversed(array.shape), 0, len(data))
        raw = array.astype(endian + "f4").tobytes()
        data += raw + bytes(-len(raw) % PADDING)
    return head + bytes(-len(head) % PADDING) + data


def write(path: Path, directory: Path, more: dict[str, Any] | None = None, endian: str = "<") -> Path:
    """The directory's model as one file, with further metadata (None: without the key)."""
    metadata = {key: value for key, value in (metadata_of(directory) | (more or {})).items() if value is not None}
    path.write_bytes(encode(metadata, tensors_of(directory), endian))
    return path


def write_parts(folder: Path, directory: Path, count: int, stem: str = "m") -> list[Path]:
    """The same in several files, as gguf-split writes them."""
    tensors = list(tensors_of(directory).items())
    size = -(-len(tensors) // count)
    paths = []
    for index in range(count):
        path = folder / f"{stem}-{index + 1:05}-of-{count:05}.gguf"
        split = {"split.no": index, "split.count": count, "split.tensors.count": len(tensors)}
        path.write_bytes(encode((metadata_of(directory) if index == 0 else {}) | split, dict(tensors[index * size : (index + 1) * size])))
        paths.append(path)
    return paths
