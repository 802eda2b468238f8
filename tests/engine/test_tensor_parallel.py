"""LLM(tensor_parallel_size=N): the outputs of one process, from N; and what happens when one of them dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rank_configurations
from bits import assert_same_bits
from llmi import (
    LLM,
    Capture,
    EngineClosedError,
    InvalidParamsError,
    ModelFileError,
    PromptLookup,
    SpeculativeConfig,
    TokenRecycling,
    TokenTree,
    WorkerDiedError,
)
from llmi.outputs.receipt import Receipt
from llmi.ranks import workers
from llmi.testing import tiny_model
from tiny_eagle import tiny_eagle
from tiny_medusa import tiny_medusa
from waiting import wait_until

PROMPTS = [[5, 9, 2, index, 2, 7, 4100 + index, 12300] for index in range(5)] + [
    [4095, 4096, 8191, 8192, 12287, 12288, 1, 12303],
    list(range(40, 110)),
]
ARGUMENTS: dict[str, Any] = {"seed": 3, "num_threads": 1, "max_model_len": 256}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "prompt_logprobs": 1},
    "drawn": {"temperature": 0.9, "logprobs": 2},
    "several": {"n": 3, "logprobs": 1, "min_p": 0.02},
    "penalties": {"presence_penalty": 0.5, "dry_multiplier": 0.8, "logit_bias": {3: 2.0, 9: float("-inf")}},
    "guidance": {"guidance_scale": 1.5, "negative_prompt": [7, 7]},
    "hidden layers": {"dola_layers": "high", "temperature": 0},
    "beams": {"beam_width": 3, "max_tokens": 8, "logprobs": 1, "seed": None},
    "contrast": {"penalty_alpha": 0.6, "top_k": 4, "temperature": None, "max_tokens": 8},
    "structured": {"structured_outputs": {"choice": ["ab", "ac", "b"]}, "max_tokens": 6},
    "steering": {"steering": {1: np.linspace(-1, 1, 144)}},
    "drafts": {"speculative_config": SpeculativeConfig(PromptLookup(), 3), "temperature": 0},
    "recycled": {"speculative_config": SpeculativeConfig(TokenRecycling(), 6), "temperature": 0.4},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine tiles of 16 rows, nine heads on three KV heads, and three whole parts of the vocabulary and a bit."""
    heads = {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 16, "intermediate_size": 208}
    return tiny_model(vocab_size=3 * 4096 + 16, path=tmp_path_factory.mktemp("ranks"), **heads)


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[LLM]:
    with LLM(model, **ARGUMENTS, kv_cache_memory_bytes=1 << 24) as llm:
        yield llm


def outputs(llm: LLM, kind: str) -> Any:
    return llm.generate(PROMPTS, **{"max_tokens": 14, "seed": 11, "ignore_eos": True, **KINDS[kind]})


@pytest.mark.parametrize(("count", "split"), [(2, None), (3, [0.5, 0.2, 0.3]), (5, None), (9, None), (4, [0.01, 0.9, 0.04, 0.05])])
def test_outputs_of_one_process(in_threads: None, model: Path, alone: LLM, count: int, split: list[float] | None) -> None:
    """A small cache, so that requests are preempted, share beginnings and copy pages."""
    pages = 40 * alone._page_bytes
    with LLM(model, **ARGUMENTS, tensor_parallel_size=count, tensor_split=split, kv_cache_memory_bytes=pages) as llm:
        assert llm.model_info.numerics_id == alone.model_info.numerics_id
        for kind in KINDS:
            assert outputs(llm, kind) == outputs(alone, kind), kind
        assert llm.get_metrics()["num_copies_on_write"] > 0
        assert outputs(llm, "several") == outputs(alone, "several"), "beginnings that the cache has"


