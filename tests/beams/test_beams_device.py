"""Beams on a device: their candidates are found where the logits are, with the host's bits; what a device does not know comes to the
host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from features import DEVICES, stateful
from llmi import LLM, NonFiniteLogitsError, Outputs, SamplingParams, _core
from llmi.testing import assert_same_tokens
from test_beams import ENDS, Array, beams

ENGINE: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 23, "max_model_len": 64}
PROMPTS = [[5, 11, 3, 17, 5, 11], [9, 4] * 10, [3]]


@pytest.fixture(scope="module")
def path(tiny_path: Callable[..., Path]) -> Path:
    return tiny_path("llama", vocab_size=48, num_layers=2)


@pytest.fixture(scope="module", params=DEVICES)
def engines(path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[LLM, LLM]]:
    """The CPU's, and the device's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMI_EMULATE_CUDA", "1" if request.param == "emulated" else "0")
        with LLM(path, **ENGINE) as cpu, LLM(path, device="cuda", **ENGINE) as there:
            yield cpu, there


def both(engines: tuple[LLM, LLM], prompts: list[list[int]], params: Any, **options: Any) -> tuple[Outputs, int]:
    """What the device gives, which must be the CPU's; and how many rows it has decided."""
    expected = engines[0].generate(prompts, params, use_tqdm=False, **options)
    before = engines[1].get_metrics()["num_device_draws"]
    outputs = engines[1].generate(prompts, params, use_tqdm=False, **options)
    assert_same_tokens(outputs, expected)
    return outputs, engines[1].get_metrics()["num_device_draws"] - before


@pytest.mark.parametrize("width", range(1, 17))
def test_each_width_is_the_cpus(engines: tuple[LLM, LLM], width: int) -> None:
    fields = [
        {"early_stopping": False},
        {"early_stopping": "never", "length_penalty": 2.0},
        {"early_stopping": True, "length_penalty": -1.0},
    ]
    outputs, found = both(engines, PROMPTS, beams(width, max_tokens=6, **fields[width % 3]))
    assert found > 0 and {output.params_resolved["drawn_on"] for output in outputs} == {("device", "default")}


#: What a search asks for, and where its rows are looked at.
CASES: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"num_beam_groups": 2, "diversity_penalty": 0.7}, ("device", "default")),
    ({"num_beam_groups": 4, "diversity_penalty": 3.0}, ("device", "default")),
    ({"stop": ["a", "e"], "n": 2}, ("device", "default")),
    ({"temperature": 1.0, "top_p": 1.0, "ignore_eos": True}, ("device", "default")),
    ({"do_sample": True, "seed": 4}, ("host", "do_sample")),
    ({"repetition_penalty": 1.3, "presence_penalty": 0.1}, ("host", "repetition_penalty, presence_penalty")),
    ({"no_repeat_ngram_size": 2, "min_tokens": 3}, ("host", "min_tokens, no_repeat_ngram_size")),
    ({"allowed_token_ids": [0, *range(5, 30)], "bad_words": ["a"]}, ("host", "allowed_token_ids, bad_words")),
    ({"logit_bias": {4: 2.0}, "temperature": 0.7, "top_k": 9}, ("host", "logit_bias, temperature, top_k")),
    ({"dynatemp_range": 0.5, "do_sample": True, "seed": 2}, ("host", "do_sample, dynatemp_range")),
    ({"mirostat": 2, "mirostat_tau": 2.0}, ("host", "mirostat")),
    ({"logits_processors": [stateful]}, ("host", "logits_processors")),
    ({"stopping_criteria": [lambda context: int(context.token_ids[-1]) % 5 == 1]}, ("host", "stopping_criteria")),
    ({"logprobs": 1}, ("host", "logprobs")),
]


@pytest.mark.parametrize(("fields", "place"), CASES, ids=lambda value: ", ".join(value) if isinstance(value, dict) else "")
def test_where_rows_are_looked_at(engines: tuple[LLM, LLM], fields: dict[str, Any], place: tuple[str, str]) -> None:
    outputs, found = both(engines, PROMPTS, beams(4, max_tokens=7, **fields))
    assert {output.params_resolved["drawn_on"] for output in outputs} == {place}
    assert (found > 0) == (place[0] == "device"), found


