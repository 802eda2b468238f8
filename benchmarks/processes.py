"""Two processes of one thread each over one process of two threads, interleaved: ranks, stages and replicas of one model.

    python benchmarks/processes.py [MODEL] [--rounds 5] [--output benchmarks/results/NAME.json]

A machine with two free cores; on a busy one the ratios say little (the result has the load average).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import report

from llmi import LLM, SamplingParams
from llmi.cli.bench import decode_tokens_per_s, interleave, prefill_tokens_per_s, summary

TOKENS = 48
MANY = 32
#: What is compared, and the works that it is compared in.
SHAPES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "2 ranks": ({"tensor_parallel_size": 2}, ("decode of one", "prefill 512", "8 sequences")),
    "2 stages": ({"pipeline_parallel_size": 2}, ("8 sequences",)),
    "2 replicas": ({"data_parallel_size": 2}, ("32 sequences",)),
}


def all_tokens_per_s(llm: LLM, count: int) -> float:
    """Of requests that are given together, over the time until all have ended."""
    prompts = [[100 + (i + j) % 97 for j in range(8)] for i in range(count)]
    begin = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True), use_tqdm=False)
    return count * TOKENS / (time.perf_counter() - begin)


WORKS: dict[str, Callable[[LLM], float]] = {
    "decode of one": partial(decode_tokens_per_s, num_sequences=1, num_tokens=TOKENS),
    "prefill 512": partial(prefill_tokens_per_s, length=512),
    "8 sequences": partial(all_tokens_per_s, count=8),
    "32 sequences": partial(all_tokens_per_s, count=MANY),
}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All works, A B A B."""
    with contextlib.ExitStack() as stack:

        def opened(**given: Any) -> LLM:
            own = {"num_threads": 2, "kv_cache_memory_bytes": 1 << 28, "max_model_len": 1024, "enable_prefix_caching": False}
            return stack.enter_context(LLM(arguments.model, **own, **given))

        engines = {"1 process": opened()} | {name: opened(**given) for name, (given, _) in SHAPES.items()}
        works = {}
        for name, (_, kinds) in SHAPES.items():
            for kind in kinds:
                works |= {f"{kind}, {one}": partial(WORKS[kind], engines[one]) for one in ("1 process", name)}
        values = interleave(works, arguments.rounds)
    ratios = {
        f"{name}, {kind}": summary([two / one for one, two in zip(values[f"{kind}, 1 process"], values[f"{kind}, {name}"], strict=True)])
        for name, (_, kinds) in SHAPES.items()
        for kind in kinds
    }
    return {
        "model": arguments.model,
        "tokens": TOKENS,
        "results": {name: summary(found) for name, found in values.items()},
        "ratios": ratios,
    }


def table_of(result: dict[str, Any]) -> str:
    """A row for each ratio."""
    rows = [f"| {name} | {ratio['median']:.2f} | {ratio['min']:.2f} to {ratio['max']:.2f} |" for name, ratio in result["ratios"].items()]
    return "\n".join(["| over one process of two threads | median | rounds |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct", help="a model by name, or a file")
    parser.add_argument("--rounds", type=int, default=5)
    sys.exit(report.main(parser, measure, table_of))
