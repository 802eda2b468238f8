"""Decode of one sequence by type of weights: share of the read bandwidth, and llama.cpp on the same file, interleaved in one run.

    python benchmarks/decode_types.py TYPE=FILE.gguf .. [--llama-bin DIR] [--rounds 5] [--output benchmarks/results/NAME.json]

The files are those of benchmarks/random_model.py, larger than the caches. --llama-bin holds llama-bench (see compare.py).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import report
from compare import llama_bench

from llmi import LLM, _core
from llmi.cli.bench import Ceilings, decode_tokens_per_s, interleave, summary

TOKENS = 64


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All works, A B A B; a share divides what was measured in the same round."""
    threads = arguments.threads or _core.system_info()["num_threads"]
    files = {kind: Path(file) for kind, file in (entry.split("=", 1) for entry in arguments.files)}
    engines = {
        kind: LLM(file, num_threads=threads, kv_cache_memory_bytes=1 << 27, max_model_len=512, enable_prefix_caching=False)
        for kind, file in files.items()
    }
    ceilings = Ceilings(threads)
    works: dict[str, Callable[[], float]] = {}
    for kind, llm in engines.items():
        works[f"{kind} read bandwidth GB/s"] = ceilings.probe
        works[f"{kind} llmi"] = partial(decode_tokens_per_s, llm, 1, TOKENS)
        if arguments.llama_bin:
            options = ["-p", "0", "-n", str(TOKENS)]
            works[f"{kind} llama.cpp"] = partial(llama_bench, Path(arguments.llama_bin) / "llama-bench", files[kind], threads, options)
    values = interleave(works, arguments.rounds)
    ratios = {}
    for kind, llm in engines.items():
        speeds = zip(values[f"{kind} llmi"], values[f"{kind} read bandwidth GB/s"], strict=True)
        ratios[f"{kind}, share of read bandwidth"] = statistics.median(
            speed * llm.model_info.weight_bytes / 1e9 / read for speed, read in speeds
        )
        if arguments.llama_bin:
            pairs = zip(values[f"{kind} llmi"], values[f"{kind} llama.cpp"], strict=True)
            ratios[f"{kind}, over llama.cpp"] = statistics.median(own / theirs for own, theirs in pairs)
    results = {name: summary(entries) for name, entries in values.items()}
    return {"table": next(iter(engines.values()))._table, "threads": threads, "tokens": TOKENS, "results": results, "ratios": ratios}


def table_of(result: dict[str, Any]) -> str:
    """Rows by type."""
    lines = ["| type | tokens/s | share of read bandwidth | over llama.cpp |", "| --- | --- | --- | --- |"]
    for name in result["results"]:
        kind, _, what = name.partition(" ")
        if what == "llmi":
            over = result["ratios"].get(f"{kind}, over llama.cpp")
            share = result["ratios"][f"{kind}, share of read bandwidth"]
            lines.append(f"| {kind} | {result['results'][name]['median']:.1f} | {share:.2f} | {'' if over is None else f'{over:.2f}'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", metavar="TYPE=FILE")
    parser.add_argument("--llama-bin", help="folder with llama-bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    sys.exit(report.main(parser, measure, table_of, lambda result: report.by_processor("decode-types", result)))
