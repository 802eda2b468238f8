"""Steps that a device plays: faults inside them, rows that fill them up, values of positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llmi import LLM, EngineError, SamplingParams, _core
from llmi.models.safetensors_file import read_safetensors
from llmi.testing import assert_same_tokens, tiny_model
from llmi.testing.tiny import save_safetensors

pytestmark = pytest.mark.usefixtures("emulated")
PARAMS = SamplingParams(temperature=0.8, seed=1, max_tokens=24, ignore_eos=True)
PROMPTS = [[5 + i, 6, 7 + 2 * i] for i in range(5)]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")


@pytest.mark.parametrize("launch", [1, 40, 400])
def test_a_fault_inside_a_step_ends_the_engine_with_its_cause(tmp_path: Path, launch: int) -> None:
    """In the first launch of a step, inside its layers, and steps later. Another engine of the process goes on."""
    path = tiny_model(path=tmp_path)
    with LLM(path, device="cuda", kv_cache_memory_bytes=1 << 22) as llm:
        expected = llm.generate(PROMPTS, PARAMS)
        llm.reset_prefix_cache()
        llm.generate(PROMPTS, PARAMS)
        played = llm.get_metrics()["num_graph_replays"]
        assert played > 20
        _core.testing.fail_device_launch(launch)
        try:
            with pytest.raises(EngineError, match=r"the engine stopped: emulated device: \w+.* has stopped"):
                llm.generate(PROMPTS[0], PARAMS)
        finally:
            _core.testing.fail_device_launch(0)
        with pytest.raises(EngineError, match="has stopped"):
            llm.generate(PROMPTS[0], PARAMS)
    with LLM(path, device="cuda", kv_cache_memory_bytes=1 << 22) as llm:
        assert_same_tokens(llm.generate(PROMPTS, PARAMS), expected)


def test_rows_that_fill_up_a_step_reach_nothing(tmp_path: Path) -> None:
    """Their token, id 0, has NaN as its embedding, so all that they give is NaN: activations, rows for the head, logits, draws."""
    path = tiny_model(path=tmp_path, tie_word_embeddings=False)
    tensors, _ = read_safetensors(path / "model.safetensors")
    name = "model.embed_tokens.weight"
    tensors[name] = np.array(tensors[name], copy=True)
    tensors[name][0] = np.nan
    save_safetensors(path / "model.safetensors", tensors)
    params = PARAMS.replace(allowed_token_ids=list(range(1, 200)))
    engine = {"kv_cache_memory_bytes": 1 << 22, "enable_prefix_caching": False}
    with LLM(path, **engine) as cpu, LLM(path, device="cuda", **engine) as llm:
        for num_rows in (3, 5):
            expected = cpu.generate(PROMPTS[:num_rows], params)
            for _ in range(3):  # directly, recorded, played
                assert_same_tokens(llm.generate(PROMPTS[:num_rows], params), expected)
        assert llm.get_metrics()["num_graph_replays"] > 100


def test_the_cache_leaves_room_for_the_values_of_positions(tmp_path: Path) -> None:
    path = tiny_model(path=tmp_path, max_position_embeddings=200_000)
    pages = []
    for length in (1_000, 101_000):
        with LLM(path, device="cuda", gpu_memory_utilization=0.2, max_num_seqs=100_000, max_model_len=length) as llm:
            pages.append(llm.get_metrics()["num_pages"])
            page_bytes = llm._page_bytes
            assert len(llm.generate(PROMPTS[0], PARAMS)[0].token_ids) == 24
    rotary_dim = 16
    assert (pages[0] - pages[1]) * page_bytes == pytest.approx(100_000 * rotary_dim * 4, abs=2 * page_bytes)
