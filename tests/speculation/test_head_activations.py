"""Trained heads read activations of 8 bits, whatever the target reads: they only propose, and each step waits for them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from llmi import LLM, Drafter, Eagle, Medusa, SamplingParams, SpeculativeConfig, TokenContext, Verification
from llmi.models.safetensors_file import read_safetensors
from llmi.speculation.verification import VerifyContext
from llmi.testing.tiny import save_safetensors
from tiny_eagle import tiny_eagle
from tiny_medusa import tiny_medusa

SMALL: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 23, "max_model_len": 128, "quantization": "q8_0"}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SCRIPT = [53, 58, 9, 7, 9, 3, 2, 38]


class Seen(Verification):
    """Keeps what was drafted, with its distributions, and accepts nothing."""

    def __init__(self) -> None:
        self.probs: list[Any] = []

    def verify(self, context: VerifyContext) -> tuple[list[int], int]:
        assert context.draft.draft_probs is not None
        self.probs += [np.array(row) for row in context.draft.draft_probs]
        return [], context.target_token(0)


def follow_script(context: TokenContext, logits: Any) -> None:
    logits[SCRIPT[len(context.token_ids) - len(PROMPT)]] = 1e4


@pytest.fixture
def model(tiny_path: Callable[..., Path], tmp_path: Path) -> Path:
    """A model whose layers add nothing, so that its hidden rows do not depend on what the layers read."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_path("llama", vocab_size=64), folder)
    tensors, _ = read_safetensors(folder / "model.safetensors")
    nothing = {name: 0 * tensor for name, tensor in tensors.items() if name.endswith(("o_proj.weight", "down_proj.weight"))}
    save_safetensors(folder / "model.safetensors", {**tensors, **nothing})
    return folder


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_heads_read_eight_bits(model: Path, tmp_path: Path, kind: str) -> None:
    drafter: Drafter
    with LLM(model, **SMALL) as plain:
        drafter = Eagle(tiny_eagle(plain, tmp_path / "heads"), 3) if kind == "eagle" else Medusa(tiny_medusa(plain, tmp_path / "heads"))
    params = SamplingParams(temperature=1, seed=4, max_tokens=len(SCRIPT), ignore_eos=True, logits_processors=[follow_script])
    drafted, targets = [], []
    for bits in (16, 8):
        seen = Seen()
        config = SpeculativeConfig(drafter, 3, verification=seen)
        with LLM(model, activation_bits=bits, speculative_config=config, **SMALL) as llm:
            output = llm.generate([PROMPT], params)[0]
            assert output.token_ids == SCRIPT
            drafted.append(seen.probs)
            with llm.sequence(PROMPT) as sequence:
                targets.append(np.array(sequence.logits))
    assert (targets[0] != targets[1]).any(), "the two modes of the target differ"
    assert len(drafted[0]) == len(drafted[1]) >= 10
    for place, (wide, narrow) in enumerate(zip(*drafted, strict=True)):
        assert_same_bits(wide, narrow, place)
