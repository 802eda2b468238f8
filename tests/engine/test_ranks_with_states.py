"""Several ranks of models whose layers have states: heads of a recurrence are split, convolutions alone are whole on each rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_families
from llmi import LLM, PromptLookup, SpeculativeConfig, TokenTree

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("in_threads")]
ARGUMENTS: dict[str, Any] = {"seed": 3, "num_threads": 1, "max_model_len": 160, "kv_cache_memory_bytes": 1 << 22}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "short convolutions": ("lfm2", {}),
    "delta rule": ("qwen3_next", tiny_families.RECURRENT["qwen3_next"]),
    "delta rule of Qwen3.5": ("qwen3_5_text", tiny_families.RECURRENT["qwen3_5_text"]),
    "Mamba-2": ("granitemoehybrid", tiny_families.MAMBA),
    "Mamba-2 of one group": ("granitemoehybrid", tiny_families.MAMBA | {"mamba_n_groups": 1, "mamba_d_state": 16}),
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "logprobs": 1},
    "several": {"n": 3, "min_p": 0.02},
    "beams": {"beam_width": 3, "max_tokens": 6, "seed": None},
    "drafts": {"speculative_config": SpeculativeConfig(PromptLookup(), 3), "temperature": 0},
}
PROMPTS = [[5, 9, 2, 7, index, 5, 9, 2] for index in range(3)] + [list(range(40, 110))]


def outputs(llm: LLM, kinds: Sequence[str] = tuple(KINDS)) -> list[Any]:
    found = [llm.generate(PROMPTS, **{"max_tokens": 10, "seed": 11, "ignore_eos": True, **KINDS[kind]}) for kind in kinds]
    return [*found, llm.generate(PROMPTS, max_tokens=5, seed=2)]  # beginnings that the cache has


def tree(llm: LLM) -> list[bytes]:
    """Drafts whose rows are moved, and a way back."""
    with llm.sequence(PROMPTS[0]) as sequence:
        rows = [sequence.extend(TokenTree([5, 6, 7, 42, 8], [-1, 0, 0, 1, 3]))]
        sequence.commit([0, 1, 3, 4])
        rows.append(sequence.extend([11]))
        sequence.rollback(2)
        rows.append(sequence.extend([12]))
    return [np.asarray(row).tobytes() for row in rows]


@pytest.mark.parametrize(("count", "split"), [pytest.param(2, None, marks=pytest.mark.slow), (3, [0.6, 0.1, 0.3])])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_of_one_process(families: Path, name: str, count: int, split: list[float] | None) -> None:
    family, changes = MODELS[name]
    path = tiny_families.make(family, families, **changes).path
    with LLM(path, **ARGUMENTS) as one, LLM(path, **ARGUMENTS, tensor_parallel_size=count, tensor_split=split) as several:
        assert outputs(several) == outputs(one)
        assert tree(several) == tree(one)


def test_on_devices(families: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    path = tiny_families.make("qwen3_next", families, **tiny_families.RECURRENT["qwen3_next"]).path
    with LLM(path, **ARGUMENTS) as one, LLM(path, **ARGUMENTS, device="cuda", tensor_parallel_size=2) as two:
        assert outputs(two, ["greedy"]) == outputs(one, ["greedy"])
