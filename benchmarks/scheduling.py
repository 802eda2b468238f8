"""Memory and scheduling: what sharing, batching and chunking gain, each compared with its baseline in the same run.

    python benchmarks/scheduling.py [--rounds 3] [--peers-python PYTHON] [--output benchmarks/results/NAME.json]

PYTHON, of an environment with torch and transformers, also measures transformers' continuous-batching scheduler.

`--readme FILE.json` writes the table in docs from a result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import report

from llmi import LLM, AsyncLLM, Outputs, SamplingParams, _core

PLAIN = SamplingParams(temperature=0, ignore_eos=True, detokenize=False)


def prompts_of(rng: np.random.Generator, lengths: Any) -> list[list[int]]:
    return [rng.integers(100, 40_000, int(length)).tolist() for length in lengths]


def scheduler_step_us() -> float:
    """A step of 256 running sequences: scheduler and pool, the model stubbed out."""
    scheduler = _core.testing.Scheduler("fcfs", windows=[0], num_pages=256 * 200, max_num_seqs=256, max_num_batched_tokens=8192)
    for i in range(256):
        scheduler.add([(i * 7 + j) % 1000 for j in range(32)], 3000)
    for _ in range(3):
        scheduler.step()
    assert scheduler.num_running == 256
    return float(scheduler.time_steps(2000)) / 2000 * 1e6


def prefix_us_per_1000_tokens() -> float:
    """Indexing a new text of 8,000 tokens and matching it again."""
    caches = [_core.testing.Cache([0], 16, 1000, True) for _ in range(9)]
    return min(float(cache.time_prefix(8000)) for cache in caches) * 1e6 / 8


NUM_PAGES = 256 * 129


def loaded_scheduler() -> tuple[Any, list[tuple[int, int]]]:
    """256 requests of nano-vllm's lengths (100 to 1,024 in and out), all waiting, with room for each; the model stubbed out."""
    rng = np.random.default_rng(5)
    scheduler = _core.testing.Scheduler(
        "fcfs", windows=[0], num_pages=NUM_PAGES, max_num_seqs=256, max_num_batched_tokens=8192, with_prefixes=False
    )
    requests = list(zip(rng.integers(100, 1025, 256).tolist(), rng.integers(100, 1025, 256).tolist(), strict=True))
    for prompt_len, max_tokens in requests:
        scheduler.add([1] * prompt_len, max_tokens)
    return scheduler, requests


def peer_scheduler(python: str, rounds: int) -> dict[str, float]:
    """Seconds for all steps of loaded_scheduler's list, ours (each step's work handed to Python as lists) and transformers'."""
    seconds: dict[str, list[float]] = {"llmi": [], "transformers": []}
    steps = {}
    for _ in range(rounds):
        scheduler, requests = loaded_scheduler()
        start, steps["llmi"] = time.perf_counter(), 0
        while scheduler.num_running or scheduler.num_waiting:
            scheduler.step()
            steps["llmi"] += 1
        seconds["llmi"].append(time.perf_counter() - start)
        job = {"requests": requests, "num_blocks": NUM_PAGES, "block_size": 16, "max_tokens": 8192}
        command = [python, str(Path(__file__).with_name("peer_scheduler.py"))]
        seen = json.loads(subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=True).stdout)
        seconds["transformers"].append(seen["seconds"])
        steps["transformers"] = seen["steps"]
    ours, peer = (statistics.median(seconds[name]) for name in ("llmi", "transformers"))
    return {
        "llmi_s": ours,
        "transformers_s": peer,
        "times_faster": peer / ours,
        "steps": steps["llmi"],
        "peer_steps": steps["transformers"],
    }


def kv_waste() -> dict[str, float]:
    """KV slots allocated minus tokens held, over loaded_scheduler's list."""
    scheduler, _ = loaded_scheduler()
    lengths: dict[int, int] = {}
    waste, sequences, live = 0.0, 0.0, 0.0
    while scheduler.num_running or scheduler.num_waiting:
        work, ended = scheduler.step()
        lengths |= {number: first + num_new for number, first, num_new in work}
        for number in ended:
            del lengths[number]
        held = sum(lengths.values())
        waste += (NUM_PAGES - scheduler.num_free) * 16 - held
        sequences += len(lengths)
        live += held
    return {"tokens_a_sequence": waste / sequences, "share_over_half_a_block": (waste - 7.5 * sequences) / live}


def timed(llm: LLM, prompts: list[list[int]], params: Any) -> tuple[float, Outputs]:
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start, outputs


