"""The CUDA backend without a GPU: its kernels, launches and transfers carried out by the host give the CPU's bits.

Memory of the emulated device faults when host code touches it, kernels may be given no address of the host, shared memory
begins as NaN, and blocks run their threads forwards and backwards by turns. Ops: the case tables of test_ops.py and
test_attention.py run on it as a table of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from bits import assert_same_bits
from decoders import open_decoder
from features import expect_short_answers, has_bits_of_its_own
from llmi import LLM, Capture, DeviceError, SamplingParams, SpeculativeConfig, TokenTree, _core
from llmi.testing import assert_same_tokens
from test_invariance import COUNTS, make_params, make_prompts, run, tight_pool

pytestmark = pytest.mark.usefixtures("device")


WEIGHTS: list[dict[str, Any]] = [
    {"dtype": "float32"},
    {"dtype": "float16", "linear_dtype": "float32"},
    {"dtype": "bfloat16", "linear_dtype": "float32"},
    {"quantization": "q8_0"},
    {"quantization": "q4_0"},
]
CACHES = ["float16", "bfloat16", "float32", "int8", "fp8"]
#: Each architecture with each type of weights and each of the cache once; engine/test_device_grids.py has the other pairs.
CROWDS = [("llama", WEIGHTS[i], CACHES[i]) for i in range(5)] + [("gemma3", WEIGHTS[i], CACHES[(i + 2) % 5]) for i in range(5)]


@pytest.mark.parametrize(("architecture", "weights", "kv_cache_dtype"), CROWDS)
def test_tokens_are_those_of_the_cpu(
    tiny_path: Callable[..., Path], device: str, architecture: str, weights: dict[str, Any], kv_cache_dtype: str
) -> None:
    """A crowd in a tight pool: chunks, copies on write, preemption and windows over block tables of the device."""
    if has_bits_of_its_own(device, kv_cache_dtype):
        return  # test_tensor_cores.py
    model = tiny_path(architecture)
    prompts, params = make_prompts(257, 12, 300), make_params(12, 40)
    counts = dict.fromkeys(COUNTS, 0)
    engine: dict[str, Any] = {"kv_cache_dtype": kv_cache_dtype, "max_num_batched_tokens": 90, "max_model_len": 360, **weights}
    engine["kv_cache_memory_bytes"] = tight_pool(model, 300, 40, engine)
    expected = run(model, prompts, params, 12, dict.fromkeys(COUNTS, 0), **engine)
    assert_same_tokens(run(model, prompts, params, 12, counts, device="cuda", **engine), expected)
    assert counts["num_copies_on_write"] > 1 and counts["num_preemptions"] > 0, counts


@pytest.mark.parametrize("kv_dtype", ["float16", "bfloat16"])
def test_partials_that_do_not_fit_go_in_several_launches(tiny_path: Callable[..., Path], device: str, kv_dtype: str) -> None:
    """Prompts, and steps that would otherwise be recorded: a launch has room for a few spans of one row."""
    tokens = np.random.default_rng(2).integers(1, 257, size=360).tolist()
    logits = []
    for table in (device, device + "+tight"):
        decoder = open_decoder(tiny_path("gemma3"), dtype="float32", kv_dtype=kv_dtype, table=table)
        sequences = [decoder.new_sequence() for _ in range(3)]
        steps = [[(sequence, tokens[40 * i : 300], None) for i, sequence in enumerate(sequences)]]
        steps += [[(sequence, tokens[k : k + 1], None) for sequence in sequences] for k in range(300, 306)]
        logits.append(np.concatenate([decoder.forward(step)[0] for step in steps]))
    assert_same_bits(logits[0], logits[1])


@pytest.mark.parametrize("kv_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_step_of_prompts_trees_and_single_rows(tiny_path: Callable[..., Path], device: str, architecture: str, kv_dtype: str) -> None:
    """Groups of rows that blocks take whole beside such whose spans are shared out: each sequence has the bits that it has alone."""
    tokens = np.random.default_rng(3).integers(1, 257, size=400).tolist()
    prefixes = [tokens[:10], tokens[40:340], tokens[30:70], tokens[:255]]
    parts: list[tuple[list[int], list[int] | None]] = [
        (tokens[:150], None),
        (tokens[:5], [-1, 0, 0, 1, 2]),
        (tokens[7:8], None),
        (tokens[:9], None),
    ]

    def run_step(chosen: list[int]) -> list[bytes]:
        decoder = open_decoder(tiny_path(architecture), dtype="float32", kv_dtype=kv_dtype, table=device)
        sequences = [decoder.new_sequence() for _ in chosen]
        decoder.forward([(sequence, prefixes[i], None) for sequence, i in zip(sequences, chosen, strict=True)])
        logits, _ = decoder.forward([(sequence, *parts[i]) for sequence, i in zip(sequences, chosen, strict=True)])
        ends = np.cumsum([len(parts[i][0]) for i in chosen])[:-1]
        return [part.tobytes() for part in np.split(logits, ends)]

    together = run_step([0, 1, 2, 3])
    assert together == [run_step([i])[0] for i in range(4)]


@pytest.mark.parametrize(("architecture", "caching"), [("llama", False), ("gemma3", True)])
def test_preempted_sequences_come_back_from_the_host(tiny_path: Callable[..., Path], architecture: str, caching: bool) -> None:
    """Their blocks were copied there, which is cheaper here than computing them again; no bit knows."""
    model = tiny_path(architecture)
    prompts, params = make_prompts(257, 24, 60), make_params(24, 80)
    engine: dict[str, Any] = {"max_num_batched_tokens": 90, "max_model_len": 160, "enable_prefix_caching": caching}
    engine["kv_cache_memory_bytes"] = tight_pool(model, 120, 80, engine)
    counts = dict.fromkeys(COUNTS, 0)
    expected = run(model, prompts, params, 8, counts, **engine)
    with LLM(model, device="cuda", **engine) as llm:
        for begin in range(0, 24, 8):
            expect_short_answers(llm)
            assert_same_tokens(
                llm.generate(prompts[begin : begin + 8], params[begin : begin + 8], use_tqdm=False), expected[begin : begin + 8]
            )
        stats = llm.get_metrics()
    assert stats["audit"] == "" and stats["num_preemptions"] >= 5 and stats["num_restored_tokens"] > 200, stats
    # What the prefix cache has, but for a block, is not copied; nor are sequences, of 160 tokens at most, whose copy seemed dearer by the
    # clock, as a busy machine makes one seem.
    most = (16 * stats["num_preemptions"] if caching else 0) + 160 * stats["num_copies_left_out"]
    assert stats["num_recomputed_tokens"] <= most, stats


def test_speculation_on_the_device(tiny_path: Callable[..., Path]) -> None:
    """Trees: gathered paths, and committed slots that move."""

    class Trees(llmi.Drafter):
        def propose(self, context: llmi.DraftContext) -> TokenTree:
            last = int(context.token_ids[-1])
            follows = [int(t) for t in context.token_ids[1:][context.token_ids[:-1] == last]][-2:]
            tree = TokenTree.from_paths([[t, last] for t in dict.fromkeys([*follows, (last + 1) % 257])])
            return tree

    params = SamplingParams(temperature=0.3, max_tokens=40, seed=4, logprobs=2, ignore_eos=True)
    prompts = [[5, 6, 7, 8] * 20, [9, 9, 9, 4] * 30]
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 23, kv_cache_dtype="int8") as cpu:
        expected = cpu.generate(prompts, params)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 23, kv_cache_dtype="int8", device="cuda") as llm:
        assert llm.model_info.numerics_id == cpu.model_info.numerics_id.replace("-cpu-", "-cuda-")
        for drafter in (Trees(), llmi.PromptLookup()):
            drafted = llm.generate(prompts, params, speculative_config=SpeculativeConfig(drafter, 6))
            assert_same_tokens(drafted, expected)
            metrics = [output.outputs[0].spec_decode_metrics for output in drafted]
            assert sum(m.num_accepted_tokens for m in metrics if m) > 5


@pytest.mark.parametrize(("architecture", "kv_cache_dtype"), [("llama", "float16"), ("gemma3", "bfloat16")])
def test_steps_are_played_as_graphs(tiny_path: Callable[..., Path], device: str, architecture: str, kv_cache_dtype: str) -> None:
    """Batches that grow and shrink, rows that fill up a recording, contexts that pass into the next span, windows, drafts; the
    same tokens, and nearly every step of decoding played."""
    model = tiny_path(architecture)
    engine: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 24, "max_num_seqs": 11, "kv_cache_dtype": kv_cache_dtype}
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=8 + 5 * i, ignore_eos=True) for i in range(13)]
    prompts = [[1 + (7 * i + k) % 250 for k in range(20 * i + 3)] for i in range(13)]
    prompts[12] *= 3  # 729 tokens: recorded with three spans, played with four
    with LLM(model, **engine) as cpu, LLM(model, device="cuda", **engine) as llm:
        if has_bits_of_its_own(device, kv_cache_dtype):
            with LLM(model, device="cuda", **engine) as alone:
                expected = [alone.generate(*request)[0] for request in zip(prompts, params, strict=True)]
        else:
            expected = cpu.generate(prompts, params)
        assert_same_tokens(llm.generate(prompts, params), expected)
        first = llm.get_metrics()
        llm.reset_prefix_cache()
        assert_same_tokens(llm.generate(prompts, params), expected)
        metrics = llm.get_metrics()
        steps = metrics["num_steps"] - first["num_steps"]
        played = metrics["num_graph_replays"] - first["num_graph_replays"]
        assert played >= steps - 4, (played, steps)  # prompts take the others
        drafted = llm.generate(prompts, params, speculative_config=SpeculativeConfig(llmi.PromptLookup(), 4))
        assert_same_tokens(drafted, expected)
        assert llm.get_metrics()["num_graph_replays"] > metrics["num_graph_replays"] + 20
        before = llm.get_metrics()["num_graph_replays"]
        sequence = llm.sequence(prompts[3], capture=Capture(hidden_states=(1,)))
        for token in (5, 6, 7):  # a first step might only be recorded
            sequence.extend([token])
        assert llm.get_metrics()["num_graph_replays"] == before, "what looks inside runs op by op"
        assert cpu.get_metrics()["num_graph_replays"] == 0


def test_a_step_waits_once(tiny_path: Callable[..., Path]) -> None:
    """For the tokens of all its sequences; what the host does in between is counted as the device's idleness."""
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=1, max_tokens=24, ignore_eos=True, detokenize=False)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 24, device="cuda") as llm:
        before = llm.get_metrics()
        began = time.perf_counter()
        llm.generate([[5 + i, 6, 7] for i in range(20)], params, use_tqdm=False)
        seconds = time.perf_counter() - began
        after = llm.get_metrics()
    steps = after["num_steps"] - before["num_steps"]
    assert 24 <= steps <= after["num_device_waits"] - before["num_device_waits"] <= steps + 1
    assert after["num_steps_ahead"] - before["num_steps_ahead"] == steps - 1, "the last token is known to be the last"
    assert 0 < after["device_idle_s"] - before["device_idle_s"] < seconds


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_lab_on_the_device(tiny_path: Callable[..., Path], architecture: str) -> None:
    """Hidden states, early logits and attention rows come back as the CPU has them."""
    tokens = np.random.default_rng(1).integers(1, 257, size=90).tolist()
    capture = Capture(hidden_states=(0, 2, 3), layer_logits=(1, 2), attention=(1, 3))
    seen = []
    for device in ("cpu", "cuda"):
        with LLM(tiny_path(architecture), kv_cache_memory_bytes=1 << 23, device=device, max_num_batched_tokens=40) as llm:
            sequence = llm.sequence(tokens[:80], capture=capture)
            fork = sequence.fork()
            sequence.extend(tokens[80:])
            fork.extend(tokens[85:])
            seen.append(
                [
                    np.concatenate(
                        [
                            np.ravel(array)
                            for array in (s.logits, *s.hidden_states.values(), *s.layer_logits.values(), *s.attention.values())
                        ]
                    )
                    for s in (sequence, fork)
                ]
            )
    for cpu, cuda in zip(*seen, strict=True):
        assert_same_bits(cpu, cuda)


