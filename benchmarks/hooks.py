"""What Python in the step costs: hooks of 32 sequences off and on, interleaved; a step with them over one without.

    python benchmarks/hooks.py [--rounds 7] [--sequences 32] [--output FILE.json]

`--readme FILE.json` writes the sentence in docs/speed.md from a result.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import report

from llmi import LLM, SamplingParams


def no_end_of_text(context: Any, logits: Any) -> None:
    """A processor that writes one logit in place."""
    logits[0] = -np.inf


def never(context: Any) -> bool:
    """A criterion that looks at what was written so far."""
    return len(context.output_text) > 10**6


class NoEndOfText:
    """A batch processor: all rows at once."""

    def apply(self, contexts: Any, logits: Any) -> None:
        """The same as no_end_of_text, in one statement."""
        logits[:, 0] = -np.inf


def step_seconds(llm: LLM, num_sequences: int, params: SamplingParams) -> float:
    """Median over the steps of one batch."""
    prompts = [[100 + 7 * index + i for i in range(16)] for index in range(num_sequences)]
    out = llm.generate(prompts, params, use_tqdm=False)[0]
    return float(np.median(out.metrics.inter_token_latencies_s[4:]))


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    hooks: dict[str, dict[str, Any]] = {
        "logits processor": {"logits_processors": [no_end_of_text]},
        "stopping criterion": {"stopping_criteria": [never]},
        "batch processor": {},
    }
    result: dict[str, Any] = {"rounds": arguments.rounds, "sequences": arguments.sequences, "over": {}}
    with (
        LLM(kv_cache_memory_bytes=1 << 28, max_model_len=256) as plain,
        LLM(kv_cache_memory_bytes=1 << 28, max_model_len=256, batch_processors=[NoEndOfText()]) as batched,
    ):
        for temperature in (0.0, 1.0):
            params = SamplingParams(temperature=temperature, seed=1, max_tokens=40, ignore_eos=True)
            ratios: dict[str, list[float]] = {name: [] for name in hooks}
            for number in range(arguments.rounds):
                for name, options in hooks.items():
                    llm = plain if options else batched
                    pair = [(plain, params), (llm, params.replace(**options))]
                    seconds = {on: step_seconds(pair[on][0], arguments.sequences, pair[on][1]) for on in ((0, 1) if number % 2 else (1, 0))}
                    ratios[name].append(seconds[1] / seconds[0])
            for name, values in ratios.items():
                entry = {"ratio": float(np.median(values)), "min": min(values), "max": max(values)}
                result["over"][f"{name}, T = {temperature:g}"] = entry
                print(name, temperature, entry, flush=True)
    return result


def table(result: dict[str, Any]) -> str:
    """One sentence."""
    costs = "; ".join(f"{name}: {max(entry['ratio'] - 1, 0):.0%}" for name, entry in result["over"].items())
    return f"Overhead of a Python hook per step, {result['sequences']} sequences (`benchmarks/hooks.py`): {costs}."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sequences", type=int, default=32)
    sys.exit(report.main(parser, run, table))
