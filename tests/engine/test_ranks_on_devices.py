"""LLM(tensor_parallel_size=N, device="cuda"): a device a rank, and the outputs of one process on a CPU."""

from __future__ import annotations

import ctypes.util
from pathlib import Path
from typing import Any

import pytest

from llmi import LLM, Capture, DeviceError, PromptLookup, SpeculativeConfig, WorkerDiedError, _core
from llmi.ranks import workers
from llmi.testing import tiny_model
from native_library import ROOT, build_library
from rank_threads import RankThreads
from tiny_eagle import tiny_eagle

PROMPTS = [[5, 9, 2, index, 4100, 4095 + index, 200] for index in range(3)] + [list(range(40, 110))]
ARGUMENTS: dict[str, Any] = {"seed": 3, "num_threads": 1, "max_model_len": 256, "kv_cache_memory_bytes": 1 << 22}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "prompt_logprobs": 1},
    "several": {"n": 3, "logprobs": 1, "min_p": 0.02},
    "penalties": {"presence_penalty": 0.5, "dry_multiplier": 0.8, "logit_bias": {3: 2.0, 9: float("-inf")}},
    "beams": {"beam_width": 3, "max_tokens": 6, "logprobs": 1, "seed": None},
    "structured": {"structured_outputs": {"choice": ["ab", "ac", "b"]}, "max_tokens": 4},
    "drafts": {"speculative_config": SpeculativeConfig(PromptLookup(), 3), "temperature": 0},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine tiles of 16 rows, nine heads on three KV heads, and a whole part of the vocabulary and a bit."""
    heads = {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16, "intermediate_size": 208}
    return tiny_model(vocab_size=4096 + 16, path=tmp_path_factory.mktemp("ranks"), **heads)


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, Any]:
    with LLM(model, **ARGUMENTS) as llm:
        return {kind: outputs(llm, kind) for kind in KINDS}


@pytest.fixture(autouse=True)
def emulated_threads(in_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has an emulated device of its own."""
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")


def outputs(llm: LLM, kind: str) -> Any:
    return llm.generate(PROMPTS, **{"max_tokens": 9, "seed": 11, "ignore_eos": True, **KINDS[kind]})


@pytest.mark.parametrize(("count", "split"), [(2, None), (3, [0.5, 0.1, 0.4]), (5, None)])
def test_outputs_of_one_process(model: Path, expected: dict[str, Any], count: int, split: list[float] | None) -> None:
    """A rank may have no head and no part of the vocabulary; pages are copied, requests preempted, and steps recorded on each device."""
    with LLM(model, **ARGUMENTS, device="cuda", tensor_parallel_size=count, tensor_split=split) as llm:
        before = _core.testing.device_work()["replays"]
        for kind in KINDS:
            assert outputs(llm, kind) == expected[kind], kind
        assert llm.get_metrics()["num_copies_on_write"] > 0
        replays = _core.testing.device_work()["replays"] - before
        assert replays > 0 and replays % count == 0, "each rank plays what the others play"
        assert len(llm.workers()) == count and sum(worker.query_heads for worker in llm.workers()) == 2 * 9


@pytest.mark.parametrize(
    "types",
    [
        {"quantization": "q8_0", "kv_cache_dtype": "int8"},
        {"quantization": "q4_0", "activation_bits": 8, "kv_cache_dtype": "bfloat16"},
        {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
    ],
)
def test_types(tmp_path: Path, types: dict[str, Any]) -> None:
    path = tiny_model("gemma3", vocab_size=257, path=tmp_path, hidden_size=128)
    arguments = {**ARGUMENTS, **types, "device": "cuda"}
    with LLM(path, **arguments) as one, LLM(path, **arguments, tensor_parallel_size=3) as three:
        assert one.generate([[5, 9, 2]], max_tokens=6, seed=1, logprobs=2) == three.generate([[5, 9, 2]], max_tokens=6, seed=1, logprobs=2)


def test_the_lab(model: Path) -> None:
    def look(llm: LLM) -> list[Any]:
        with llm.sequence(PROMPTS[0], capture=Capture(hidden_states=[0, 2], attention=[1, 2])) as sequence:
            rows = [*sequence.hidden_states.values(), *sequence.attention.values()]
            rows.append(sequence.extend([9, 4100]))
        hidden = llm.hidden_states([PROMPTS[0]], layers=[1])[0]
        return [row.tobytes() for row in [*rows, *hidden.values(), llm.head(hidden[1])]]

    with LLM(model, **ARGUMENTS) as one, LLM(model, **ARGUMENTS, device="cuda", tensor_parallel_size=4) as four:
        assert look(one) == look(four)


def test_a_rank_that_dies(model: Path, expected: dict[str, Any]) -> None:
    """Its death is told, or the ranks are started again and the requests go on."""
    made: list[RankThreads] = []

    class Noted(RankThreads):
        def _start_all(self) -> None:
            made.append(self)
            super()._start_all()

    workers.Ranks = Noted  # the fixture takes it back
    arguments = {**ARGUMENTS, "device": "cuda", "tensor_parallel_size": 2}
    with LLM(model, **arguments) as llm:
        made[-1].last.leave("a fault")
        (output,) = llm.generate(PROMPTS[:1], max_tokens=3, on_error="return")
        assert isinstance(output.error, WorkerDiedError) and "a fault" in str(output.error)
    with LLM(model, **arguments, on_worker_failure="restart") as llm:
        assert outputs(llm, "several") == expected["several"]
        made[-1].last.leave("a fault")
        assert outputs(llm, "several") == expected["several"]
        assert len(made) == 3


def test_the_size_of_the_cache(model: Path) -> None:
    """It is what the rank with the least room for its part can have: the first has all heads of a page."""
    with LLM(model, seed=3, num_threads=1, device="cuda", max_num_seqs=2, tensor_parallel_size=2, tensor_split=[0.99, 0.01]) as llm:
        first, second = llm.workers()
        assert first.kv_bytes > 50 * second.kv_bytes > 0


def test_a_library_that_is_not_nccl(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = ctypes.util.find_library("c")
    monkeypatch.setenv("LLMI_NCCL", library or "libc.so.6")
    with pytest.raises(DeviceError, match="NCCL has no nccl"):
        LLM(model, **ARGUMENTS, device="cuda", tensor_parallel_size=2)


def test_nccl(model: Path, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathers by a library with NCCL's names: it moves what the ranks' shared memory moved, in recorded steps as well."""
    library = build_library(ROOT / "tests/native/nccl.cc", tmp_path)
    monkeypatch.setenv("LLMI_NCCL", library)
    num_groups = ctypes.CDLL(library).stand_in_groups
    with LLM(model, **ARGUMENTS, device="cuda", tensor_parallel_size=3) as llm:
        for kind in ("greedy", "several", "drafts"):
            assert outputs(llm, kind) == expected[kind], kind
        assert num_groups() > 100 and num_groups() % 3 == 0


def test_a_trained_head(model: Path, tmp_path: Path) -> None:
    """Rank 0's device has it whole; the embedding and the head that it reads are those of all ranks."""
    with LLM(model, **ARGUMENTS) as llm:
        head = tiny_eagle(llm, tmp_path / "eagle")
    arguments = {**ARGUMENTS, "speculative_config": {"method": "eagle", "model": str(head), "num_speculative_tokens": 3}}
    with LLM(model, **arguments) as one, LLM(model, **arguments, device="cuda", tensor_parallel_size=2) as two:
        assert one.generate(PROMPTS, max_tokens=8, temperature=0) == two.generate(PROMPTS, max_tokens=8, temperature=0)
