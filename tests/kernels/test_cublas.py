"""deterministic=False: cuBLASLt, by a library of the host's that takes its calls and refuses wrong ones, and, where there is one, on a
GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, SelfDraft, SpeculativeConfig, _core
from llmi.engine.cublas import find_cublas_lt
from native_library import build_library
from test_invariance import COUNTS, make_params, make_prompts, run, tight_pool
from test_tensor_cores import matrix, rand, rounded, values

T = _core.testing
ROOT = Path(__file__).parents[2]
FREE: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "deterministic": False}
FREE_FP16 = FREE | {"dtype": "float16"}
LINEAR_DTYPES = {"bfloat16": "bf16", "float16": "fp16"}  # that rounds as deterministic=False does


@pytest.fixture(scope="session")
def host_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_library(ROOT / "tests/native/cublas_lt.cc", tmp_path_factory.mktemp("cublas"))


@pytest.fixture
def library(device: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The host's in the emulation; on a GPU the real one."""
    if device == "emulated":
        monkeypatch.setenv("LLMI_CUBLASLT", request.getfixturevalue("host_library"))
    try:
        return find_cublas_lt()
    except llmi.DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_products_are_those_of_rounded_rows(device: str, library: str, kind: str) -> None:
    table = f"{device}+cublaslt:{library}"
    for rows, cols in ((16, 128), (37, 256), (1, 40), (20, 1200)):
        matrices = [matrix(table, n, cols, kind) for n in (rows, 24)]
        w = np.concatenate([values(n, cols, kind) for n in (rows, 24)])
        for num_rows in (1, 7, 64):
            x, bias, residual = rand(num_rows, cols), rand(rows, seed=1), rand(num_rows, rows + 24, seed=2)
            exact = rounded(x, kind).astype(np.float64) @ w.T.astype(np.float64)
            with_bias = exact.copy()
            with_bias[:, :rows] += bias
            magnitude = np.abs(rounded(x, kind)).astype(np.float64) @ np.abs(w.T).astype(np.float64)
            for kwargs, wanted in (({}, exact), ({"biases": [bias.tolist(), []]}, with_bias), ({"residual": residual}, exact + residual)):
                got = T.linear(table, matrices, x, **kwargs)
                assert np.all(np.abs(got - wanted) <= 2.0**-23 * (cols + 3) * (magnitude + np.abs(wanted)))


