"""What 16-bit activations cost: the same work with 8 and 16 bits, interleaved, and a single layer in both modes, as JSON.

    [LLMI_ISA=avx2] python benchmarks/precision_speed.py [--model FILE.gguf ..] [--rounds 7] [--output benchmarks/results/NAME.json]

Ratios are times with 16 bits over times with 8: the median of rounds, each of which runs both modes. Decode of one sequence is also
measured in short turns of a few steps: bandwidth, 8 bits, 16, 8, bandwidth; turns are sorted by whether both reads of 256 MB gave less
than --far-gb-s (two threads that share one link to memory: near) or more (each has its own: far). A layer alone has 98,304 outputs, so
that its weights come from memory, or 4,096, which stay in the cache. Without --model: SmolLM2-135M and Gemma 3 270M.
`--readme FILE.json` writes the table in docs/results.md; `benchmarks/fidelity.py --readme FIDELITY.json FILE.json` that in docs/precision.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import report
from compare import random_matrix

from llmi import LLM, _core
from llmi.cli.bench import decode_tokens_per_s, interleave, prefill_tokens_per_s, summary
from llmi.models import by_name

MODELS = ("smollm2-135m-instruct", "gemma-3-270m")
BITS = (8, 16)
WORKS: dict[str, Callable[[LLM], float]] = {
    "decode 1": lambda llm: decode_tokens_per_s(llm, 1, 64, 128),
    "decode 8": lambda llm: decode_tokens_per_s(llm, 8, 32),
    "decode 32": lambda llm: decode_tokens_per_s(llm, 32, 32),
    "prefill 512": lambda llm: prefill_tokens_per_s(llm, 512),
}
LAYER_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K")
LAYER_ROWS = (1, 2, 8, 48)
LAYERS = {"memory": (98_304, 1024), "cache": (4096, 1024)}
READ_BYTES = 1 << 28
STEPS = 9  # of a turn: eight steps are timed


def turns_of_one(engines: dict[int, LLM], threads: int, turns: int, far_gb_s: float) -> dict[str, Any]:
    """Decode of one sequence in turns of a second: time of 16 bits over that of 8 before and after it, for turns with near and far
    threads."""
    probe = _core.ReadProbe(threads, READ_BYTES)
    seen: list[tuple[float, float, float]] = []
    for _ in range(turns):
        before = probe.bytes_per_s() / 1e9
        first, wide, last = (decode_tokens_per_s(engines[bits], 1, STEPS) for bits in (8, 16, 8))
        seen.append((before, probe.bytes_per_s() / 1e9, (first + last) / 2 / wide))
    result: dict[str, Any] = {"turns": [[float(f"{value:.4g}") for value in turn] for turn in seen]}
    for name, chosen in (
        ("near", [ratio for before, after, ratio in seen if max(before, after) < far_gb_s]),
        ("far", [ratio for before, after, ratio in seen if min(before, after) >= far_gb_s]),
        ("all", [ratio for *_, ratio in seen]),
    ):
        if chosen:
            result[name] = summary(chosen)
    return result


def of_model(model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of each work in both modes, and ratios."""
    options: dict[str, Any] = {"num_threads": arguments.threads, "kv_cache_memory_bytes": 1 << 28, "enable_prefix_caching": False}
    engines = {bits: LLM(model, activation_bits=bits, **options) for bits in BITS}
    works = {f"{bits} bits: {name}": partial(work, llm) for name, work in WORKS.items() for bits, llm in engines.items()}
    for work in works.values():
        work()  # the first time, buffers are made
    values = interleave(works, arguments.rounds)
    ratios = {
        name: summary([narrow / wide for narrow, wide in zip(values[f"8 bits: {name}"], values[f"16 bits: {name}"], strict=True)])
        for name in WORKS
    }
    turns = turns_of_one(engines, arguments.threads, arguments.turns, arguments.far_gb_s)
    kernels = engines[8]._table
    for llm in engines.values():
        llm.close()
    return {
        "table": kernels,
        "results": {name: summary(entries) for name, entries in values.items()},
        "time over 8 bits": ratios,
        "decode 1, interleaved": turns,
    }


def layer_alone(kind: str, outputs: int, cols: int, threads: int, rounds: int) -> dict[str, Any]:
    """One layer with the conversion of its input: microseconds by rows of input in both modes, and the ratio of interleaved runs."""
    matrix = random_matrix(kind, outputs, cols)
    result: dict[str, Any] = {}
    for rows in LAYER_ROWS:
        x = np.random.default_rng(0).standard_normal((rows, cols)).astype(np.float32)
        times: dict[int, list[float]] = {bits: [] for bits in BITS}
        for turn in range(rounds + 1):
            for bits in BITS:
                start = time.perf_counter()
                _core.testing.linear("", [matrix], x, num_threads=threads, bits=bits)
                if turn:  # the first is to warm up
                    times[bits].append(time.perf_counter() - start)
        ratio = statistics.median(wide / narrow for narrow, wide in zip(times[8], times[16], strict=True))
        result[str(rows)] = {f"{bits} bits, us": round(1e6 * statistics.median(entries), 1) for bits, entries in times.items()} | {
            "time over 8 bits": ratio
        }
    return result


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    models = arguments.model or [by_name.fetch(name) for name in MODELS]
    arguments.threads = arguments.threads or _core.system_info()["num_threads"]
    layers = {
        place: {kind: layer_alone(kind, *shape, arguments.threads, 3 * arguments.rounds) for kind in LAYER_TYPES}
        for place, shape in LAYERS.items()
    }
    speeds = {model.name: of_model(model, arguments) for model in models}
    return {
        "table": next(iter(speeds.values()))["table"],
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "speeds": speeds,
        "layer alone": layers,
    }


def table(result: dict[str, Any]) -> str:
    """Time with 16 bits over time with 8: of each model's steps, and of a layer alone by its type and rows of input."""
    models = {name.split(".Q")[0].removesuffix(".gguf"): entry for name, entry in result["speeds"].items()}
    lines = [
        f"| time of 16 bits over 8, {result['table']}, {result['threads']} threads | {' | '.join(models)} |",
        "|" + " --- |" * (len(models) + 1),
    ]
    for place in ("near", "far"):
        found = [entry["decode 1, interleaved"].get(place) for entry in models.values()]
        cells = [f"{of['median']:.2f} ({of['rounds']} turns)" if of else "" for of in found]
        lines.append(f"| decode 1, threads {place} | {' | '.join(cells)} |")
    for work in WORKS:
        cells = ["{median:.2f} ({min:.2f} to {max:.2f})".format(**entry["time over 8 bits"][work]) for entry in models.values()]
        lines.append(f"| {work} | {' | '.join(cells)} |")
    lines += [
        "",
        f"| a layer alone, time of 16 bits over 8 | {' | '.join(f'{place}: {rows}' for place in LAYERS for rows in LAYER_ROWS)} |",
    ]
    lines.append("|" + " --- |" * (len(LAYERS) * len(LAYER_ROWS) + 1))
    for kind in LAYER_TYPES:
        cells = [f"{result['layer alone'][place][kind][str(rows)]['time over 8 bits']:.2f}" for place in LAYERS for rows in LAYER_ROWS]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, nargs="+", help=".gguf files")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=48, help="of decode of one, each about a tenth of a second")
    parser.add_argument("--far-gb-s", type=float, default=45.0, help="read bandwidth from which the threads have a link each")
    parser.add_argument("--threads", type=int)
    sys.exit(report.main(parser, run, table, partial(report.by_processor, "precision_speed")))
