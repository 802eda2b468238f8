"""LLM(pipeline_parallel_size=P): the outputs of one process, with a model's layers in several, and steps of P groups under way together."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_families
from bits import assert_same_bits
from llmi import LLM, Capture, InvalidParamsError, SamplingParams, WorkerDiedError
from llmi.ranks import workers
from llmi.testing import tiny_model
from test_rank_restart import KINDS, PROMPTS, Strikes, is_there
from tiny_eagle import tiny_eagle
from tiny_medusa import tiny_medusa

MODEL: dict[str, Any] = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
ARGUMENTS: dict[str, Any] = {"seed": 3, "num_threads": 1, "max_model_len": 256}
SHAPES = [(2, 1), (2, 2), (3, 1), (4, 1)]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(request.param, vocab_size=257, path=tmp_path_factory.mktemp("stages"), intermediate_size=96, **MODEL)


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[LLM]:
    with LLM(model, **ARGUMENTS, kv_cache_memory_bytes=1 << 23) as llm:
        yield llm


def outputs(llm: LLM, kind: str) -> Any:
    return llm.generate(PROMPTS, **{"max_tokens": 14, "seed": 11, "ignore_eos": True, **KINDS[kind]})


@pytest.mark.parametrize("policy", ["fcfs", "static"])
@pytest.mark.parametrize(("stages", "ranks"), SHAPES)
def test_outputs_of_one_process(in_threads: None, model: Path, alone: LLM, stages: int, ranks: int, policy: str) -> None:
    """A small cache, so that requests are preempted, share beginnings and copy pages."""
    own = {"pipeline_parallel_size": stages, "tensor_parallel_size": ranks, "scheduling_policy": policy}
    with LLM(model, **ARGUMENTS, **own, kv_cache_memory_bytes=40 * alone._page_bytes) as llm:
        assert llm.model_info.numerics_id == alone.model_info.numerics_id
        for kind in KINDS:
            assert outputs(llm, kind) == outputs(alone, kind), kind
        metrics = llm.get_metrics()
        assert len(metrics["stages_idle"]) == stages and all(0 <= share < 1 for share in metrics["stages_idle"])
        assert metrics["num_copies_on_write"] > 0
        shares = llm.workers()
    assert [worker.stage for worker in shares] == [number // ranks for number in range(stages * ranks)]
    assert sum(worker.kv_heads for worker in shares) >= 4 * 2 and all(worker.kv_heads > 0 for worker in shares)


def test_steps_are_in_flight_together(in_threads: None, model: Path) -> None:
    """Two sequences of two stages are in different steps; one alone is in each."""
    rows = []

    class Look:
        def apply(self, contexts: Any, logits: Any) -> None:
            rows.append(len(logits))

    with LLM(model, **ARGUMENTS, kv_cache_memory_bytes=1 << 22, pipeline_parallel_size=2, batch_processors=[Look()]) as llm:
        llm.generate(PROMPTS[:4], max_tokens=20, ignore_eos=True)
        assert rows.count(2) > 30 and rows.count(4) <= 1
        rows.clear()
        llm.generate(PROMPTS[:1], max_tokens=20, ignore_eos=True)
        assert rows == [1] * 20


def test_requests_that_end_in_flight(in_threads: None, model: Path, alone: LLM) -> None:
    """Aborted, failed and finished ones, whose steps are under way, disturb no other."""

    class Fails:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, token_ids: Any, logits: Any) -> Any:
            self.calls += 1
            if self.calls > 3:
                raise ValueError("enough")
            return logits

    kept = SamplingParams(max_tokens=30, seed=5, ignore_eos=True, temperature=0.8)
    mixed = [kept, SamplingParams(max_tokens=9, n=3, ignore_eos=True, logits_processors=[Fails()]), kept, kept]
    expected = alone.generate(PROMPTS[:4], kept)
    with LLM(model, **ARGUMENTS, kv_cache_memory_bytes=1 << 22, pipeline_parallel_size=2) as llm:
        for _ in range(3):
            stream = llm.stream(PROMPTS[3], max_tokens=200, ignore_eos=True)
            next(iter(stream))
            with ThreadPoolExecutor(1) as pool:
                call = pool.submit(llm.generate, PROMPTS[:4], mixed, on_error="return")
                stream.close()
                found = call.result()
            assert found[1].error is not None
            assert [found[i] for i in (0, 2, 3)] == [expected[i] for i in (0, 2, 3)]
        assert llm.get_metrics()["audit"] == ""


def test_the_lab(in_threads: None, model: Path, alone: LLM) -> None:
    def look(llm: LLM) -> list[Any]:
        with llm.sequence(PROMPTS[4], capture=Capture(hidden_states=[0, 1, 2, 3, 4], attention=[1, 3, 4])) as sequence:
            rows = [*sequence.hidden_states.values(), *sequence.attention.values(), sequence.extend([9, 7])]
            rows += sequence.attention.values()
        hidden = llm.hidden_states([PROMPTS[0]], layers=[0, 1, 2, 3, 4])[0]
        steered = llm.generate([PROMPTS[0]], steering={2: np.linspace(-3, 3, 64), 4: np.linspace(1, -1, 64)}, max_tokens=6, seed=1)
        return [*rows, *hidden.values(), llm.head(hidden[4]), np.asarray(steered[0].token_ids, np.float32)]

    with LLM(model, **ARGUMENTS, kv_cache_memory_bytes=1 << 22, pipeline_parallel_size=3) as llm:
        for got, expected in zip(look(llm), look(alone), strict=True):
            assert_same_bits(np.asarray(got), np.asarray(expected), equal_rows="attention to the first token is 1 in all heads")


@pytest.mark.parametrize("made", [tiny_eagle, tiny_medusa])
def test_trained_heads(in_threads: None, model: Path, alone: LLM, tmp_path: Path, made: Callable[..., Path]) -> None:
    config = {"method": made.__name__.removeprefix("tiny_"), "model": str(made(alone, tmp_path / "heads")), "num_speculative_tokens": 3}
    arguments = {**ARGUMENTS, "speculative_config": config, "kv_cache_memory_bytes": 1 << 23}
    with LLM(model, **arguments) as one, LLM(model, **arguments, pipeline_parallel_size=2) as two:
        expected = one.generate(PROMPTS, max_tokens=20, seed=2, temperature=0.5, logprobs=1)
        assert two.generate(PROMPTS, max_tokens=20, seed=2, temperature=0.5, logprobs=1) == expected


@pytest.mark.parametrize("types", [{"quantization": "q8_0"}, {"quantization": "q4_0", "activation_bits": 8, "kv_cache_dtype": "int8"}])
def test_types(in_threads: None, model: Path, types: dict[str, Any]) -> None:
    arguments = {**ARGUMENTS, **types, "kv_cache_memory_bytes": 1 << 22}
    with LLM(model, **arguments) as one, LLM(model, **arguments, pipeline_parallel_size=3, tensor_parallel_size=2) as six:
        assert one.generate(PROMPTS, max_tokens=9, logprobs=3) == six.generate(PROMPTS, max_tokens=9, logprobs=3)


def test_a_stage_that_dies(in_threads: None, model: Path, alone: LLM) -> None:
    """It is started again, and steps that were in flight are computed again."""
    strikes = Strikes({1, 4, 9})
    own = {"pipeline_parallel_size": 3, "on_worker_failure": "restart", "batch_processors": [strikes], "kv_cache_memory_bytes": 1 << 22}
    with LLM(model, **ARGUMENTS, **own) as llm:
        strikes.strike = lambda: llm._ranks.last.leave("it was struck")  # type: ignore[union-attr]
        for kind in KINDS:
            strikes.begin()
            assert outputs(llm, kind) == outputs(alone, kind), kind
            assert strikes.count > 1, kind


def test_processes(model: Path, alone: LLM) -> None:
    arguments: dict[str, Any] = {**ARGUMENTS, "kv_cache_memory_bytes": 1 << 22, "pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    with LLM(model, **arguments, on_worker_failure="restart") as llm:
        assert outputs(llm, "several") == outputs(alone, "several")
        before = [worker.pid for worker in llm.workers()]
        for victim in before[2:]:
            os.kill(victim, signal.SIGKILL)
        assert outputs(llm, "several") == outputs(alone, "several")
        after = [worker.pid for worker in llm.workers()]
        assert not {*before[1:]} & {*after[1:]}
    assert not any(map(is_there, after[1:]))
    with LLM(model, **arguments) as llm:
        pids = [worker.pid for worker in llm.workers()]
        os.kill(pids[2], signal.SIGKILL)
        (output,) = llm.generate([[5]], max_tokens=3, on_error="return")
        assert isinstance(output.error, WorkerDiedError) and "SIGKILL" in str(output.error)
        assert (output.error.worker, output.error.pid) == ("rank 2", pids[2])
    assert not any(map(is_there, pids[1:]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"pipeline_parallel_size": 5}, "4 layers"),
        ({"pipeline_parallel_size": 0}, "pipeline"),
        ({"pipeline_parallel_size": "2x"}, "pipeline"),
        ({"pipeline_parallel_size": 2.5}, "pipeline"),
        ({"pipeline_parallel_size": 2, "prefix_cache_dir": "blocks"}, "several processes are not saved"),
        ({"pipeline_parallel_size": 2, "kv_transfer_config": {"kv_connector": "local", "kv_role": "kv_producer"}}, "not handed over"),
        ({"pipeline_parallel_size": 2, "distributed_executor_backend": "mpi"}, "one machine"),
        ({"pipeline_parallel_size": 2, "device": "cuda"}, "on CPUs"),
    ],
)
def test_bad_degrees(model: Path, given: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    monkeypatch.setattr(workers.subprocess, "Popen", None)  # nothing is started
    with pytest.raises(InvalidParamsError, match=words):
        LLM(model, **ARGUMENTS, **given)


@pytest.mark.parity
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen3_next", tiny_families.RECURRENT["qwen3_next"]),
        ("granitemoehybrid", tiny_families.MAMBA),
        ("lfm2", {}),
        ("gemma4_text-26b", {}),
    ],
)
def test_other_layers(in_threads: None, families: Path, family: str, changes: dict[str, Any]) -> None:
    """Layers with states and with experts, and heads of two sizes."""
    path = tiny_families.make(family, families, **changes).path
    arguments = {**ARGUMENTS, "kv_cache_memory_bytes": 1 << 22}
    with LLM(path, **arguments) as one, LLM(path, **arguments, pipeline_parallel_size=2) as two:
        for kind in ("greedy", "several", "beams"):
            assert outputs(two, kind) == outputs(one, kind), kind
        assert two.generate(PROMPTS, max_tokens=5, seed=2) == one.generate(PROMPTS, max_tokens=5, seed=2)  # beginnings that the cache has


def test_a_message_larger_than_a_socket(in_threads: None, model: Path, alone: LLM) -> None:
    """The rows of a long prompt, which both stages send while the other computes."""
    prompts = [[(7 * i + j) % 250 for i in range(240)] for j in range(8)]
    arguments = {**ARGUMENTS, "kv_cache_memory_bytes": 1 << 23, "max_num_batched_tokens": 4096}
    with LLM(model, **arguments, pipeline_parallel_size=2) as llm:
        assert llm.generate(prompts, max_tokens=3, seed=1) == alone.generate(prompts, max_tokens=3, seed=1)