def continuous_and_static(rounds: int) -> dict[str, float]:
    """128 requests of 16 to 512 tokens, 16 at a time: continuous batching over static, and that over max / mean of the list."""
    rng = np.random.default_rng(0)
    prompts, lengths = prompts_of(rng, [16] * 128), rng.integers(16, 513, 128)
    params = [PLAIN.replace(max_tokens=int(length)) for length in lengths]
    batches = [max(lengths[i : i + 16]) for i in range(0, 128, 16)]
    bound = 16 * sum(batches) / lengths.sum()
    ratios = []
    for _ in range(rounds):
        seconds = {}
        for policy in ("static", "fcfs"):
            with LLM(
                kv_cache_memory_bytes=1 << 29, max_num_seqs=16, max_model_len=600, scheduling_policy=policy, enable_prefix_caching=False
            ) as llm:
                seconds[policy], _ = timed(llm, prompts, params)
        ratios.append(seconds["static"] / seconds["fcfs"])
    return {"ratio": statistics.median(ratios), "bound": float(bound), "share_of_bound": statistics.median(ratios) / float(bound)}


def shared_prefix(rounds: int) -> dict[str, float]:
    """32 prompts of 1,024 tokens of which 922 are shared, 32 tokens out, all at once."""
    rng = np.random.default_rng(1)
    stem = prompts_of(rng, [922])[0]
    prompts = [stem + tail for tail in prompts_of(rng, [102] * 32)]
    ratios, same = [], True
    for _ in range(rounds):
        seconds, outputs = {}, {}
        for cached in (False, True):
            with LLM(kv_cache_memory_bytes=1 << 30, max_model_len=1100, enable_prefix_caching=cached) as llm:
                seconds[cached], outputs[cached] = timed(llm, prompts, PLAIN.replace(max_tokens=32))
        ratios.append(seconds[False] / seconds[True])
        same = same and outputs[False] == outputs[True]
    return {"speed_up": statistics.median(ratios), "same_tokens": same}


def small_pool(rounds: int) -> dict[str, float]:
    """32 requests of 300 + 100 tokens with room for a quarter of them: throughput against room for all."""
    rng = np.random.default_rng(2)
    prompts = prompts_of(rng, [300] * 32)
    ratios, recomputed = [], 0.0
    for _ in range(rounds):
        seconds = {}
        for share in (1.0, 0.25):
            with LLM(kv_cache_memory_bytes=1 << 24, max_model_len=401) as probe:
                need = probe.model_info.kv_bytes_per_token * 416 * 32
            with LLM(kv_cache_memory_bytes=int(need * share), max_model_len=401) as llm:
                seconds[share], _ = timed(llm, prompts, PLAIN.replace(max_tokens=100))
                if share < 1:
                    stats = llm.get_metrics()
                    recomputed = stats["num_recomputed_tokens"] / (stats["num_prompt_tokens"] + stats["num_generated_tokens"])
        ratios.append(seconds[1.0] / seconds[0.25])
    return {"throughput": statistics.median(ratios), "recomputed_share": recomputed}


async def gaps_beside_a_long_prompt(engine: AsyncLLM, with_prompt: bool) -> tuple[float, float]:
    """Worst gap between tokens of 8 streams, and the time to first token of a prompt of 4,000 that arrives meanwhile.

    Streams are equally long with and without it: the worst of 400 gaps on a shared machine is not that of 100.
    """
    rng = np.random.default_rng(3)
    worst = [0.0]
    ttft = [0.0]

    async def read(prompt: list[int]) -> None:
        before = None
        async for output in engine.generate(prompt, PLAIN.replace(max_tokens=400)):
            now = time.perf_counter()
            if before is not None and len(output.token_ids) > 10:
                worst[0] = max(worst[0], now - before)
            before = now
            if ttft[0]:
                return

    async def arrive() -> None:
        await asyncio.sleep(0.3)
        start = time.perf_counter()
        async for _ in engine.generate(prompts_of(rng, [4000])[0], PLAIN.replace(max_tokens=1)):
            ttft[0] = time.perf_counter() - start

    await asyncio.gather(*(read(prompt) for prompt in prompts_of(rng, [16] * 8)), *([arrive()] if with_prompt else []))
    return worst[0], ttft[0]


def first_tokens(rounds: int) -> dict[str, float]:
    """Poisson arrivals at 0.7 of what static batches can serve: median time to first token, static over continuous."""
    rng = np.random.default_rng(6)
    prompts, lengths = prompts_of(rng, [64] * 64), rng.integers(16, 257, 64).tolist()
    params = [PLAIN.replace(max_tokens=length) for length in lengths]
    engine = {"kv_cache_memory_bytes": 1 << 29, "max_num_seqs": 16, "max_model_len": 600, "enable_prefix_caching": False}
    gaps = rng.exponential(size=64)

    async def serve(policy: str, requests_per_s: float) -> list[float]:
        arrivals = np.cumsum(gaps) / requests_per_s
        async_llm = AsyncLLM(scheduling_policy=policy, **engine)

        async def one(i: int) -> float:
            await asyncio.sleep(float(arrivals[i]))
            start = time.perf_counter()
            first = 0.0
            async for _ in async_llm.generate(prompts[i], params[i]):
                first = first or time.perf_counter() - start
            return first

        seen = await asyncio.gather(*(one(i) for i in range(64)))
        await async_llm.shutdown()
        return seen

    seen = []
    for _ in range(rounds):
        # The machine's speed drifts: the capacity is that of the same minutes.
        with LLM(scheduling_policy="static", **engine) as llm:
            requests_per_s = 0.7 * 64 / timed(llm, prompts, params)[0]
        static, continuous = (statistics.median(asyncio.run(serve(policy, requests_per_s))) for policy in ("static", "fcfs"))
        seen.append((requests_per_s, static, continuous, static / continuous))
    names = ("requests_per_s", "static_s", "continuous_s", "times_shorter")
    return {name: statistics.median(values) for name, values in zip(names, zip(*seen, strict=True), strict=True)}


