"""Tiny encoders and rerankers as llama.cpp's converter writes them, from the folders of tiny_encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import gguf_model
from tiny_encoders import CLS, NO, PREFIX, SEP, SUFFIX, YES

Array = np.ndarray[Any, Any]
ARCHITECTURES = {"modernbert": "modern-bert", "qwen3": "qwen3", "bert": "bert", "xlm-roberta": "bert"}
#: Heads, whose names the map of tensors does not have without their classes.
_HEADS = {"classifier.dense": "cls", "classifier.out_proj": "cls.output", "classifier": "cls.output"}
RERANK = PREFIX + (
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}"
    + SUFFIX
)


def write(path: Path, directory: Path, changes: dict[str, Any] | None = None, without: str = "?") -> Path:
    """The folder's model as one file, with further metadata (None: without the key), and without tensors that begin so."""
    config = json.loads((directory / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    metadata = _metadata(config, arch, directory) | (changes or {})
    tensors = {name: tensor for name, tensor in _tensors(config, arch, directory).items() if not name.startswith(without)}
    path.write_bytes(gguf_model.encode({key: value for key, value in metadata.items() if value is not None}, tensors))
    return path


def _metadata(config: dict[str, Any], arch: str, directory: Path) -> dict[str, Any]:
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    tokens = [f"<unused{number}>" for number in range(config["vocab_size"])]
    for text, number in model["vocab"].items():
        tokens[number] = text
    wraps = arch != "qwen3"
    kept = config["max_position_embeddings"] - (2 if config["model_type"] == "xlm-roberta" else 0)
    found = {
        "general.architecture": arch,
        f"{arch}.context_length": kept,
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if number in (0, CLS, SEP) else 1 for number in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": CLS,
        "tokenizer.ggml.eos_token_id": SEP,
        "tokenizer.ggml.add_bos_token": wraps,
        "tokenizer.ggml.add_eos_token": wraps,
    }
    if arch == "qwen3":
        found |= {
            "qwen3.attention.head_count_kv": config["num_key_value_heads"],
            "qwen3.attention.key_length": config["head_dim"],
            "qwen3.attention.value_length": config["head_dim"],
            "qwen3.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
            "qwen3.rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
            "qwen3.pooling_type": 4,
            "qwen3.classifier.output_labels": ["yes", "no"],
            "tokenizer.chat_template.rerank": RERANK,
        }
        return found
    found |= {
        f"{arch}.attention.causal": False,
        f"{arch}.attention.layer_norm_epsilon": float(config.get("norm_eps", config.get("layer_norm_eps"))),
    }
    if arch == "modern-bert":
        ropes = config["rope_parameters"]
        found |= {
            "modern-bert.attention.sliding_window": config["local_attention"],
            "modern-bert.attention.sliding_window_pattern": 3,
            "modern-bert.rope.freq_base": float(ropes["full_attention"]["rope_theta"]),
            "modern-bert.rope.freq_base_swa": float(ropes["sliding_attention"]["rope_theta"]),
            "modern-bert.rope.scaling.type": "none",
            "modern-bert.hidden_activation": config["hidden_activation"],
            "modern-bert.vocab_size": config["vocab_size"],
            "modern-bert.classifier.pooling_type": 2,
            "modern-bert.pooling_type": 1,
        }
    return found


def _tensors(config: dict[str, Any], arch: str, directory: Path) -> dict[str, Array]:
    import gguf
    from safetensors.numpy import load_file

    number = next(number for number, text in gguf.MODEL_ARCH_NAMES.items() if text == arch)
    table = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    found: dict[str, Array] = {}
    for full, tensor in load_file(directory / "model.safetensors").items():
        stem, _, end = full.removeprefix("roberta.").removeprefix("bert.").rpartition(".")
        if stem.startswith("pooler"):
            continue
        if stem == "embeddings.position_embeddings" and config["model_type"] == "xlm-roberta":
            tensor = tensor[2:]
        name = _HEADS.get(stem) or table.get_name(stem.removeprefix("model.") if arch == "modern-bert" else stem)
        found[f"{name}.{end}"] = np.ascontiguousarray(tensor)
    if arch == "qwen3":
        found["cls.output.weight"] = found["token_embd.weight"][[YES, NO]]
    return found
