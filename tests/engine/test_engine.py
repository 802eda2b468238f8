"""The step loop: batching, admission, preemption, cancellation, errors that end one request alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import (
    LLM,
    EngineBusyError,
    EngineClosedError,
    HookError,
    InvalidParamsError,
    NonFiniteLogitsError,
    OutOfMemoryError,
    PromptTooLongError,
    RequestErrors,
    SamplingParams,
    TokenContext,
)
from llmi.testing import assert_same_tokens

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=24, logprobs=2, ignore_eos=True)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 257, size=int(rng.integers(1, 60))).tolist() for _ in range(count)]


def test_batch_equals_solo(tiny: LLM) -> None:
    batch = tiny.generate(prompts(12), SAMPLED)
    for prompt, output in zip(prompts(12), batch, strict=True):
        assert_same_tokens(tiny.generate(prompt, SAMPLED), type(batch)([output]))


@pytest.mark.parametrize("policy", ["fcfs", "priority", "static"])
def test_policies_give_the_same_answers(tiny: LLM, tiny_path: Callable[..., Path], policy: str) -> None:
    expected = tiny.generate(prompts(10), [SAMPLED.replace(max_tokens=4 + 3 * i) for i in range(10)])
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=512, scheduling_policy=policy, max_num_seqs=4) as llm:
        got = llm.generate(prompts(10), [SAMPLED.replace(max_tokens=4 + 3 * i) for i in range(10)], priority=list(range(10, 0, -1)))
        assert_same_tokens(got, expected)
        stats = llm.get_metrics()
        assert stats["num_running"] == 0 and stats["num_free_pages"] == stats["num_pages"]


def test_priority_runs_first(tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=512, scheduling_policy="priority", max_num_seqs=1) as llm:
        order: list[int] = []

        def note(number: int) -> Callable[[TokenContext], bool]:
            return lambda context: order.append(number) or False  # type: ignore[func-returns-value]

        params = [SamplingParams(max_tokens=1, stopping_criteria=[note(i)]) for i in range(5)]
        llm.enqueue([[5]] * 5, params, priority=[3, 1, 4, 0, 2])
        llm.wait_for_completion()
        assert order == [3, 1, 4, 0, 2] or order == [3, 1, 4, 2, 0] or order[1:] == sorted(order[1:], key=lambda i: [3, 1, 4, 0, 2][i])


def test_static_batching_keeps_finished_rows(tiny_path: Callable[..., Path]) -> None:
    """The baseline computes a finished row until its batch has ended: more steps for later requests."""
    steps = {}
    for policy in ("fcfs", "static"):
        with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=512, scheduling_policy=policy, max_num_seqs=2) as llm:
            llm.generate([[1], [2], [3]], [SAMPLED.replace(max_tokens=n) for n in (40, 2, 30)])
            steps[policy] = llm.get_metrics()["num_steps"]
    assert steps["fcfs"] == 40 and steps["static"] == 70


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_preemption_changes_nothing(tiny_path: Callable[..., Path], architecture: str) -> None:
    params = SAMPLED.replace(max_tokens=60, n=2)
    with LLM(tiny_path(architecture), kv_cache_memory_bytes=1 << 24, max_model_len=256) as llm:
        expected = llm.generate(prompts(8), params)
        per_sequence = llm.get_metrics()
    page_bytes = llm._page_bytes
    with LLM(tiny_path(architecture), kv_cache_memory_bytes=page_bytes * 60, max_model_len=128) as llm:
        got = llm.generate(prompts(8), params)
        stats = llm.get_metrics()
    assert_same_tokens(got, expected)
    assert stats["num_preemptions"] >= 5 and stats["num_recomputed_tokens"] >= 20, stats
    assert sum(output.metrics.num_preemptions for output in got) == stats["num_preemptions"]
    assert per_sequence["num_preemptions"] == 0


def test_one_bad_request_in_32_ends_alone(tiny: LLM) -> None:
    batch = prompts(32, seed=3)
    expected = tiny.generate(batch, SAMPLED)

    def explode(context: TokenContext, logits: Any) -> None:
        if len(context.token_ids) > context.prompt_len + 5:
            raise ZeroDivisionError("planted")

    params = [SAMPLED] * 32
    params[17] = SAMPLED.replace(logits_processors=[explode])
    with pytest.raises(RequestErrors) as caught:
        tiny.generate(batch, params)
    assert list(caught.value.errors) == [17]
    error = caught.value.errors[17]
    assert isinstance(error, HookError) and isinstance(error.__cause__, ZeroDivisionError) and "explode" in str(error)
    outputs = caught.value.outputs
    assert outputs[17].outputs[0].finish_reason == "error" and len(outputs[17].token_ids) == 6
    for i in range(32):
        if i != 17:
            assert outputs[i] == expected[i]
    returned = tiny.generate(batch, params, on_error="return")
    assert returned[17].error is not None and returned[3] == expected[3]


def test_each_kind_of_bad_request(tiny: LLM) -> None:
    def poison(context: TokenContext, logits: Any) -> None:
        logits[3] = np.nan

    bad: list[tuple[Any, dict[str, Any], type[Exception]]] = [
        ("", {}, InvalidParamsError),
        ([], {}, InvalidParamsError),
        ([257], {}, InvalidParamsError),
        ([-1], {}, InvalidParamsError),
        ([1] * 5000, {}, PromptTooLongError),
        ([1, 2], {"max_tokens": 100_000}, InvalidParamsError),
        ([1, 2], {"logits_processors": [poison]}, NonFiniteLogitsError),
        ([1, 2], {"logits_processors": [lambda context, logits: logits[:5]]}, HookError),
        ([1, 2], {"sampler": lambda context, law: 10**6}, HookError),
        ([1, 2], {"sampler": lambda context, law: "x"}, HookError),
        ([1, 2], {"allowed_token_ids": [5], "logit_bias": {5: -float("inf")}}, NonFiniteLogitsError),
        ([1, 2], {"stop_token_ids": [9999]}, InvalidParamsError),
        ([1, 2], {"stopping_criteria": [lambda context: 1 / 0]}, HookError),
    ]
    good = tiny.generate([5, 6, 7], SAMPLED)[0]
    batch: list[Any] = [prompt if prompt != [] else {"prompt_token_ids": []} for prompt, _, _ in bad]
    params = [SAMPLED.replace(**changes) for _, changes, _ in bad]
    outputs = tiny.generate([*batch, [5, 6, 7]], [*params, SAMPLED], on_error="return")
    for output, (prompt, changes, kind) in zip(outputs, bad, strict=False):
        assert isinstance(output.error, kind), (prompt[:3], changes, output.error)
    assert outputs[-1] == good and outputs[-1].error is None


def test_prompt_too_long_says_by_how_much(tiny: LLM) -> None:
    with pytest.raises(PromptTooLongError, match="952 more"):
        tiny.generate([[1] * 3000])


def test_pool_too_small_says_the_arithmetic(tiny_path: Callable[..., Path]) -> None:
    with pytest.raises(OutOfMemoryError, match=r"bytes a token.*lower max_model_len to \d") as error:
        LLM(tiny_path(), kv_cache_memory_bytes=100_000, max_model_len=2048)
    assert error.value.needed_bytes > error.value.available_bytes > 0
    with LLM(tiny_path(), kv_cache_memory_bytes=100_000) as llm:  # not asked for: what fits
        assert 16 <= llm.model_info.max_model_len < 2048


def test_cancellation(tiny: LLM) -> None:
    stream = tiny.stream([1, 2, 3], temperature=0, ignore_eos=True, max_tokens=2000)
    with stream:
        for _ in range(3):
            next(stream)
    assert stream.outputs[0].outputs[0].finish_reason == "abort"
    assert 3 <= len(stream.outputs[0].token_ids) < 2000
    assert tiny.get_metrics()["num_running"] == 0


def test_abort_of_stepped_requests(tiny: LLM) -> None:
    first, second = tiny.enqueue([[1], [2]], SAMPLED)
    tiny.step()
    tiny.abort([first])
    outputs = {output.request_id: output for output in tiny.wait_for_completion()}
    assert outputs[first].outputs[0].finish_reason == "abort" and outputs[second].outputs[0].finish_reason == "length"
    assert outputs[second] == tiny.generate([[2]], SAMPLED)[0]


def test_step_by_step_equals_generate(tiny: LLM) -> None:
    expected = tiny.generate(prompts(3), SAMPLED)
    tiny.enqueue(prompts(3), SAMPLED)
    finished = []
    num_steps = 0
    while outputs := tiny.step():
        num_steps += 1
        finished += [output for output in outputs if output.finished]
    assert num_steps == 24 and len(finished) == 3
    assert_same_tokens(tiny.last_outputs, expected)
    assert tiny.step() == []


def test_threads_join_one_batch(tiny: LLM) -> None:
    expected = tiny.generate(prompts(16), SAMPLED)
    got: list[Any] = [None] * 16

    def work(i: int) -> None:
        got[i] = tiny.generate(prompts(16)[i], SAMPLED)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == list(expected)


def test_each_thread_gets_its_own_outputs(tiny: LLM) -> None:
    """`last_outputs` is the last call's, whoever made it; what a call returns is its own."""

    class Shared(LLM):
        """Another thread's call ends at the worst moment."""

        @property
        def last_outputs(self) -> Any:  # type: ignore[override]
            return llmi.Outputs()

        @last_outputs.setter
        def last_outputs(self, value: Any) -> None:
            pass

    with Shared(tiny.model_info.path, kv_cache_memory_bytes=1 << 22, max_model_len=256) as llm:
        assert len(llm.generate([[1, 2], [3]], max_tokens=2)) == 2
        llm.enqueue([[1, 2], [3]], max_tokens=2)
        assert len(llm.wait_for_completion()) == 2