def test_what_belongs_to_an_engine_runs_where_it_does(tiny_path: Callable[..., Path], tmp_path: Path) -> None:
    """A SelfDraft beside its target, and the replay of a receipt."""
    params = SamplingParams(max_tokens=20, seed=3, logprobs=1, ignore_eos=True)
    drafter = llmi.SelfDraft(skip_layers=[1])
    with LLM(tiny_path(), device="cuda", kv_cache_memory_bytes=1 << 22) as llm:
        plain = llm.generate([1, 2, 3], params)
        assert_same_tokens(llm.generate([1, 2, 3], params, speculative_config=SpeculativeConfig(drafter, 3)), plain)
        assert "-cuda-" in drafter.llm.model_info.numerics_id
        receipt = plain[0].receipt()
        receipt.save(tmp_path / "receipt.json")
        assert llmi.replay(tmp_path / "receipt.json", llm)
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22) as cpu, pytest.raises(llmi.InvalidParamsError, match="numerics id"):
        llmi.replay(receipt, cpu)


def test_memory_of_the_device(tiny_path: Callable[..., Path], device: str) -> None:
    """A cache that the device has no room for, beside a step's workspaces, is refused with the arithmetic; the next one fits."""
    free = r"4,29\d" if device == "emulated" else r"[\d,]+"
    arithmetic = rf"needs 9,000,\d\d\d MB, {free} MB are free: weights .* KV cache 9,000,000 MB"
    with pytest.raises(llmi.OutOfMemoryError, match=arithmetic):
        LLM(tiny_path(), device="cuda", kv_cache_memory_bytes=9_000_000_000_000)
    with LLM(tiny_path(), device="cuda", max_model_len=64) as llm:
        assert len(llm.generate([1, 2, 3], max_tokens=4, ignore_eos=True)[0].token_ids) == 4