@pytest.mark.parametrize("kv_type", ["float32", "bfloat16", "int8", "fp8"])
@pytest.mark.parametrize("weights", [{}, {"quantization": "q8_0"}, {"quantization": "q4_0", "activation_bits": 8}, {"dtype": "bfloat16"}])
def test_types(in_threads: None, tmp_path: Path, kv_type: str, weights: dict[str, Any]) -> None:
    path = tiny_model(vocab_size=257, path=tmp_path, hidden_size=128, num_attention_heads=8, num_key_value_heads=2, head_dim=16)
    arguments = {**ARGUMENTS, "kv_cache_dtype": kv_type, "kv_cache_memory_bytes": 1 << 23, **weights}
    prompts = [[5, 9, 2], list(range(70))]
    with LLM(path, **arguments) as one, LLM(path, **arguments, tensor_parallel_size=3) as three:
        for found in (one, three):
            found.generate(prompts, max_tokens=2)
        assert one.generate(prompts, max_tokens=9, logprobs=3, seed=1) == three.generate(prompts, max_tokens=9, logprobs=3, seed=1)


def test_the_lab(in_threads: None, model: Path, alone: LLM) -> None:
    """Logits, hidden states, attention, forks, trees and scores."""

    def look(llm: LLM) -> list[Any]:
        with llm.sequence(PROMPTS[6], capture=Capture(hidden_states=[0, 1, 2], attention=[1, 2])) as sequence:
            rows = [*sequence.hidden_states.values(), *sequence.attention.values()]
            fork = sequence.fork()
            tree = TokenTree([5, 6, 7, 4200, 8], [-1, 0, 0, 1, 3])
            rows += [fork.extend(tree), sequence.extend([9, 12300]), *sequence.attention.values()]
            fork.commit([0, 1, 3, 4])
            rows.append(fork.extend([11]))
            sequence.rollback(1)
            rows.append(sequence.extend([12]))
            fork.close()
        hidden = llm.hidden_states([PROMPTS[0]], layers=[0, 1, 2])[0]
        rows += [*hidden.values(), llm.head(hidden[2]), llm.head(hidden[2], shortlist=[5, 4200, 12300])[1]]
        return [*rows, np.asarray([score.logprob for score in llm.loglikelihood([(PROMPTS[0][:4], PROMPTS[0][4:])])])]

    with LLM(model, **ARGUMENTS, kv_cache_memory_bytes=1 << 24, tensor_parallel_size=4) as llm:
        for got, expected in zip(look(llm), look(alone), strict=True):
            assert_same_bits(np.asarray(got), np.asarray(expected), equal_rows="attention to the first token is 1 in all heads")


def test_a_receipt_of_five_ranks_on_one(in_threads: None, model: Path, alone: LLM) -> None:
    with LLM(model, **ARGUMENTS, kv_cache_memory_bytes=1 << 24, tensor_parallel_size=5) as llm:
        receipt = llm.generate([PROMPTS[0]], max_tokens=12, seed=5)[0].receipt()
    assert receipt.verify(alone)
    older = Receipt({**receipt.fields, "numerics_id": f"{receipt.fields['numerics_id']}-tp1"})
    assert older.verify(alone)


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_configurations(in_threads: None, seed: int) -> None:
    assert rank_configurations.check(seed) == []


def pids_of(llm: LLM) -> list[int]:
    return [worker.pid for worker in llm.workers()[1:]]


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_rank(model: Path, alone: LLM) -> None:
    """It is named, requests under way fail, nothing is left, and another LLM works."""
    arguments = {**ARGUMENTS, "kv_cache_memory_bytes": 1 << 24, "tensor_parallel_size": 3}
    with LLM(model, **arguments) as llm:
        pids = pids_of(llm)
        assert len(pids) == 2 and all(map(is_there, pids)) and os.getpid() not in pids
        assert [worker.rank for worker in llm.memory_report().workers] == [0, 1, 2]
        killer = threading.Timer(0.2, os.kill, [pids[1], signal.SIGKILL])
        killer.start()
        found = llm.generate([PROMPTS[0]] * 6, max_tokens=240, ignore_eos=True, n=4, on_error="return")
        while all(output.error is None for output in found):  # it was done before
            found = llm.generate([PROMPTS[0]] * 6, max_tokens=240, ignore_eos=True, n=4, on_error="return")
        killer.join()
        error = next(output.error for output in found if output.error is not None)
        assert isinstance(error, WorkerDiedError)
        assert "rank 2" in str(error) and str(pids[1]) in str(error) and os.uname().nodename in str(error) and "SIGKILL" in str(error)
        assert error.worker == "rank 2" and error.pid == pids[1]
        with pytest.raises(EngineClosedError, match="rank 2"):
            llm.generate([PROMPTS[0]], max_tokens=1)
    wait_until(lambda: not any(map(is_there, pids)))
    with LLM(model, **arguments) as llm:
        assert outputs(llm, "drawn") == outputs(alone, "drawn")
        pids = pids_of(llm)
    assert not any(map(is_there, pids))


