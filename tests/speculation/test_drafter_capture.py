"""Drafters that look at the target's hidden states: the very rows that plain computation gives, whatever the batch did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from llmi import LLM, Capture, DraftContext, Drafter, PromptLookup, SamplingParams, SpeculativeConfig, TokenTree
from llmi.testing import assert_same_tokens

LAYERS = (0, 1, -1)


class Watcher(Drafter):
    """Keeps what it saw, and proposes a tree: a repeated token right often enough, and wrong ones beside it."""

    capture = Capture(hidden_states=LAYERS)

    def __init__(self, width: int = 2) -> None:
        self.seen: list[tuple[list[int], dict[int, Any]]] = []
        self.width = width

    def propose(self, context: DraftContext) -> TokenTree:
        ids = context.token_ids.tolist()
        self.seen.append((ids, {layer: row.copy() for layer, row in context.hidden_states.items()}))
        paths = [[(ids[-1] + 1 + step) % 40, (ids[-1] + 2 + step) % 40] for step in range(self.width)]
        return TokenTree.from_paths([ids[-2:], *paths], context.num_speculative_tokens)


def check(llm: LLM, seen: list[tuple[list[int], dict[int, Any]]]) -> None:
    num_layers = llm.model_info.num_layers
    expected: dict[tuple[int, ...], Any] = {}
    for ids, hidden in seen:
        assert set(hidden) == {0, 1, num_layers}
        key = tuple(ids[:-1])
        if key not in expected:
            with llm.sequence(ids[:-1], capture=Capture(hidden_states=LAYERS)) as sequence:
                expected[key] = sequence.hidden_states
        for layer, row in hidden.items():
            assert row.dtype == np.float32, (layer, ids)
            assert_same_bits(row, expected[key][layer][-1], (layer, ids))


@pytest.mark.parametrize("verification", ["coupled", "rejection", "typical"])
def test_rows_are_those_of_plain_computation(crowded: LLM, roomy: LLM, verification: Any) -> None:
    watcher = Watcher()
    config = SpeculativeConfig(watcher, 4, verification=verification)
    prompts = [[1, 2, 3], [4] * 40, [5, 6] * 12, [1, 2, 3, 9, 9, 9]]
    params = [SamplingParams(max_tokens=25, seed=seed, temperature=0.7, top_k=3, ignore_eos=True, n=1 + seed % 3) for seed in range(4)]
    outs = crowded.generate(prompts, params, speculative_config=[config, config, None, SpeculativeConfig([PromptLookup(), watcher], 4)])
    accepted = sum(s.spec_decode_metrics.num_accepted_tokens for out in outs for s in out.outputs if s.spec_decode_metrics)
    assert accepted > 5 and len(watcher.seen) > 60
    check(roomy, watcher.seen)
    assert sum(out.metrics.num_preemptions for out in outs) > 0
    if verification == "coupled":
        assert_same_tokens(outs, crowded.generate(prompts, params))


def test_block_verification(crowded: LLM, roomy: LLM) -> None:
    watcher = Watcher(0)
    config = SpeculativeConfig(watcher, 2, verification="block")
    outs = crowded.generate(
        [[1, 2, 3], [7, 8]], temperature=0.5, top_k=2, seed=1, max_tokens=40, ignore_eos=True, speculative_config=config
    )
    assert sum(out.outputs[0].spec_decode_metrics.num_accepted_tokens for out in outs) > 0  # type: ignore[union-attr]
    check(roomy, watcher.seen)


def test_what_is_refused(crowded: LLM) -> None:
    class Greedy(Watcher):
        capture = Capture(layer_logits=[1])

    with pytest.raises(llmi.UnsupportedCombinationError, match=r"Greedy.capture has layer_logits or attention"):
        crowded.generate([1, 2], speculative_config=Greedy())
    Greedy.capture = Capture(hidden_states=[99])
    with pytest.raises(llmi.InvalidParamsError, match="layer 99"):
        crowded.generate([1, 2], speculative_config=Greedy())
    outs = crowded.generate([[1, 2, 3]], max_tokens=3, seed=1)
    with pytest.raises(llmi.UnsupportedCombinationError, match="the arena runs no target"):
        llmi.drafter_arena(outs, {"watcher": Watcher()})
