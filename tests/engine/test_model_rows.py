"""What an LLM shows of its model: hidden states of prompts, the head, the weights. The bits are those of the engine's own steps."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from features import there
from llmi import LLM, Capture
from llmi.testing import tiny_model

LAYERS = (0, 1, -1)
RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(1, 257, size=size).tolist() for size in (1, 37, 16, 90, 5, 64)]
ENGINE: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 22, "max_model_len": 160}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3": {"architecture": "gemma3"},
    "own head": {"tie_word_embeddings": False},
    "quantised": {"tie_word_embeddings": False, "engine": {"quantization": "q8_0"}},
    "quantised, two bytes": {"engine": {"quantization": "q4_0", "activation_bits": 16}},
}


@pytest.fixture(params=list(MODELS))
def path_and_engine(request: pytest.FixtureRequest, tiny_path: Callable[..., Path]) -> tuple[Path, dict[str, Any]]:
    model = dict(MODELS[request.param])
    engine = model.pop("engine", {})
    return tiny_path(model.pop("architecture", "llama"), **model), engine


def of_lab(llm: LLM, ids: list[int]) -> tuple[dict[int, Any], Any]:
    """All rows and logits, as a sequence of the lab gives them."""
    with llm.sequence([], capture=Capture(hidden_states=LAYERS)) as sequence:
        logits = sequence.extend(ids)
        num_layers = llm.model_info.num_layers
        return {layer: sequence.hidden_states[num_layers if layer == -1 else layer] for layer in LAYERS}, logits


def test_rows_and_logits_are_those_of_the_engine(path_and_engine: tuple[Path, dict[str, Any]]) -> None:
    path, engine = path_and_engine
    with LLM(path, **ENGINE, **engine) as llm:
        expected = [of_lab(llm, ids) for ids in PROMPTS]
        normed = llm.hidden_states(PROMPTS, normed=True)
        for (rows, logits), whole, last in zip(expected, llm.hidden_states(PROMPTS, LAYERS), normed, strict=True):
            assert list(whole) == list(LAYERS) and list(last) == [-1]
            for layer in LAYERS:
                assert whole[layer].dtype == np.float32, layer
                assert_same_bits(
                    whole[layer], rows[layer], layer, equal_rows="" if layer else "these are embeddings, and tokens come again"
                )
            assert_same_bits(llm.head(last[-1]), logits)
            ids, few = llm.head(last[-1], shortlist=[200, 3, 17, 256, 16, 0])
            assert ids.tolist() == [200, 3, 17, 256, 16, 0] and ids.dtype == np.int32
            assert_same_bits(few, logits[:, ids])


def test_neither_chunks_nor_company_change_a_bit(tiny_path: Callable[..., Path], table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 24 tokens, of 2048, each prompt alone, with other requests in the batch, prompts that the prefix cache knows: on every table
    and device."""
    options: dict[str, Any] = {**ENGINE, **there(monkeypatch, table)}
    path = tiny_path("gemma3")
    with LLM(path, **options) as llm:
        llm.generate(PROMPTS, max_tokens=2, seed=1)
        before = llm.memory_report().num_free_blocks
        expected = llm.hidden_states(PROMPTS, LAYERS, normed=True)
        assert llm.memory_report().num_free_blocks == before
        with llm.stream([9, 8, 7], max_tokens=60, seed=2, ignore_eos=True) as stream:
            next(iter(stream))
            beside = llm.hidden_states(PROMPTS, LAYERS, normed=True)
        alone = [llm.hidden_states([ids], LAYERS, normed=True)[0] for ids in PROMPTS]
        logits = llm.head(np.concatenate([rows[-1] for rows in expected]))
        for ids, row in zip(PROMPTS, np.cumsum([len(ids) for ids in PROMPTS]) - 1, strict=True):
            with llm.sequence(ids) as sequence:
                assert_same_bits(sequence.logits, logits[row])
    with LLM(path, **options, max_num_batched_tokens=24) as llm:
        chunked = llm.hidden_states(PROMPTS, LAYERS, normed=True)
        assert_same_bits(llm.head(expected[3][-1]), logits[54:144])
    for others in (beside, alone, chunked):
        for rows, same in zip(expected, others, strict=True):
            assert all(np.array_equal(rows[layer], same[layer]) for layer in LAYERS)


def test_prompts_that_do_not_fit_together(tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=96) as probe:
        memory = probe._page_bytes * 8
        expected = probe.hidden_states([[*range(1, 91)], [*range(5, 95)]])
    with LLM(tiny_path(), kv_cache_memory_bytes=memory, max_model_len=96) as llm:
        rows = llm.hidden_states([[*range(1, 91)], [*range(5, 95)]])
        assert all(np.array_equal(a[-1], b[-1]) for a, b in zip(rows, expected, strict=True))


