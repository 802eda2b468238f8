"""`llmi simulate`: what a trace would take."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from llmi.cli.bench_serve import bounds_of
from llmi.cli.console import show
from llmi.errors import InvalidParamsError


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi simulate`."""
    unset: dict[str, Any] = {"default": argparse.SUPPRESS}
    parser.add_argument("trace", metavar="TRACE", type=Path, help="JSONL as `llmi bench serve --trace` reads it, with input_length")
    parser.add_argument(
        "--replay", action="store_true", help="TRACE is a file of LLM.record_steps: does the scheduler choose the same? (exit code 1: no)"
    )
    parser.add_argument("-m", "--model", help="a model or, with --costs, a config.json", **unset)
    parser.add_argument(
        "--policy", default="llmi", help="a scheduling policy, a published system (docs/simulator.md), or a .py file of yours"
    )
    parser.add_argument("--costs", metavar="FILE", help="from `llmi bench --costs`, or a shipped name (default: measured here)", **unset)
    parser.add_argument("--replicas", type=int, default=1, help="engines")
    parser.add_argument("--prefill-replicas", type=int, default=0, help="of them, those that compute prompts for the others")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="ranks of each engine; the costs have their rank_link")
    parser.add_argument("--max-num-seqs", type=int, default=256, help="most sequences in a step")
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048, help="most tokens in a step")
    parser.add_argument("--kv-cache-memory-bytes", type=int, help="of each engine's cache; needed with --costs", **unset)
    parser.add_argument("--goodput", nargs="+", metavar="NAME:MS", help="bounds for goodput: ttft:1000 tpot:100 e2el:5000", **unset)
    parser.add_argument("--output", metavar="FILE", type=Path, help="write the requests here, as CSV", **unset)


def simulate_command(arguments: argparse.Namespace) -> int:
    """Runs it."""
    if arguments.replay:
        from llmi.simulation.recording import replay

        found = replay(arguments.trace)
        show(str(found))
        return 1 if found.difference else 0
    from llmi.simulation.run import simulate

    result = simulate(
        arguments.trace,
        model=getattr(arguments, "model", None),
        policy=arguments.policy,
        costs=getattr(arguments, "costs", None),
        replicas=arguments.replicas,
        prefill_replicas=arguments.prefill_replicas,
        tensor_parallel_size=arguments.tensor_parallel_size,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        kv_cache_memory_bytes=getattr(arguments, "kv_cache_memory_bytes", None),
        slo=bounds_of(arguments.goodput) if hasattr(arguments, "goodput") else None,
    )
    show(str(result))
    if hasattr(arguments, "output"):
        names = list(result.requests)
        lines = [",".join(names)] + [
            ",".join(map(str, row)) for row in zip(*(result.requests[name].tolist() for name in names), strict=True)
        ]
        try:
            arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidParamsError(f"--output: {arguments.output} cannot be written: {error.strerror}", "output") from None
    return 0
