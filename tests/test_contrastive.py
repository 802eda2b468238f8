"""Contrastive search: the definition on the sequence API, what must not change a token, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from features import crowded_llm, has_bits_of_its_own, stateful
from llmi import LLM, Capture, InvalidParamsError, Outputs, PromptLookup, SamplingParams, UnsupportedCombinationError, log_softmax
from llmi.models.files import open_model
from llmi.testing import assert_same_tokens

PROMPT = np.random.default_rng(3).integers(1, 257, size=37).tolist()


def final_norm(path: Path) -> Callable[[Any], Any]:
    """The final norm of a tiny model, in float64."""
    data = (path / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + size])["model.norm.weight"]
    begin, end = entry["data_offsets"]
    weight = np.frombuffer(data[8 + size + begin : 8 + size + end], {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float64)
    config = json.loads((path / "config.json").read_text())
    weight = weight + (config["model_type"] == "gemma3_text")
    return lambda rows: rows / np.sqrt((rows.astype(np.float64) ** 2).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weight


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def oracle(llm: LLM, norm: Callable[[Any], Any], prompt: list[int], top_k: int, alpha: float, count: int, bias: Any = 0.0) -> list[int]:
    """The definition: every candidate is tried on a fork."""
    last = llm.model_info.num_layers
    with llm.sequence(prompt[:1], capture=Capture(hidden_states=[-1])) as sequence:
        context = norm(sequence.hidden_states[last])
        if prompt[1:]:
            sequence.extend(prompt[1:])
            context = np.concatenate([context, norm(sequence.hidden_states[last])])
        for _ in range(count):
            row = sequence.logits + bias
            ids = np.argsort(-row, kind="stable")[:top_k]
            probs = np.exp(log_softmax(row)[ids].astype(np.float64))
            forks = [sequence.fork() for _ in ids]
            for fork, token in zip(forks, ids, strict=True):
                fork.extend([int(token)])
            hidden = np.concatenate([norm(fork.hidden_states[last]) for fork in forks])
            scores = (1 - alpha) * probs - alpha * (unit(hidden) @ unit(context).T).max(-1)
            best = int(np.argmax(scores))
            context = np.concatenate([context, hidden[best : best + 1]])
            sequence.extend([int(ids[best])])
            for fork in forks:
                fork.close()
        return sequence.token_ids.tolist()[len(prompt) :]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize(("top_k", "alpha"), [(2, 0.5), (4, 0.6), (9, 1.0), (64, 0.8)])
def test_definition(tiny_path: Callable[..., Path], architecture: str, top_k: int, alpha: float) -> None:
    path = tiny_path(architecture)
    bias = np.random.default_rng(1).normal(0, 3, 257).astype(np.float32)
    differ = 0
    with LLM(path, kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        for length in (1, 2, 37):
            more = {"penalty_alpha": alpha, "top_k": top_k, "max_tokens": 12, "ignore_eos": True}
            got = llm.generate([PROMPT[:length]], logit_bias=dict(enumerate(bias.tolist())), **more)[0]
            assert got.token_ids == oracle(llm, final_norm(path), PROMPT[:length], top_k, alpha, 12, bias)
            plain = llm.generate([PROMPT[:length]], logit_bias=dict(enumerate(bias.tolist())), temperature=0, max_tokens=12, ignore_eos=True)[0]
            differ += got.token_ids != plain.token_ids
    assert differ, "the hidden states decide nothing"