def test_calling_the_engine_from_its_hook(tiny: LLM) -> None:
    with pytest.raises(HookError) as error:
        tiny.generate([1], logits_processors=[lambda context, logits: tiny.generate([2]) and None])
    assert isinstance(error.value.__cause__, EngineBusyError)


def test_close(tiny_path: Callable[..., Path]) -> None:
    llm = LLM(tiny_path(), kv_cache_memory_bytes=1 << 22)
    output = llm.generate([1, 2], SAMPLED)
    stream = llm.stream([3], temperature=0, ignore_eos=True)
    next(stream)
    llm.close()
    llm.close()
    with pytest.raises(EngineClosedError, match="under way"):
        list(stream)
    assert stream.outputs[0].outputs[0].finish_reason == "error"
    assert output[0].token_ids and repr(output)
    with pytest.raises(EngineClosedError):
        llm.generate([1])


@pytest.mark.unsanitized
def test_memory_comes_back(tiny_path: Callable[..., Path]) -> None:
    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * 4096

    LLM(tiny_path(), kv_cache_memory_bytes=1 << 28).close()
    before = mapped()
    llm = LLM(tiny_path(), kv_cache_memory_bytes=1 << 28)
    outputs = llm.generate([1], SAMPLED)
    assert mapped() - before > 200 << 20
    del llm
    assert mapped() - before < 64 << 20, "outputs hold no engine"
    assert outputs[0].token_ids


