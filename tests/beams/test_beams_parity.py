"""A slice of tests/support/beam_parity.py: beam search and its definition beside transformers 5.24's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import beam_oracle
import beam_parity
from beam_oracle import Rules
from llmi import LLM
from test_beams import ENDS

pytestmark = pytest.mark.parity


def test_the_definition_is_that_of_transformers(tiny_path: Callable[..., Path]) -> None:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_path("llama", vocab_size=48, num_layers=2), dtype=torch.float32, attn_implementation="eager"
    )
    ended = 0
    for seed, width, ends in [(3, 2, ENDS), (4, 4, [0, 5, 9, 11, 30, 31])]:
        prompt = np.random.default_rng(seed).integers(1, 48, size=5).tolist()
        theirs = beam_parity.Theirs(model, ends)
        theirs.generate(prompt, num_beams=width, max_new_tokens=8, early_stopping="never", length_penalty=2.0)
        lookup = beam_parity.remembered(theirs)
        for stopping, penalty in beam_parity.settings()[seed % 2 :: 2]:
            outputs, scores = lookup.generate(
                prompt, num_beams=width, max_new_tokens=8, early_stopping=stopping, length_penalty=penalty, use_cache=False
            )
            found = beam_oracle.search(theirs.row, prompt, Rules(width, 8, frozenset(ends), penalty, early_stopping=stopping))  # type: ignore[arg-type]
            assert [beam.tokens for beam in found.hypotheses] == outputs and found.gap > 1e-5
            assert [beam.score for beam in found.hypotheses] == pytest.approx(scores, abs=1e-4)
            ended += any(len(output) < 8 for output in outputs)
    assert ended > 2, "too few hypotheses that end early"


def test_a_slice_of_the_grid(smollm_path: Path) -> None:
    """One prompt, two beams, 10 tokens: the same sequences where no choice is close."""
    counts = beam_parity.Counts()
    model = beam_parity.load_hf(smollm_path)
    with LLM(smollm_path, dtype="float32", max_model_len=64, kv_cache_memory_bytes=1 << 27) as llm:
        ends = sorted(llm.tokenizer.eos_token_ids)
        prompt = llm.tokenizer.encode("The capital of France is")
        beam_parity.compare(llm, beam_parity.Theirs(model, ends), prompt, 2, 10, counts, [(False, 1.0), (True, 0.0), ("never", 2.0)])
    assert counts.runs == 3 and counts.clear >= 1
    assert not counts.clear_and_other and not counts.oracle_and_other
