"""Tiny Medusa heads: random blocks, and matrices over the vocabulary that are fitted to the model, so that some drafts are accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmi.llm import LLM
from llmi.params.sampling import SamplingParams
from llmi.testing.tiny import save_safetensors
from tiny_eagle import normed_rows, stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]


def tiny_medusa(
    llm: LLM,
    path: str | Path,
    *,
    num_heads: int = 3,
    num_layers: int = 1,
    has_vocabularies: bool = True,
    shortlist: list[int] | None = None,
    **overrides: object,
) -> Path:
    """A folder with Medusa heads for a tiny model that this package made.

    Parameters
    ----------
    llm : LLM
        The model; it writes the text that the heads are fitted to.
    path : path
        Where to write.
    num_heads, num_layers : int
        Heads, and blocks of each.
    has_vocabularies : bool
        Whether each head has a matrix over the vocabulary of its own, as published heads do. If not, the model's own head is read, and
        nothing is fitted.
    shortlist : list of int, optional
        The tokens that drafts are chosen from.
    **overrides
        Fields of config.json.
    """
    rng = np.random.default_rng(0)
    hidden = json.loads((Path(llm.model_info.path) / "config.json").read_text())["hidden_size"]
    tensors: dict[str, Any] = {}
    texts = _texts(llm, rng) if has_vocabularies else []
    for head in range(num_heads):
        for layer in range(num_layers):
            tensors[f"{head}.{layer}.linear.weight"] = (rng.standard_normal((hidden, hidden)) / np.sqrt(hidden)).astype(np.float32)
            tensors[f"{head}.{layer}.linear.bias"] = (0.1 * rng.standard_normal(hidden)).astype(np.float32)
        if has_vocabularies:
            x = np.concatenate([_blocks(rows, tensors, head, num_layers)[: -1 - head] for rows in texts])
            y = np.concatenate([rows[1 + head :] for rows in texts]).astype(np.float64)
            ridge = 1e-3 * np.trace(x.T @ x) / hidden * np.eye(hidden)
            to_later = np.linalg.solve(x.T @ x + ridge, x.T @ y)
            tensors[f"{head}.{num_layers}.weight"] = (stored(llm, "model.embed_tokens.weight") @ to_later.T).astype(np.float32)
    if shortlist is not None:
        tensors["shortlist"] = np.asarray(shortlist, np.int32)
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    config = {"medusa_num_heads": num_heads, "medusa_num_layers": num_layers, "base_model_name_or_path": "tiny"}
    (directory / "config.json").write_text(json.dumps(config | overrides))
    save_safetensors(directory / "model.safetensors", tensors)
    return directory


def _texts(llm: LLM, rng: np.random.Generator) -> list[F32]:
    """The hidden rows of some texts that the model writes."""
    params = SamplingParams(temperature=0.7, max_tokens=96, seed=1, ignore_eos=True, detokenize=False)
    prompts = [rng.integers(1, llm.model_info.vocab_size, 8).tolist() for _ in range(12)]
    outputs = llm.generate(prompts, params, use_tqdm=False, speculative_config=None)
    return [normed_rows(llm, [*output.prompt_token_ids, *output.outputs[0].token_ids]) for output in outputs]


def _blocks(rows: F32, tensors: dict[str, Any], head: int, num_layers: int) -> NDArray[np.float64]:
    x = rows.astype(np.float64)
    for layer in range(num_layers):
        inner = x @ tensors[f"{head}.{layer}.linear.weight"].T.astype(np.float64) + tensors[f"{head}.{layer}.linear.bias"]
        x = x + inner / (1 + np.exp(-inner))
    return x