@pytest.mark.unsanitized
def test_fork_leaves_a_clear_error(tiny: LLM) -> None:
    tiny.generate([1], SAMPLED)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            tiny.generate([1], SAMPLED)
            os.write(write, b"ran")
        except EngineClosedError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert b"after fork" in os.read(read, 1000)


def test_metrics(tiny: LLM) -> None:
    start = time.perf_counter()
    output = tiny.generate([1, 2, 3], SAMPLED)[0]
    elapsed = time.perf_counter() - start
    metrics = output.metrics
    assert 0 <= metrics.queue_time_s <= metrics.time_to_first_token_s <= metrics.e2e_latency_s <= elapsed
    assert len(metrics.inter_token_latencies_s) == 23
    assert metrics.time_per_output_token_s == pytest.approx((metrics.e2e_latency_s - metrics.time_to_first_token_s) / 23)
    assert float(metrics.inter_token_latencies_s.sum()) <= metrics.e2e_latency_s
    total = tiny.get_metrics()
    for name in ("queue_time_s", "time_to_first_token_s", "time_per_output_token_s", "inter_token_latency_s", "e2e_latency_s"):
        assert total[name]["count"] >= 1 and 0 <= total[name]["p50"] <= total[name]["p90"] <= total[name]["p99"]
    assert total["generated_tokens_per_s"] > 0 and total["kv_usage"] == 0


def test_n_samples_share_the_prompt(tiny_path: Callable[..., Path]) -> None:
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22, max_model_len=512) as llm:
        llm.generate([list(range(1, 101))], SAMPLED.replace(n=8, max_tokens=3))
        stats = llm.get_metrics()
        assert stats["num_prompt_tokens"] == 100 and stats["num_copies_on_write"] == 7


def test_samples_differ_and_n_is_a_prefix(tiny: LLM) -> None:
    eight = tiny.generate([1, 2, 3], SAMPLED.replace(n=8, temperature=3.0))[0]
    assert len({tuple(output.token_ids) for output in eight.outputs}) == 8
    two = tiny.generate([1, 2, 3], SAMPLED.replace(n=2, temperature=3.0))[0]
    assert two.outputs == eight.outputs[:2]
    greedy = tiny.generate([1, 2, 3], SAMPLED.replace(n=3, temperature=0))[0]
    assert greedy.outputs[0].token_ids == greedy.outputs[2].token_ids


def test_caller_with_flush_to_zero(tiny: LLM) -> None:
    """The engine sets its own floating-point environment, whatever the caller's is."""
    import ctypes
    import ctypes.util

    expected = tiny.generate([4, 5], SAMPLED)
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    rounding_up = 0x800  # FE_UPWARD on x86-64
    libm.fesetround(rounding_up)
    try:
        got = tiny.generate([4, 5], SAMPLED)
        law = tiny.loglikelihood([([4], [5])])
    finally:
        libm.fesetround(0)
    assert got == expected and law[0].logprob == tiny.loglikelihood([([4], [5])])[0].logprob


@pytest.mark.skipif(not HUGE_PAGES.is_file() or "[never]" in HUGE_PAGES.read_text(), reason="this kernel gives no huge pages")
def test_weights_lie_in_huge_pages(smollm_path: Path) -> None:
    """94 MB in matrices of half a megabyte each: in pages of 4 KB a step spends a quarter of its time on address translations."""
    code = (
        "import re, sys; from llmi import LLM\n"
        "huge = lambda: int(re.search(r'AnonHugePages:\\s+(\\d+)', open('/proc/self/smaps_rollup').read()).group(1)) * 1024\n"
        "before = huge(); llm = LLM(sys.argv[1], kv_cache_memory_bytes=1 << 20, max_model_len=16)\n"
        "print((huge() - before) / llm.model_info.weight_bytes)"
    )
    share = float(subprocess.run([sys.executable, "-c", code, str(smollm_path)], capture_output=True, text=True, check=True).stdout)
    assert share > 0.5, share
