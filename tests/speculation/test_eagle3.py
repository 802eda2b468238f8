"""EAGLE-3 in SpecForge's layout: the drafts that its definition names, on tiny models with random layers; files that do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle3_float64 import Eagle3Definition
from features import crowded_llm
from llmi import LLM, Eagle, ModelFileError
from llmi.testing import assert_same_tokens
from test_eagle import GREEDY, OPTIONS, SAMPLED, check_drafts, config, prompt
from tiny_eagle3 import tiny_eagle3

TAPS = [1, 2, 3]
TOKENS = [*range(1, 50), 52, 57, 60, 63]


@pytest.fixture(scope="module")
def model(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path("llama", vocab_size=64)


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[LLM]:
    with LLM(model, kv_cache_memory_bytes=1 << 24, **OPTIONS) as llm:
        yield llm


@pytest.fixture(scope="module")
def heads(plain: LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_eagle3(plain, tmp_path_factory.mktemp("heads"), taps=TAPS, tokens=TOKENS)


@pytest.fixture(scope="module")
def definition(plain: LLM, heads: Path) -> Eagle3Definition:
    return Eagle3Definition(plain, heads)


def test_drafts_follow_the_definition(model: Path, plain: LLM, heads: Path, definition: Eagle3Definition) -> None:
    prompts = [prompt(1, 1), prompt(2, 2), prompt(3, 17), prompt(4, 33), prompt(5, 48)]
    params = GREEDY.replace(max_tokens=40)
    with LLM(model, kv_cache_memory_bytes=1 << 24, speculative_config=config(heads), **OPTIONS) as llm:
        for _ in range(2):  # the second time from the prefix cache
            outputs = llm.generate(prompts, params, trace=True)
            assert_same_tokens(outputs, plain.generate(prompts, params))
            assert sum(output.outputs[0].spec_decode_metrics.num_accepted_tokens for output in outputs) > 0
            assert check_drafts(definition, outputs) >= 60


def test_under_pressure(model: Path, plain: LLM, heads: Path, definition: Eagle3Definition) -> None:
    prompts = [prompt(90 + i, 5 + 7 * i) for i in range(8)]
    params = GREEDY.replace(max_tokens=30)
    with crowded_llm(model, 24, max_model_len=110, max_num_batched_tokens=24, speculative_config=config(heads), dtype="float32") as crowded:
        outputs = crowded.generate(prompts, params, trace=True)
        assert_same_tokens(outputs, plain.generate(prompts, params))
        assert check_drafts(definition, outputs) > 0
        sampled = SAMPLED.replace(n=2)
        assert_same_tokens(crowded.generate(prompts[:4], sampled), plain.generate(prompts[:4], sampled))


def test_on_a_device(model: Path, heads: Path, definition: Eagle3Definition, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    with LLM(model, device="cuda", kv_cache_memory_bytes=1 << 22, speculative_config=config(heads), **OPTIONS) as emulated:
        params = GREEDY.replace(max_tokens=8)
        outputs = emulated.generate([prompt(60, 20), prompt(61, 3)], params, trace=True)
        assert check_drafts(definition, outputs) > 3


@pytest.mark.parametrize("listed", [[0, 1, 3], [0, 1], "all", [0, 1, True], [-1, 0, 1]])
def test_layers_that_do_not_fit(model: Path, plain: LLM, tmp_path: Path, listed: object) -> None:
    heads = tiny_eagle3(plain, tmp_path, taps=TAPS, tokens=TOKENS, eagle_config={"eagle_aux_hidden_state_layer_ids": listed})
    with pytest.raises(ModelFileError, match="eagle_aux_hidden_state_layer_ids"):
        LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=Eagle(heads), **OPTIONS)


@pytest.mark.parametrize(("offset", "what"), [(1, "outside the vocabulary"), (-1 - 63, "outside the vocabulary"), (-3, "twice")])
def test_a_map_out_of_range(model: Path, heads: Path, tmp_path: Path, offset: int, what: str) -> None:
    shutil.copytree(heads, tmp_path / "heads")
    weights = tmp_path / "heads" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    size = int.from_bytes(data[:8], "little")
    end = 8 + size + json.loads(data[8 : 8 + size])["d2t"]["data_offsets"][1]
    last = 63 - (len(TOKENS) - 1) + offset
    data[end - 4 : end] = last.to_bytes(4, "little", signed=True)
    weights.write_bytes(bytes(data))
    with pytest.raises(ModelFileError, match=what):
        LLM(model, kv_cache_memory_bytes=1 << 22, speculative_config=Eagle(tmp_path / "heads"), **OPTIONS)
