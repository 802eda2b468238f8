"""What samplers add to a step of 32 sequences at temperature 1: each one on and off, interleaved; a step with it over one without.

    python benchmarks/samplers.py [--rounds 7] [--sequences 32] [--history 2048] [--only NAME ..] [--output FILE.json]

Stateless samplers have prompts of 16 tokens; those that look at the sequence have --history tokens before them, and so has the plain
sampling that they are compared with. `--readme FILE.json` writes the table of docs/results.md from a result.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import report

from llmi import LLM, SamplingParams

STATELESS: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.9},
    "epsilon_cutoff": {"epsilon_cutoff": 3e-4},
    "eta_cutoff": {"eta_cutoff": 3e-4},
    "top_h": {"top_h": 0.4},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "p_less": {"p_less": True},
    "xtc_probability": {"xtc_probability": 0.5},
    "dynatemp_range": {"dynatemp_range": 0.5},
}
STATEFUL: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1},
    "dry_multiplier": {"dry_multiplier": 0.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 3},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
    "adaptive_p": {"adaptive_p": 0.3},
}
STEPS = 48


def prompts_of(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Tokens as uneven as words are, so that histories repeat themselves; half of each prompt is a passage that comes again."""
    prompts = []
    for index in range(count):
        rng = np.random.default_rng(index)
        ids = (100 + rng.zipf(1.3, length)) % (vocab_size - 100)
        ids[length // 2 + length // 4 :] = ids[: length - length // 2 - length // 4]
        prompts.append(ids.tolist())
    return prompts


def step_seconds(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    """Median over the steps of one batch."""
    outs = llm.generate(prompts, params, use_tqdm=False)
    return float(np.median(outs[-1].metrics.inter_token_latencies_s[4:]))


def ratios_of(llm: LLM, prompts: list[list[int]], samplers: dict[str, dict[str, Any]], rounds: int) -> dict[str, dict[str, Any]]:
    """Each sampler beside plain sampling, in each round in the other order."""
    plain = SamplingParams(temperature=1, seed=1, max_tokens=STEPS, ignore_eos=True)
    step_seconds(llm, prompts, plain)  # the prompts are in the prefix cache now
    found: dict[str, dict[str, list[float]]] = {name: {"ratio": [], "plain_s": []} for name in samplers}
    for number in range(rounds):
        for name, fields in samplers.items():
            pair = {False: plain, True: plain.replace(**fields)}
            seconds = {on: step_seconds(llm, prompts, pair[on]) for on in ((False, True) if number % 2 else (True, False))}
            found[name]["ratio"].append(seconds[True] / seconds[False])
            found[name]["plain_s"].append(seconds[False])
    entries = {}
    for name, lists in found.items():
        entries[name] = {
            "fields": samplers[name],
            "added": float(np.median(lists["ratio"])) - 1,
            "plain_s": float(np.median(lists["plain_s"])),
        }
        entries[name] |= {"min": min(lists["ratio"]) - 1, "max": max(lists["ratio"]) - 1}
        print(name, entries[name], flush=True)
    return entries


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    names = arguments.only or [*STATELESS, *STATEFUL]
    if unknown := set(names) - {*STATELESS, *STATEFUL}:
        raise SystemExit(f"--only knows {', '.join([*STATELESS, *STATEFUL])}, not {', '.join(sorted(unknown))}")
    result: dict[str, Any] = {"rounds": arguments.rounds, "sequences": arguments.sequences, "history": arguments.history}
    longest = arguments.history + STEPS + 16
    with LLM(kv_cache_memory_bytes=arguments.sequences * longest * 24_000, max_model_len=longest) as llm:
        result["table"] = llm._table
        for kind, samplers, length in (("stateless", STATELESS, 16), ("stateful", STATEFUL, arguments.history)):
            chosen = {name: fields for name, fields in samplers.items() if name in names}
            if chosen:
                prompts = prompts_of(arguments.sequences, length, llm.model_info.vocab_size)
                result[kind] = ratios_of(llm, prompts, chosen, arguments.rounds)
    return result


def table(result: dict[str, Any]) -> str:
    """One sentence for each kind, the dearest first."""
    lines = [
        f"Time that a sampler adds to a step of {result['sequences']} sequences at T = 1 (`benchmarks/samplers.py`, commit {result['commit'][:10]}):"
    ]
    for kind, words in (("stateless", "without history"), ("stateful", f"with {result['history']:,} tokens of history")):
        ranked = sorted(result.get(kind, {}).items(), key=lambda item: -item[1]["added"])
        if ranked:
            lines.append(f"- {words}: " + ", ".join(f"`{name}` {entry['added']:.1%}" for name, entry in ranked) + ".")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--history", type=int, default=2048)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    sys.exit(report.main(parser, run, table))
