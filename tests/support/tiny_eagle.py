"""Tiny EAGLE layers: random weights, and an fc that is fitted to the model, so that some drafts are accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmi.lab.capture import Capture
from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.testing.tiny import save_safetensors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]


def tiny_eagle(
    llm: LLM,
    path: str | Path,
    *,
    seed: int = 0,
    num_kv_heads: int = 2,
    layer_scale: float = 0.3,
    shortlist: list[int] | None = None,
    **overrides: object,
) -> Path:
    """A folder with an EAGLE-1 layer for a tiny model that this package made.

    Parameters
    ----------
    llm : LLM
        The model; it writes the text that fc is fitted to.
    path : path
        Where to write.
    layer_scale : float
        Of the random attention and MLP: how much the earlier rows matter.
    shortlist : list of int, optional
        The tokens that drafts are chosen from.
    **overrides
        Fields of config.json.
    """
    rng = np.random.default_rng(seed)
    model = json.loads((Path(llm.model_info.path) / "config.json").read_text())
    hidden, num_heads, head_dim = model["hidden_size"], 4, 16
    inner = 2 * hidden

    def matrix(rows: int, cols: int, scale: float = 1.0) -> F32:
        values: F32 = (rng.standard_normal((rows, cols)) * scale / np.sqrt(cols)).astype(np.float32)
        return values

    tensors = {
        "fc.weight": _fitted(llm, rng),
        "layers.0.self_attn.q_proj.weight": matrix(num_heads * head_dim, hidden, 4.0),  # so that its attention prefers some rows
        "layers.0.self_attn.k_proj.weight": matrix(num_kv_heads * head_dim, hidden),
        "layers.0.self_attn.v_proj.weight": matrix(num_kv_heads * head_dim, hidden),
        "layers.0.self_attn.o_proj.weight": matrix(hidden, num_heads * head_dim, layer_scale),
        "layers.0.mlp.gate_proj.weight": matrix(inner, hidden),
        "layers.0.mlp.up_proj.weight": matrix(inner, hidden),
        "layers.0.mlp.down_proj.weight": matrix(hidden, inner, layer_scale),
        "layers.0.post_attention_layernorm.weight": (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32),
    }
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle"], "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads, "head_dim": head_dim, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
        "vocab_size": model["vocab_size"], "hidden_act": "silu", "llmi": {"kind": "eagle", "target_digest": None},
    }  # fmt: skip
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config | overrides))
    listed = {} if shortlist is None else {"shortlist": np.asarray(shortlist, np.int32)}
    save_safetensors(directory / "model.safetensors", tensors | listed)
    return directory


def normed_rows(llm: LLM, token_ids: list[int]) -> F32:
    """The hidden rows [num_tokens, hidden] that the head of a tiny model reads."""
    last = llm.model_info.num_layers
    with llm.sequence([], capture=Capture(hidden_states=[last])) as sequence:
        sequence.extend(token_ids)
        rows = np.asarray(sequence.hidden_states[last], np.float64)
    config = json.loads((Path(llm.model_info.path) / "config.json").read_text())
    weight = stored(llm, "model.norm.weight") + (1.0 if config["model_type"].startswith("gemma") else 0.0)
    normed: F32 = (rows / np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + config["rms_norm_eps"]) * weight).astype(np.float32)
    return normed


def embedded(llm: LLM, token_ids: list[int]) -> F32:
    """The rows [num_tokens, hidden] that the first layer of a tiny model reads."""
    config = json.loads((Path(llm.model_info.path) / "config.json").read_text())
    scale = np.float32(np.sqrt(config["hidden_size"])) if config["model_type"].startswith("gemma") else np.float32(1)
    rows: F32 = stored(llm, "model.embed_tokens.weight")[token_ids] * scale
    return rows


def stored(llm: LLM, name: str) -> F32:
    """A tensor of a tiny model's file."""
    data = (Path(llm.model_info.path) / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + size])[name]
    begin, end = entry["data_offsets"]
    return np.frombuffer(data[8 + size + begin : 8 + size + end], np.float32).reshape(entry["shape"])


def _fitted(llm: LLM, rng: np.random.Generator) -> F32:
    """fc.weight [hidden, 2 hidden] that predicts the next hidden row best, in the least squares of text by the model."""
    params = SamplingParams(temperature=0.7, max_tokens=96, seed=1, ignore_eos=True, detokenize=False)
    prompts = [rng.integers(1, llm.model_info.vocab_size, 8).tolist() for _ in range(12)]
    inputs, wanted = [], []
    for output in llm.generate(prompts, params, use_tqdm=False, speculative_config=None):
        ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        rows = normed_rows(llm, ids)
        inputs.append(np.concatenate([embedded(llm, ids[1:]), rows[:-1]], axis=1))
        wanted.append(rows[1:])
    x, y = np.concatenate(inputs).astype(np.float64), np.concatenate(wanted).astype(np.float64)
    ridge = 1e-3 * np.trace(x.T @ x) / x.shape[1] * np.eye(x.shape[1])
    fitted: F32 = np.linalg.solve(x.T @ x + ridge, x.T @ y).T.astype(np.float32)
    return fitted