def test_parts_of_both_formats_round_x_each_in_its_own(device: str, library: str) -> None:
    """As wq, wk and wv of a file that mixes them, by turns."""
    table = f"{device}+cublaslt:{library}"
    kinds, cols, x = ["BF16", "F16", "F16", "BF16"], 96, rand(5, 96)
    together = T.linear(table, [matrix(table, 16, cols, kind) for kind in kinds], x)
    alone = [T.linear(table, [matrix(table, 16, cols, kind)], x) for kind in kinds]
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), rtol=1e-6, atol=1e-6)  # sums' order is the library's affair
    assert not np.allclose(rounded(x, "F16"), rounded(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("architecture", "free"), [("llama", FREE), ("gemma3", FREE), ("llama", FREE_FP16)])
def test_tokens_of_a_crowd(library: str, tiny_path: Callable[..., Path], architecture: str, free: dict[str, Any]) -> None:
    """Steps, records of them, preemption and speculation, in the order of sums of the host's library: there the bits are the same, too."""
    model = tiny_path(architecture)
    engine: dict[str, Any] = {"max_model_len": 360, **free}
    prompts, params = make_prompts(257, 8, 300), make_params(8, 40)
    counts = dict.fromkeys(COUNTS, 0)
    alone = run(model, prompts, params, 1, dict.fromkeys(COUNTS, 0), **engine)
    crowded = {**engine, "max_num_batched_tokens": 90, "kv_cache_memory_bytes": tight_pool(model, 300, 40, engine)}
    crowd = run(model, prompts, params, 8, counts, **crowded)
    assert [len(output.outputs[0].token_ids) for output in crowd] == [len(output.outputs[0].token_ids) for output in alone]
    assert counts["num_preemptions"] > 0, counts
    with LLM(model, **engine) as llm:
        assert "-a:cublaslt-" in llm.model_info.numerics_id
        drafts = SpeculativeConfig(SelfDraft(exit_layer=1), num_speculative_tokens=4)
        plain, drafted = (llm.generate([[5, 6, 7, 8]] * 3, max_tokens=24, seed=4, speculative_config=config) for config in (None, drafts))
        assert llm.get_metrics()["num_graph_replays"] > 0
        if os.environ.get("LLMI_EMULATE_CUDA") == "1":
            for got, wanted in zip([*crowd, *drafted], [*alone, *plain], strict=True):
                assert got.outputs[0].token_ids == wanted.outputs[0].token_ids
        with pytest.raises(llmi.UnsupportedCombinationError, match="its outputs have no receipt"):
            plain[0].receipt()


@pytest.mark.parametrize("dtype", [*LINEAR_DTYPES])
def test_near_the_promised_numbers(library: str, tiny_path: Callable[..., Path], dtype: str) -> None:
    """Both round alike: what is between their log-probabilities is sums' order (and what it tips in later roundings), less than rounding
    itself."""
    engine = {"device": "cuda", "dtype": dtype, "attention_dtype": "float32"}
    options: list[dict[str, Any]] = [{"deterministic": False}, {"linear_dtype": LINEAR_DTYPES[dtype]}, {"linear_dtype": "float32"}]
    free, promised, unrounded = (_log_probabilities(tiny_path(), engine | option) for option in options)
    assert len(free) == 54
    assert np.mean(np.abs(free - promised)) < 0.5 * np.mean(np.abs(unrounded - promised))


def _log_probabilities(model: Path, engine: dict[str, Any]) -> np.ndarray[Any, Any]:
    with LLM(model, max_model_len=128, **engine) as llm:
        output = llm.generate([list(range(5, 60))], temperature=0, max_tokens=1, prompt_logprobs=0)[0]
        return np.array([next(iter(row.values())).logprob for row in output.prompt_logprobs or [] if row])


def test_what_cannot_be_honoured_is_refused(library: str, tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(llmi.UnsupportedCombinationError, match="it needs device = 'cuda'"):
        LLM(tiny_path(), dtype="bfloat16", deterministic=False)
    with pytest.raises(llmi.UnsupportedCombinationError, match="linear_dtype = 'float32' does not"):
        LLM(tiny_path(), linear_dtype="float32", **FREE)
    with pytest.raises(llmi.UnsupportedCombinationError, match="linear_dtype = 'fp16' is for fp16 weights, this model has bf16"):
        LLM(tiny_path(), linear_dtype="fp16", **FREE)
    with pytest.raises(llmi.UnsupportedCombinationError, match="deterministic = False is for bf16 or fp16 weights, this model has f32"):
        LLM(tiny_path(), **{**FREE, "dtype": "float32"}, max_model_len=64)
    with pytest.raises(llmi.InvalidParamsError, match="must be True or False"):
        LLM(tiny_path(), device="cuda", deterministic="no")  # type: ignore[arg-type]
    monkeypatch.setenv("LLMI_CUBLASLT", "/nowhere/libcublasLt.so")
    with pytest.raises(llmi.DeviceError, match="pip install nvidia-cublas"):
        LLM(tiny_path(), **FREE)


def test_a_library_that_is_none(device: str, tmp_path: Path) -> None:
    """One that lacks a function is named, with the function."""
    (tmp_path / "a.cc").write_text('extern "C" int cublasLtCreate(void**) { return 1; }\n')
    library = build_library(tmp_path / "a.cc", tmp_path)
    with pytest.raises(_core.CoreError, match="cuBLASLt has no cublasLtDestroy"):
        T.PackedMatrix(f"{device}+cublaslt:{library}", "BF16", bytes(2 * 16 * 16), 16, 16)
    with pytest.raises(_core.CoreError, match="cannot be loaded"):
        T.PackedMatrix(f"{device}+cublaslt:/nowhere.so", "BF16", bytes(2 * 16 * 16), 16, 16)


def test_where_it_is_looked_for(host_library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest that can be loaded, in wheels, then in the toolkit."""
    monkeypatch.delenv("LLMI_CUBLASLT", raising=False)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr("llmi.engine.cublas._NAMES", ("libcublasLt.so.913", "libcublasLt.so.912"))  # which no machine has
    monkeypatch.setattr("llmi.engine.cublas._TOOLKIT", str(tmp_path / "toolkit"))
    with pytest.raises(llmi.DeviceError, match="pip install nvidia-cublas"):
        find_cublas_lt()
    places = [
        "nvidia/cublas/lib/libcublasLt.so.912",
        "toolkit/libcublasLt.so.913",
        "torch/lib/libcublasLt.so.913",
        "nvidia/cu13/lib/libcublasLt.so.913",
    ]
    for place in places:  # each goes before those that came before it
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not a library")
        if place != places[0]:
            assert find_cublas_lt() != str(path)
        shutil.copy(host_library, path)
        assert find_cublas_lt() == str(path)