def test_the_cache_takes_its_share_of_the_device(tiny_path: Callable[..., Path], device: str) -> None:
    """gpu_memory_utilization counts weights, workspaces and what others hold; a share that they exceed is refused with the arithmetic."""
    engine: dict[str, Any] = {"device": "cuda", "max_model_len": 2048, "max_num_seqs": 100_000}
    pages = []
    for share in (0.3, 0.6):
        with LLM(tiny_path(), gpu_memory_utilization=share, **engine) as llm:
            pages.append(llm.get_metrics()["num_pages"] * llm._page_bytes)
            assert len(llm.generate([1, 2, 3], max_tokens=4, ignore_eos=True)[0].token_ids) == 4
    if device == "emulated":
        assert pages[0] < 0.3 * 2**32 and pages[1] - pages[0] == pytest.approx(0.3 * 2**32, rel=1e-4)
    arithmetic = (
        r"gpu_memory_utilization = 0\.0\d+ allows [\d,]+ MB of the device's [\d,]+ MB, and [\d,]+ MB are taken, .*: nothing is left"
    )
    with pytest.raises(llmi.OutOfMemoryError, match=arithmetic):
        LLM(tiny_path(), gpu_memory_utilization=0.0001, **engine)
    with LLM(tiny_path(), device="cuda", gpu_memory_utilization=0.0001, kv_cache_memory_bytes=1 << 22) as llm:
        assert llm.get_metrics()["num_pages"] * llm._page_bytes <= 1 << 22, "a size in bytes goes before a share"