def stall(rounds: int) -> dict[str, float]:
    """A prompt of 4,000 tokens while 8 streams are read: the worst gap over one without it, and its first token over that of unchunked
    prefill."""
    long_prompt = prompts_of(np.random.default_rng(4), [4000])[0]

    async def main() -> list[tuple[float, float, float, float]]:
        engine = AsyncLLM(kv_cache_memory_bytes=1 << 30, max_model_len=4100, enable_prefix_caching=False)
        engine.llm.cost_curve()
        seen = []
        for _ in range(rounds):
            quiet, _ = await gaps_beside_a_long_prompt(engine, False)
            worst, ttft = await gaps_beside_a_long_prompt(engine, True)
            whole = engine.llm.generate(long_prompt, PLAIN.replace(max_tokens=1))[0].metrics.time_to_first_token_s
            seen.append((quiet, worst, ttft, whole))
        await engine.shutdown()
        return seen

    quiet, worst, ttft, whole = (np.array(values) for values in zip(*asyncio.run(main()), strict=True))
    seconds = {"quiet_gap_s": quiet, "worst_gap_s": worst, "ttft_s": ttft, "unchunked_s": whole}
    ratios = {"gap_ratio": worst / quiet, "ttft_ratio": ttft / whole}
    return {name: float(np.median(values)) for name, values in (seconds | ratios).items()}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, measure in {
        "scheduler_step_us": scheduler_step_us,
        "prefix_us_per_1000_tokens": prefix_us_per_1000_tokens,
        "kv_waste": kv_waste,
        "stall": lambda: stall(arguments.rounds),
        "first_tokens": lambda: first_tokens(arguments.rounds),
        "shared_prefix": lambda: shared_prefix(arguments.rounds),
        "small_pool": lambda: small_pool(arguments.rounds),
        "continuous": lambda: continuous_and_static(arguments.rounds),
    }.items():
        result[name] = measure()
        print(name, result[name], flush=True)
    if arguments.peers_python:
        result["peer_scheduler"] = peer_scheduler(arguments.peers_python, arguments.rounds)
        print("peer_scheduler", result["peer_scheduler"], flush=True)
    return result


def table(result: dict[str, Any]) -> str:
    """Markdown rows."""
    stall_, shared, pool, continuous = result["stall"], result["shared_prefix"], result["small_pool"], result["continuous"]
    waste, first = result["kv_waste"], result["first_tokens"]
    peer = result.get("peer_scheduler")
    alone = "Scheduler alone, 256 requests of 100 to 1,024 tokens in and out: times faster than transformers' continuous-batching scheduler"
    return "\n".join(
        [
            "| measured | result |",
            "| --- | --- |",
            f"| Scheduler and block pool: time of a step of 256 sequences | {result['scheduler_step_us']:.0f} us |",
            *([f"| {alone} | {peer['times_faster']:.0f} |"] if peer else []),
            f"| Prefix tree: time to match and insert 1,000 tokens | {result['prefix_us_per_1000_tokens']:.0f} us |",
            f"| Unused KV slots per sequence (7.5 is the minimum for 16-slot blocks); other waste, of the tokens held "
            f"| {waste['tokens_a_sequence']:.2f}; {waste['share_over_half_a_block']:.2%} |",
            f"| Median time to first token under load (Poisson arrivals, 70 % of static batching's capacity): times lower than with static batching "
            f"| {first['times_shorter']:.0f} |",
            f"| 32 prompts of 1,024 tokens, 922 of them shared: speed-up by the prefix cache | {shared['speed_up']:.1f} |",
            f"| Speed-up by continuous over static batching, lengths 16 to 512 (limit {continuous['bound']:.2f}) | {continuous['ratio']:.2f} |",
            f"| KV memory for a quarter of the requests: share of the throughput kept; of the tokens computed again | {pool['throughput']:.2f}; {pool['recomputed_share']:.1%} |",
            f"| While a prompt of 4,000 tokens is prefilled: longest gap of 8 streams over their normal gap; the prompt's first token over its time unchunked "
            f"| {stall_['gap_ratio']:.1f}; {stall_['ttft_ratio']:.1f} |",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers-python", help="the Python of an environment with torch and transformers")
    sys.exit(report.main(parser, run, table))
