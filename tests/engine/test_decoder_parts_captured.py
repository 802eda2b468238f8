"""Inner values and tokens of models that no family has: those of float64, and on a device those of the CPU."""

from __future__ import annotations

import json
import types
from pathlib import Path

import numpy as np
import pytest

from bits import assert_same_bits
from llmi import LLM, Capture, SamplingParams
from llmi.testing.tiny import byte_tokenizer
from spec_float64 import Array, Interpreter
from spec_models import LAYERS, VOCAB, TinyModel
from test_decoder_parts import TOKENS, off

#: Parts that attention weights and early logits show, and those that a device uploads before its replayed steps.
MODELS = {
    "sinks": {"sinks": True, "attention_gate": "head", "windows": [7, 0], "logit_scale": 0.4},
    "linear biases": {
        "linear_biases": True,
        "rope_of_layers": [-1, -1],
        "positions": 2,
        "tied": False,
        "biases": ("head",),
        "order": "parallel",
    },
    "temperature": {
        "temperature": {"beta": 0.5, "original": 5},
        "attention_cap": 2.0,
        "head_dim": 20,
        "ropes": [{"rotary_dim": 20}],
        "logit_cap": 3.0,
    },
}


def opened(model: TinyModel, path: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> LLM:
    head = types.SimpleNamespace(weight=types.SimpleNamespace(name="head"))
    spec = types.SimpleNamespace(
        to_json=model.json, digest=lambda: "0" * 64, rope_choice="", quantization="", layers=range(LAYERS), head=head, two_sided=False
    )
    monkeypatch.setattr("llmi.engine.loaded.spec_of", lambda *_: spec)
    return LLM(path, dtype="float32", kv_cache_dtype="float32", device=device, kv_cache_memory_bytes=1 << 22, max_num_batched_tokens=24)


@pytest.mark.parametrize("name", MODELS)
def test_captured_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    model = TinyModel(MODELS[name])
    path, oracle = model.save(tmp_path), Interpreter(model.spec, model.tensors)
    (path / "tokenizer.json").write_text(json.dumps(byte_tokenizer(VOCAB)))
    capture = Capture(hidden_states=(0, 1), layer_logits=(LAYERS,), attention=(1,))
    seen: list[list[Array]] = []
    for device in ("cpu", "cuda"):
        with opened(model, path, device, monkeypatch) as llm:
            sequence = llm.sequence(TOKENS[:1], capture=capture)
            sequence.extend(TOKENS[1:])
            early, states, attention = sequence.layer_logits[LAYERS], sequence.hidden_states[1], sequence.attention[1]
            drawn = llm.generate(TOKENS[:20], SamplingParams(temperature=0.8, seed=3, max_tokens=12, logprobs=2, ignore_eos=True))[0]
            tokens = np.array(drawn.token_ids)
            seen.append([np.asarray(early), np.asarray(states), np.asarray(attention), tokens])
    early, states, attention, tokens = zip(*seen, strict=True)
    assert_same_bits(*early)
    assert_same_bits(*states)
    assert_same_bits(*attention)
    assert np.array_equal(*tokens)
    early, states, attention, _ = seen[0]
    assert off(early, oracle.logits(TOKENS)[-1]) < 1e-5 and off(states, oracle.states(TOKENS)[1][1:]) < 1e-5
    assert np.abs(attention - oracle.first_weights(TOKENS).transpose(1, 0, 2)[1:]).max() < 1e-5
