"""A request's time by part, the work that steps do by arithmetic, and their shares of what the machine reaches."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llmi
from llmi import LLM, _core
from llmi.engine import ceilings as module
from llmi.engine.ceilings import ceilings
from llmi.requests.metrics import TIMES
from server_client import Client, tiny_llm

CHAT = [{"role": "user", "content": "hi"}]
PARAMS: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "use_tqdm": False}
PARTS = ("template_time_s", "tokenizer_time_s", "queue_time_s", "prefill_time_s", "decode_time_s", "detokenize_time_s", "constraint_time_s")


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Any:
    with tiny_llm(tiny_path) as made:
        yield made


def test_the_parts_are_the_whole(llm: LLM) -> None:
    out = llm.chat(CHAT, structured_outputs={"regex": "[a-f ]{12,40}"}, **PARAMS)[0]
    metrics = out.metrics
    assert all(getattr(metrics, name) > 0 for name in PARTS)
    assert metrics.queue_time_s + metrics.prefill_time_s + metrics.decode_time_s == pytest.approx(metrics.e2e_latency_s)
    assert metrics.queue_time_s + metrics.prefill_time_s == pytest.approx(metrics.time_to_first_token_s)
    assert metrics.detokenize_time_s < metrics.prefill_time_s + metrics.decode_time_s
    plain = llm.generate([[5, 6, 7]], detokenize=False, **PARAMS)[0].metrics
    assert plain.template_time_s == plain.detokenize_time_s == plain.constraint_time_s == 0 < plain.decode_time_s


def test_samples_and_beams_add_up(llm: LLM) -> None:
    """Time of each sample's text and masks counts, whichever thread computed them."""
    params = {**PARAMS, "max_tokens": 6, "structured_outputs": {"regex": "[a-f ]{40}"}}
    for more in ({"n": 3, "temperature": 1.0}, {"beam_width": 3}, {"beam_width": 3, "stop": ["zz"]}):
        metrics = llm.generate("ab", **{**params, **more})[0].metrics
        assert metrics.detokenize_time_s > 0 and metrics.constraint_time_s > 0


def test_times_are_no_part_of_equality(llm: LLM) -> None:
    one, two = (llm.generate("abc", **PARAMS)[0] for _ in range(2))
    assert one == two and one.metrics != two.metrics


def test_where_they_are_shown(llm: LLM) -> None:
    llm.chat(CHAT, **PARAMS)
    stats = llm.get_metrics()
    assert set(PARTS) < set(TIMES) and all(stats[name]["count"] >= 1 and stats[name]["p99"] >= 0 for name in TIMES)
    client = Client(llm)
    before, after = client.get("/metrics").text, ""
    client.ok("/v1/chat/completions", {"model": "tiny", "messages": CHAT, "max_tokens": 4})
    after = client.get("/metrics").text
    for name in PARTS:
        family = f"llmi:request_{name.removesuffix('_s')}_seconds"
        counts, sums = (
            [float(text.split(f'{family}_{kind}{{model_name="tiny"}} ')[1].split("\n")[0]) for text in (before, after)]
            for kind in ("count", "sum")
        )
        assert counts[1] == counts[0] + 1 and (sums[1] > sums[0]) == (name != "constraint_time_s"), name
    assert float(re.findall(r'operations_total\{model_name="tiny"\} (\S+)', after)[0]) > 0


