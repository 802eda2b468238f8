"""What small heads are worth: steps of rows whose masks allow few tokens, with small heads and without, interleaved.

    python benchmarks/small_heads.py [--model NAME ..] [--rounds 7] [--sequences 1 8] [--threads N] [--output FILE.json]

Each size of mask is a set of ids anywhere in the vocabulary, which is the most tiles that it can need, another set for each sequence. A
speed-up is the time of a step of the whole head over that of a step of small heads, both at the lower decile of a batch's steps, which a
busy machine moves least; the median over the rounds; `geometric_mean` is over the sizes up to 256 tokens. `same` has masks that all
sequences share, and `tiles` masks of one token in each of a share of the tiles, up to the largest small head.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import numpy as np
import report

from llmi import LLM, SamplingParams

SIZES = (1, 2, 4, 16, 64, 256)
STEPS = 40
TILE = 16


def masks_of(llm: LLM, count: int) -> dict[str, list[list[int]]]:
    """By name: one mask for each sequence."""
    vocab_size = llm.model_info.vocab_size
    rng = np.random.default_rng(1)
    masks = {str(size): [rng.choice(vocab_size, size, replace=False).tolist() for _ in range(count)] for size in SIZES}
    masks["same 64"] = masks["64"][:1] * count
    num_tiles = -(-vocab_size // TILE)
    for share in (16, 4):
        masks[f"tiles / {share}"] = [
            (rng.choice(num_tiles - 1, num_tiles // share, replace=False) * TILE + 3).tolist() for _ in range(count)
        ]
    return masks


def step_seconds(llm: LLM, masks: list[list[int]]) -> float:
    """The lower decile of the steps of one batch."""
    params = [
        SamplingParams(temperature=1.0, seed=i, max_tokens=STEPS, ignore_eos=True, detokenize=False, allowed_token_ids=mask)
        for i, mask in enumerate(masks)
    ]
    outs = llm.generate([[1 + i, 7, 9, 11] for i in range(len(masks))], params, use_tqdm=False)
    return float(np.quantile(outs[-1].metrics.inter_token_latencies_s[4:], 0.1))


def open_both(model: str, num_threads: int | None) -> dict[bool, LLM]:
    engines = {}
    for small in (True, False):
        os.environ["LLMI_SMALL_HEADS"] = str(int(small))
        engines[small] = LLM(model, kv_cache_memory_bytes=1 << 27, max_model_len=256, num_threads=num_threads)
    return engines


def measure(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    engines = open_both(model, arguments.threads)
    entries: dict[str, Any] = {}
    for count in arguments.sequences:
        masks = masks_of(engines[True], count)
        seconds: dict[str, dict[bool, list[float]]] = {name: {True: [], False: []} for name in masks}
        for number in range(arguments.rounds):
            for name, mask in masks.items():
                for small in (True, False) if number % 2 else (False, True):
                    seconds[name][small].append(step_seconds(engines[small], mask))
        found = {}
        for name, lists in seconds.items():
            ratios = np.array(lists[False]) / np.array(lists[True])
            found[name] = {
                "speedup": float(np.median(ratios)),
                "min": float(ratios.min()),
                "max": float(ratios.max()),
                "whole_s": float(np.median(lists[False])),
            }
        mean = float(np.exp(np.mean([np.log(found[str(size)]["speedup"]) for size in SIZES])))
        entries[str(count)] = {"geometric_mean": mean, "masks": found}
        print(model, count, entries[str(count)], flush=True)
    table = engines[True]._table
    for llm in engines.values():
        llm.close()
    return {"table": table, "sequences": entries}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "rounds": arguments.rounds,
        "threads": arguments.threads,
        "models": {model: measure(model, arguments) for model in arguments.model},
    }


def table(result: dict[str, Any]) -> str:
    """A line for each model and number of sequences."""
    names = next(iter(next(iter(result["models"].values()))["sequences"].values()))["masks"]
    lines = ["| model | sequences | " + " | ".join(names) + " | mean |", "|" + " --- |" * (len(names) + 3)]
    for model, entry in result["models"].items():
        for count, found in entry["sequences"].items():
            cells = [f"{found['masks'][name]['speedup']:.2f}" for name in names]
            lines.append(f"| {model} | {count} | " + " | ".join(cells) + f" | {found['geometric_mean']:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["smollm2-135m-instruct", "gemma-3-270m"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="of the CPU; all if left out")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8])
    sys.exit(report.main(parser, run, table))