@pytest.mark.slow
def test_a_stopped_rank(model: Path) -> None:
    with LLM(model, **ARGUMENTS, kv_cache_memory_bytes=1 << 24, tensor_parallel_size=2) as llm:
        os.kill(pids_of(llm)[0], signal.SIGSTOP)
        (output,) = llm.generate([PROMPTS[0]], max_tokens=2, on_error="return")
        assert isinstance(output.error, WorkerDiedError) and "stood still" in str(output.error)
        pids = pids_of(llm)
    assert not any(map(is_there, pids))


def test_workers_end_with_their_program(model: Path) -> None:
    program = f"""
from llmi import LLM
llm = LLM({str(model)!r}, tensor_parallel_size=3, **{ARGUMENTS | {"kv_cache_memory_bytes": 1 << 24}!r})
print(*(worker.pid for worker in llm.workers()[1:]), flush=True)
input()
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2 and all(map(is_there, pids))
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(is_there, pids)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size"),
        ({"tensor_parallel_size": 2.5}, "tensor_parallel_size"),
        ({"tensor_parallel_size": "2x"}, "tensor_parallel_size"),
        ({"tensor_parallel_size": 10}, "9 tiles of 16"),
        ({"tensor_parallel_size": 2, "tensor_split": [0.5, 0.4]}, "of sum 1"),
        ({"tensor_parallel_size": 3, "tensor_split": [0.5, 0.5]}, r"give 3 \(tensor_parallel_size\)"),
        ({"tensor_parallel_size": 2, "tensor_split": [1.0, 0.0]}, "tensor_split"),
        ({"tensor_parallel_size": 2, "tensor_split": [1.5, -0.5]}, "tensor_split"),
        ({"tensor_split": [0.5, 0.5]}, "tensor_split"),
    ],
)
def test_bad_degrees(model: Path, given: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.subprocess, "Popen", None)  # nothing is started
    with pytest.raises(InvalidParamsError, match=words) as raised:
        LLM(model, **ARGUMENTS, **given)
    assert raised.value.parameter in ("tensor_parallel_size", "tensor_split")


def test_ranks_of_other_files_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = workers.rank_identity
    monkeypatch.setattr(workers, "rank_identity", lambda files: "z" + identity(files)[1:])  # in this process alone
    with pytest.raises(ModelFileError, match=r"rank 1 \(.*process \d+\) has another file"):
        LLM(model, **ARGUMENTS, tensor_parallel_size=2)


def test_a_rank_that_cannot_load(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = workers.Ranks._start
    elsewhere = {"path": "/nowhere"}
    monkeypatch.setattr(workers.Ranks, "_start", lambda self, number, opening, *rest: start(self, number, {**opening, **elsewhere}, *rest))
    before = time.monotonic()
    with pytest.raises(WorkerDiedError, match=r"rank 1 .*nowhere"):
        LLM(model, **ARGUMENTS, tensor_parallel_size=2)
    assert time.monotonic() - before < 60


@pytest.mark.parametrize("made", [tiny_eagle, tiny_medusa])
def test_trained_heads(in_threads: None, model: Path, alone: LLM, tmp_path: Path, made: Callable[..., Path]) -> None:
    """Rank 0 has them whole; the embedding and the head that they read are those of all ranks."""
    heads = made(alone, tmp_path / "heads")
    config = {"method": made.__name__.removeprefix("tiny_"), "model": str(heads), "num_speculative_tokens": 3}
    arguments = {**ARGUMENTS, "speculative_config": config, "kv_cache_memory_bytes": 1 << 24}
    with LLM(model, **arguments) as one, LLM(model, **arguments, tensor_parallel_size=4) as four:
        expected = one.generate(PROMPTS, max_tokens=20, seed=2, temperature=0.5, logprobs=1)
        found = four.generate(PROMPTS, max_tokens=20, seed=2, temperature=0.5, logprobs=1)
        assert found == expected
        accepted = [[output.outputs[0].spec_decode_metrics.num_accepted_tokens for output in outputs] for outputs in (expected, found)]
        assert accepted[0] == accepted[1]
