"""Tiny EAGLE-3 layers in SpecForge's layout: random weights, and an fc that is fitted to the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmi.lab.capture import Capture
from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.testing.tiny import save_safetensors
from tiny_eagle import stored

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    F32 = NDArray[np.float32]


def tiny_eagle3(
    llm: LLM, path: str | Path, *, taps: Iterable[int], tokens: Iterable[int], seed: int = 0, layer_scale: float = 0.3, **overrides: object
) -> Path:
    """A folder with an EAGLE-3 layer for a tiny model that this package made.

    Parameters
    ----------
    taps : iterable of int
        The layers that it reads, counted from 1.
    tokens : iterable of int
        Those of its head, ascending.
    """
    rng = np.random.default_rng(seed)
    model = json.loads((Path(llm.model_info.path) / "config.json").read_text())
    hidden, heads, kv_heads, dim = model["hidden_size"], 4, 2, 16
    layers, listed = list(taps), np.asarray(list(tokens), np.int32)

    def matrix(rows: int, cols: int, scale: float = 1.0) -> F32:
        values: F32 = (rng.standard_normal((rows, cols)) * scale / np.sqrt(cols)).astype(np.float32)
        return values

    def norm() -> F32:
        values: F32 = (1 + 0.1 * rng.standard_normal(hidden)).astype(np.float32)
        return values

    present = np.zeros(model["vocab_size"], np.bool_)
    present[listed] = True
    tensors = {
        "fc.weight": _fitted(llm, rng, layers),
        "midlayer.self_attn.q_proj.weight": matrix(heads * dim, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": matrix(kv_heads * dim, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": matrix(kv_heads * dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": matrix(hidden, heads * dim, layer_scale),
        "midlayer.mlp.gate_proj.weight": matrix(2 * hidden, hidden),
        "midlayer.mlp.up_proj.weight": matrix(2 * hidden, hidden),
        "midlayer.mlp.down_proj.weight": matrix(hidden, 2 * hidden, layer_scale),
        "midlayer.hidden_norm.weight": norm(),
        "midlayer.input_layernorm.weight": norm(),
        "midlayer.post_attention_layernorm.weight": norm(),
        "norm.weight": stored(llm, "model.norm.weight"),
        "lm_head.weight": stored(llm, "model.embed_tokens.weight")[listed],
        "d2t": (listed - np.arange(len(listed))).astype(np.int32),
        "t2d": present,
    }
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "vocab_size": model["vocab_size"],
        "draft_vocab_size": len(listed),
        "hidden_act": "silu",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in layers]},
    }
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config | overrides))
    save_safetensors(directory / "model.safetensors", tensors)
    return directory


def tapped_rows(llm: LLM, token_ids: list[int], taps: list[int]) -> F32:
    """The hidden states [num_tokens, taps * hidden] after these layers of a model."""
    with llm.sequence([], capture=Capture(hidden_states=taps)) as sequence:
        sequence.extend(token_ids)
        rows: F32 = np.concatenate([np.asarray(sequence.hidden_states[layer], np.float32) for layer in taps], axis=1)
    return rows


def _fitted(llm: LLM, rng: np.random.Generator, taps: list[int]) -> F32:
    """fc.weight [hidden, taps * hidden] that predicts the next token's last hidden state best, in the least squares of text by the
    model."""
    params = SamplingParams(temperature=0.3, max_tokens=96, seed=1, ignore_eos=True, detokenize=False)
    prompts = [rng.integers(1, llm.model_info.vocab_size, 8).tolist() for _ in range(12)]
    last = llm.model_info.num_layers
    inputs, wanted = [], []
    for output in llm.generate(prompts, params, use_tqdm=False, speculative_config=None):
        ids = [*output.prompt_token_ids, *output.outputs[0].token_ids]
        inputs.append(tapped_rows(llm, ids, taps)[:-1])
        wanted.append(tapped_rows(llm, ids, [last])[1:])
    x, y = np.concatenate(inputs).astype(np.float64), np.concatenate(wanted).astype(np.float64)
    ridge = 1e-3 * np.trace(x.T @ x) / x.shape[1] * np.eye(x.shape[1])
    fitted: F32 = np.linalg.solve(x.T @ x + ridge, x.T @ y).T.astype(np.float32)
    return fitted
