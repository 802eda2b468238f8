"""Captured attention weights: transformers' own, whatever way the tokens came."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from llmi import LLM, Capture, TokenTree

TOKENS = np.random.default_rng(0).integers(1, 257, size=70).tolist()


@pytest.fixture(params=["llama", "gemma3"])
def path(request: pytest.FixtureRequest, tiny_path: Callable[..., Path]) -> Path:
    return tiny_path(request.param)


@pytest.fixture
def llm(path: Path) -> Any:
    with LLM(path, dtype="float32", kv_cache_memory_bytes=1 << 23, max_model_len=256, max_num_batched_tokens=48) as llm:
        yield llm


def whole(llm: LLM, tokens: list[int]) -> dict[int, Any]:
    """All layers' weights [len, num_heads, len] of one extension."""
    layers = range(1, llm.model_info.num_layers + 1)
    sequence = llm.sequence(tokens[:1], capture=Capture(attention=layers))
    sequence.extend(tokens[1:])
    return sequence.attention


@pytest.mark.parity
def test_transformers_has_the_same(llm: LLM, path: Path) -> None:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), output_attentions=True).attentions
    got = whole(llm, TOKENS)
    assert sorted(got) == list(range(1, len(expected) + 1))
    for layer, weights in got.items():
        reference = expected[layer - 1][0].numpy().transpose(1, 0, 2)[1:]
        assert weights.shape == reference.shape
        assert np.abs(weights - reference).max() < 2e-5
        assert np.array_equal(weights == 0, reference == 0), "another set of tokens is seen"


def test_every_way_gives_the_same_weights(llm: LLM) -> None:
    expected = whole(llm, TOKENS)
    layers = tuple(expected)
    last = llm.sequence(TOKENS, capture=Capture(attention=layers))
    stepped = llm.sequence(TOKENS[:60], capture=Capture(attention=layers))
    for i in range(60, 70):
        stepped.extend([TOKENS[i]])
        for layer in layers:
            assert_same_bits(stepped.attention[layer][0], expected[layer][i - 1][:, : i + 1])
    for layer in layers:
        assert last.attention[layer].shape[0] == 1
        assert_same_bits(last.attention[layer][0], expected[layer][-1])
        assert np.allclose(expected[layer].sum(-1), 1, atol=1e-5)
        assert not expected[layer].flags.writeable
    assert last.fork().attention[layers[0]].shape == last.attention[layers[0]].shape


def test_what_a_committed_path_leaves(llm: LLM) -> None:
    """Weights, hidden states and layer logits of a tree's path are those of the same tokens as a chain."""
    capture = Capture(attention=(1, -1), hidden_states=(0, -1), layer_logits=(1,))
    sequence = llm.sequence(TOKENS[:40], capture=capture)
    sequence.extend(TokenTree(TOKENS[40:45], [-1, 0, 0, 2, -1]))
    sequence.commit([0, 2, 3])
    chain = llm.sequence(TOKENS[:40], capture=capture)
    chain.extend([TOKENS[40], TOKENS[42], TOKENS[43]])
    assert_same_bits(sequence.logits, chain.logits)
    for name in ("attention", "hidden_states", "layer_logits"):
        ours, theirs = getattr(sequence, name), getattr(chain, name)
        assert sorted(ours) == sorted(theirs)
        for layer, values in theirs.items():
            assert_same_bits(ours[layer], values, (name, layer))