def test_prompts_are_read_as_everywhere(tiny: LLM) -> None:
    text = "The sea"
    ids = tiny.tokenizer.encode(text)
    rows = [tiny.hidden_states(prompt)[0][-1] for prompt in (text, ids, {"prompt": text}, tiny.sequence(text))]
    assert all(np.array_equal(rows[0], row) for row in rows) and rows[0].shape == (len(ids), tiny.model_info.hidden_size)
    assert not rows[0].flags.writeable
    assert tiny.hidden_states([]) == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda llm: llm.hidden_states("a", []), llmi.InvalidParamsError, "layers is empty"),
        (lambda llm: llm.hidden_states("a", [4]), llmi.InvalidParamsError, r"layer 4 is neither -1 nor in \[0, 3\]"),
        (lambda llm: llm.hidden_states("a", normed=1), llmi.InvalidParamsError, "normed must be True or False"),
        (lambda llm: llm.hidden_states([[]]), llmi.InvalidParamsError, "prompt 0 has no token"),
        (lambda llm: llm.hidden_states([[300]]), llmi.InvalidParamsError, r"token id 300 is outside \[0, 257\)"),
        (lambda llm: llm.hidden_states([[1] * 4000]), llmi.PromptTooLongError, "4,000 tokens"),
        (lambda llm: llm.head(np.zeros(64)), llmi.InvalidParamsError, r"hidden must be numbers \[num_rows, hidden_size\]"),
        (lambda llm: llm.head(np.zeros((2, 63))), llmi.InvalidParamsError, r"\[num_rows, 64\]"),
        (lambda llm: llm.head([["a"] * 64]), llmi.InvalidParamsError, "hidden must be numbers"),
        (lambda llm: llm.head(np.full((2, 64), np.nan)), llmi.InvalidParamsError, "row 0 holds NaN"),
        (lambda llm: llm.head(np.zeros((2, 64)), shortlist=[]), llmi.InvalidParamsError, "shortlist is empty"),
        (lambda llm: llm.head(np.zeros((2, 64)), shortlist=[5, 7, 5]), llmi.InvalidParamsError, "token 5 stands in it twice"),
        (lambda llm: llm.head(np.zeros((2, 64)), shortlist=[257]), llmi.InvalidParamsError, "token id 257 is outside"),
        (lambda llm: llm.weights["model.norm"], KeyError, r"there is no tensor 'model.norm'; 'model.norm.weight' is one"),
        (lambda llm: llm.weights["x"], llmi.InvalidParamsError, "there is no tensor 'x'"),
    ],
)
def test_what_is_refused(tiny: LLM, call: Callable[[LLM], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(tiny)


def test_not_from_its_own_hooks(tiny: LLM) -> None:
    seen: list[Exception] = []

    def criterion(context: Any) -> bool:
        for call in (lambda: tiny.head(np.zeros((1, 64))), lambda: tiny.hidden_states([1, 2])):
            with pytest.raises(llmi.EngineBusyError) as info:
                call()
            seen.append(info.value)
        return True

    tiny.generate([1, 2], stopping_criteria=[criterion], max_tokens=4)
    assert len(seen) == 2


def stored(path: Path) -> dict[str, Any]:
    """The tensors of a tiny model's file."""
    data = (path / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    return {
        name: np.frombuffer(data[8 + size :][slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"])
        for name, entry in header.items()
    }


def test_weights_are_those_of_the_file(path_and_engine: tuple[Path, dict[str, Any]]) -> None:
    path, engine = path_and_engine
    expected = stored(path)
    with LLM(path, **ENGINE, **engine) as llm:
        assert sorted(llm.weights) == sorted(expected) and len(llm.weights) == len(expected)
        for name, values in llm.weights.items():
            assert values.dtype == np.float32
            assert_same_bits(values, expected[name])
        own = llm.weights["model.norm.weight"]
        own[:] = 0  # it is a copy
        assert_same_bits(llm.weights["model.norm.weight"], expected["model.norm.weight"])
        assert "model.norm" not in llm.weights and llm.weights.get("model.norm") is None
        weights = llm.weights
    with pytest.raises(llmi.EngineClosedError):
        weights["model.norm.weight"]


def test_weights_of_a_gguf_are_dequantised(smollm: LLM) -> None:
    """Rows of the embedding are the embedding's output; the file's types are unpacked."""
    embedding = smollm.weights["token_embd.weight"]
    rows = smollm.hidden_states([5, 77, 4000], [0])[0][0]
    assert_same_bits(embedding[[5, 77, 4000]], rows)
    assert "blk.0.attn_q.weight" in smollm.weights


def test_a_file_that_was_changed(tmp_path: Path) -> None:
    path = tiny_model(path=tmp_path)
    with LLM(path, **ENGINE) as llm:
        with (path / "model.safetensors").open("r+b") as file:
            file.seek(-4, 2)
            file.write(b"\0\0\0\0")
        with pytest.raises(llmi.ModelFileError, match="was changed after it was loaded"):
            llm.weights["model.norm.weight"]