def test_traces_are_written_on_the_host(engines: tuple[LLM, LLM]) -> None:
    outputs, found = both(engines, PROMPTS[:1], beams(3, max_tokens=5), trace=True)
    assert found == 0 and outputs[0].params_resolved["drawn_on"] == ("host", "trace")
    assert outputs[0].outputs[0].trace is not None


def test_searches_and_samples_share_a_step(engines: tuple[LLM, LLM]) -> None:
    """Rows of different widths, of the host and of the device, side by side; prompts in chunks."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(1, 48, size=int(rng.integers(1, 30))).tolist() for _ in range(9)]
    params: list[Any] = [
        beams(3, max_tokens=8),
        SamplingParams(max_tokens=8, seed=3, n=2),
        beams(3, max_tokens=8, logprobs=1),
        beams(7, max_tokens=6),
        beams(2, do_sample=True, seed=1, max_tokens=8),
        SamplingParams(temperature=0, max_tokens=9),
        beams(3, max_tokens=5, stop_token_ids=[9]),
        beams(4, num_beam_groups=2, diversity_penalty=0.5, max_tokens=8),
        beams(1, max_tokens=8),
    ]
    _, found = both(engines, prompts, params)
    assert found > 60


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_more_candidates_than_a_device_sorts(path: Path, device: str) -> None:
    """Each beam looks at four tokens for each of the beams: from 513 beams on these are more than 2,048."""
    for width, place in ((512, ("device", "default")), (513, ("host", "beam_width"))):
        with LLM(path, device="cuda", kv_cache_memory_bytes=1 << 24, max_model_len=32, max_num_seqs=600) as llm:
            output = llm.generate([[5]], beams(width, max_tokens=1, n=3), use_tqdm=False)[0]
        assert output.params_resolved["drawn_on"] == place
        assert len(output.outputs) == 3


def copy_model(path: Path, copy: Path, suffix: str, change: Callable[[Array], None]) -> None:
    """The model with a changed tensor, the first one whose name ends so."""
    for file in path.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    weights = load_file(copy / "model.safetensors")
    name = next(key for key in weights if key.endswith(suffix))
    weights[name] = weights[name].copy()
    change(weights[name])
    save_file(weights, copy / "model.safetensors")


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_ties(path: Path, tmp_path: Path, device: str) -> None:
    """Pairs of tokens with one embedding have one logit: the lower id is first, and ranks of beams decide before ids do."""

    def pair(rows: Array) -> None:
        rows[1::2] = rows[::2]

    copy_model(path, tmp_path, "embed_tokens.weight", pair)
    with LLM(tmp_path, **ENGINE) as cpu, LLM(tmp_path, device="cuda", **ENGINE) as there:
        for width in (2, 3, 5, 8):
            outputs, found = both((cpu, there), PROMPTS, beams(width, max_tokens=6, ignore_eos=True, eos_token_id=None))
            assert found > 0
            scores = [completion.score for output in outputs for completion in output.outputs]
            assert len(set(scores)) < len(scores), "no tie"


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_rows_without_candidates(path: Path, tmp_path: Path, device: str) -> None:
    """A row of NaN ends its search alone, with the CPU's message."""

    def spoil(weight: Array) -> None:
        weight[3] = np.nan

    copy_model(path, tmp_path, "layers.0.input_layernorm.weight", spoil)
    errors = []
    for device_kind in ("cpu", "cuda"):
        with LLM(tmp_path, device=device_kind, **ENGINE) as llm:
            output = llm.generate(PROMPTS[:1], beams(3), on_error="return", use_tqdm=False)[0]
            assert isinstance(output.error, NonFiniteLogitsError)
            errors.append(str(output.error))
    assert errors[0] == errors[1]


@pytest.mark.skipif(not hasattr(_core, "testing"), reason="this build has no testing submodule")
def test_memory_is_used_again(engines: tuple[LLM, LLM]) -> None:
    """A narrow search after a wide one, and a wide one after it."""
    for width in (9, 2, 16, 1, 12):
        both(engines, PROMPTS, beams(width, max_tokens=4, eos_token_id=ENDS))