@pytest.mark.parametrize("share", [0, 1.01, -0.5, "most", float("nan")])
def test_a_share_of_memory_that_is_none(tiny_path: Callable[..., Path], share: Any) -> None:
    with pytest.raises(llmi.InvalidParamsError, match=r"gpu_memory_utilization must be a number in \(0, 1\]"):
        LLM(tiny_path(), gpu_memory_utilization=share)
    with LLM(tiny_path(), device="cpu", gpu_memory_utilization=0.5, kv_cache_memory_bytes=1 << 22) as llm:
        assert llm.generate([[1]], max_tokens=1)[0].params_resolved["gpu_memory_utilization"] == (0.5, "no effect")


def test_without_a_gpu_the_reason_is_given(tiny_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMI_EMULATE_CUDA")
    why = _core.system_info()["why_no_cuda"]
    if why:
        with pytest.raises(DeviceError, match=re.escape(why)):
            LLM(tiny_path(), device="cuda")
    with LLM(tiny_path(), kv_cache_memory_bytes=1 << 22) as llm:
        assert "-cpu-" in llm.model_info.numerics_id, "auto takes the CPU until the kernels have run on a GPU"


def test_device_probes(device: str) -> None:
    """What the benchmark measures: a layer's packed bytes, and seconds of it and of attention."""
    name = "emulated" if device == "emulated" else "cuda"
    for kind, block_bytes in {"bf16": 64, "fp16": 64, "q8_0": 34, "q4_0": 18, "q4_1": 20}.items():
        for num_blocks in (4, 3):
            seconds, weight_bytes = _core.testing.measure_device_linear(name, kind, 3, 64, 32 * num_blocks)
            # In chunks, codes of four bits stand by pairs of blocks: half of an odd one's last pair is empty.
            unused = 16 * (num_blocks % 2) if kind in ("q4_0", "q4_1") else 0
            assert seconds > 0 and weight_bytes == 64 * (num_blocks * block_bytes + unused)
    for kind, super_block_bytes in {"q4_k": 148, "q6_k": 210}.items():  # the file's 144 and 210; in chunks, Q4_K's scales are unpacked
        seconds, weight_bytes = _core.testing.measure_device_linear(name, kind, 3, 64, 512)
        assert seconds > 0 and weight_bytes == 64 * 2 * super_block_bytes
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64}
    assert _core.testing.measure_device_attention(name, "float16", [100, 3], 3, **heads) > 0
    with pytest.raises(_core.CoreError, match="bf16, fp16, q4_0, q4_1, q4_k, q5_0, q5_k, q6_k or q8_0"):
        _core.testing.measure_device_linear(name, "q5_1", 1, 64, 64)
    for shape in ((0, 64, 64), (1, 0, 64), (1, 60, 64), (1, 64, 48)):
        with pytest.raises(_core.CoreError, match="a device probe"):
            _core.testing.measure_device_linear(name, "bf16", *shape)
    with pytest.raises(_core.CoreError, match="contexts hold the rows"):
        _core.testing.measure_device_attention(name, "float16", [100, 2], 3, **heads)
