"""Beam search, guidance and contrastive search compared with plain sampling and other engines: steps a second, interleaved, as ratios.

    python benchmarks/beams.py [--parts sampling peers guidance contrastive] [--rounds 7] [--output FILE.json]
        [--peers-python PYTHON --peers-dir DIR]

sampling: a beam of 4 over four samples of one prompt, 64 tokens. peers: the same beam, and eight such prompts at once, over transformers in
bf16 and CTranslate2 in int8 (benchmarks/peers.py prepares them). guidance: one guided sequence over two sequences in one batch.
contrastive: four candidates over four samples, 512 tokens in and 64 out, prompts computed anew. A part whose parameters this version lacks
is an error. `--readme FILE.json` writes the table of docs/results.md from a result.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import report
from compare import Peer

from llmi import LLM, BeamSearchParams, SamplingParams, _core
from llmi.cli.bench import interleave
from llmi.models import by_name

WIDTH = 4
TOKENS = 64
PARTS = ("sampling", "peers", "guidance", "contrastive")
PEER_NAMES = ("transformers", "ctranslate2")


def prompts_of(count: int, length: int) -> list[list[int]]:
    """As benchmarks/peers.py makes them."""
    return [[100 + (i * 31 + j * 7919) % 40_000 for j in range(length)] for i in range(count)]


def steps_per_s(llm: LLM, prompts: list[list[int]], params: Any) -> float:
    """Output positions of one prompt over the time of the call."""
    start = time.perf_counter()
    outs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    lengths = {len(completion.token_ids) for output in outs for completion in output.outputs}
    if lengths != {TOKENS}:
        raise RuntimeError(f"outputs have {lengths} tokens, not {TOKENS}")
    return TOKENS / seconds


def beams(num_prompts: int, llm: LLM) -> float:
    params = BeamSearchParams(beam_width=WIDTH, max_tokens=TOKENS, ignore_eos=True)
    return steps_per_s(llm, prompts_of(num_prompts, 16), params)


def works_of(part: str, llm: LLM, peers: dict[str, Peer]) -> dict[str, Callable[[], float]]:
    """By name, each in steps a second."""
    samples = SamplingParams(temperature=1, seed=1, n=WIDTH, max_tokens=TOKENS, ignore_eos=True)
    one = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    if part == "sampling":
        return {"beam of 4": partial(beams, 1, llm), "four samples": partial(steps_per_s, llm, prompts_of(1, 16), samples)}
    if part == "guidance":
        guided = one.replace(guidance_scale=1.5, negative_prompt="A dull text, in short words, about nothing in particular.")
        return {
            "guided": partial(steps_per_s, llm, prompts_of(1, 16), guided),
            "two sequences": partial(steps_per_s, llm, prompts_of(2, 16), one),
        }
    if part == "contrastive":
        contrastive = SamplingParams(temperature=0, penalty_alpha=0.6, top_k=WIDTH, max_tokens=TOKENS, ignore_eos=True)
        long = prompts_of(1, 512)
        return {
            "contrastive search": partial(steps_per_s, llm, long, contrastive),
            "four samples, 512 in": partial(steps_per_s, llm, long, samples),
        }
    works: dict[str, Callable[[], float]] = {}
    for count in (1, 8):
        works[f"beam of 4, {count} at once"] = partial(beams, count, llm)
        works |= {f"{name}, {count} at once": partial(peer.measure, f"beams-{count} {TOKENS}") for name, peer in peers.items()}
    return works


RATIOS = {
    "beam of 4 / four samples": ("beam of 4", "four samples"),
    **{
        f"beam of 4, {count} at once / {name}": (f"beam of 4, {count} at once", f"{name}, {count} at once")
        for name in PEER_NAMES
        for count in (1, 8)
    },
    "guided / two sequences": ("guided", "two sequences"),
    "contrastive search / four samples, 512 in": ("contrastive search", "four samples, 512 in"),
}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    threads = _core.system_info()["num_threads"]
    model = by_name.fetch("smollm2-135m-instruct")
    peers: dict[str, Peer] = {}
    if "peers" in arguments.parts:
        if not (arguments.peers_python and arguments.peers_dir):
            raise SystemExit("the part `peers` needs --peers-python and --peers-dir; leave it out with --parts")
        peers = {name: Peer(arguments.peers_python, arguments.peers_dir, name, threads) for name in PEER_NAMES}
    result: dict[str, Any] = {"model": model.name, "threads": threads, "parts": arguments.parts, "results": {}, "ratios": {}}
    with LLM(model, num_threads=threads, kv_cache_memory_bytes=1 << 29, max_model_len=1024, enable_prefix_caching=False) as llm:
        result["table"] = llm._table
        for part in arguments.parts:
            works = works_of(part, llm, peers)
            for work in works.values():
                work()  # once before: memory and costs are known
            values = interleave(works, arguments.rounds)
            result["results"] |= {name: {"median": statistics.median(entries), "values": entries} for name, entries in values.items()}
            for name, (of, over) in RATIOS.items():
                if of in values and over in values:
                    shares = [a / b for a, b in zip(values[of], values[over], strict=True)]
                    result["ratios"][name] = {"median": statistics.median(shares), "min": min(shares), "max": max(shares)}
    return result


def table(result: dict[str, Any]) -> str:
    """A row a ratio."""
    rows = [f"| {name} | {entry['median']:.2f} | {entry['min']:.2f} to {entry['max']:.2f} |" for name, entry in result["ratios"].items()]
    head = f"Steps a second, {result['model']}, {result['threads']} threads (`benchmarks/beams.py`, commit {result['commit'][:10]}):"
    return "\n".join([head, "", "| | ratio | rounds |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers-python", help="the Python of an environment with the peers of benchmarks/peers.py")
    parser.add_argument("--peers-dir", help="what `benchmarks/peers.py prepare` wrote")
    sys.exit(report.main(parser, run, table, lambda result: "beams peers" if result["parts"] == ["peers"] else "beams"))