def test_online_requests_have_them(llm: LLM) -> None:
    async def run() -> list[llmi.RequestOutput]:
        engine = llmi.AsyncLLM(llm=llm)
        outputs = [output async for output in engine.chat(CHAT, max_tokens=8, temperature=0, ignore_eos=True)]
        await engine.shutdown()
        return outputs

    outputs = asyncio.run(run())
    assert outputs[0].metrics.template_time_s > 0 and outputs[-1].metrics.decode_time_s > 0
    for output in outputs:
        if not output.finished:
            assert math.isnan(output.metrics.decode_time_s)
            assert output.metrics.prefill_time_s == pytest.approx(outputs[-1].metrics.prefill_time_s)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_work_is_counted_exactly(tiny_path: Callable[..., Path], architecture: str) -> None:
    """A prompt of 21 tokens in one step, then 7 more: by the model's own numbers. Gemma's layers have windows of 5 tokens, but one."""
    more = {"sliding_window": 5} if architecture == "gemma3" else {}
    with LLM(tiny_path(architecture, **more), kv_cache_memory_bytes=1 << 22, max_model_len=64, enable_prefix_caching=False) as llm:
        config = _core.spec_numbers(llm._spec.to_json(), "tiny")
        before = llm.get_metrics()
        llm.generate([list(range(5, 26))], max_tokens=8, temperature=0, ignore_eos=True, use_tqdm=False)
        after = llm.get_metrics()
        info = llm._engine.info()
    spent = {name: after[name] - before[name] for name in ("num_forwards", "num_forward_rows", "num_operations", "num_read_bytes")}
    hidden, windows, width = config["hidden_size"], config["windows"], config["num_heads"] * config["head_dim"]
    assert set(windows) == ({0} if architecture == "llama" else {0, 5})
    row = len(windows) * 2 * (2 * hidden * width + 2 * hidden * config["num_kv_heads"] * config["head_dim"])
    row += sum(2 * (3 if gated else 2) * hidden * size for size, gated in zip(config["mlp_sizes"], config["mlp_gated"], strict=True))
    pairs = sum(min(length, window or length) for window in windows for length in range(1, 29))
    assert spent["num_forwards"] == 8 and spent["num_forward_rows"] == 28
    assert spent["num_operations"] == 28 * row + 8 * 2 * hidden * config["vocab_size"] + 4 * width * pairs
    # The prompt's last row sees a window, its first one the window before it; a later row sees its own.
    cached = sum(min(21, (window or 21) + 20) + sum(min(length, window or length) for length in range(22, 29)) for window in windows)
    matrices = spent["num_read_bytes"] - info["kv_bytes_per_token"] // len(windows) * cached
    assert matrices == pytest.approx(8 * info["step_weight_bytes"], rel=1e-9)


def test_the_labs_forwards_are_no_steps(llm: LLM) -> None:
    before = llm.get_metrics()
    llm.sequence([5, 6, 7]).logits  # noqa: B018 (reading computes them)
    after = llm.get_metrics()
    assert after["num_forwards"] == before["num_forwards"] + 1 and after["num_forward_rows"] == before["num_forward_rows"] + 3
    assert after["num_operations"] == before["num_operations"]


def test_ceilings_are_measured_once_and_in_quiet(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def measure(num_threads: int, num_bytes: int) -> dict[str, float]:
        calls.append(num_threads)
        return {"read_bytes_per_s": 1e10, "fma_ops_per_s": 1e11, "bf16_ops_per_s": 2e11, "dots_ops_per_s": 8e11}

    monkeypatch.setattr(module, "_measured", {})
    monkeypatch.setattr(module._core, "measure_ceilings", measure)
    assert ceilings(2, is_quiet=False) == {} and not calls
    request = llm.enqueue("ab", max_tokens=4, temperature=0, ignore_eos=True)
    assert request and math.isnan(llm.get_metrics()["operations_share"]) and not calls, "a request waits: the engine is not quiet"
    llm.wait_for_completion()
    stats = llm.get_metrics()
    llm.get_metrics()
    assert len(calls) == 1
    assert stats["operations_share"] == pytest.approx(stats["num_operations"] / stats["busy_time_s"] / 1e11)
    assert stats["read_bytes_share"] == pytest.approx(stats["num_read_bytes"] / stats["busy_time_s"] / 1e10)
    assert stats["requests_per_s"] == pytest.approx(stats["num_finished_requests"] / stats["busy_time_s"])
    assert module.arithmetic_ceiling(measure(1, 1), 2) == (4e11, "int8 dots, two a weight")
