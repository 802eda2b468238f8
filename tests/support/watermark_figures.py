"""Watermarks on SmolLM2: how many of 100 marked texts of 200 tokens are detected, and whether the p-values of 1,000 plain texts are
uniform.

    python tests/support/watermark_figures.py [--marked 100] [--plain 1000] [--tokens 200] [--kinds KGW selfhash SynthID]

Every plain text is tested with a key of its own. A binomial p-value takes few values: where it jumps, a fixed random number places it
between the two tails, which makes it uniform under plain text. The statistic is Kolmogorov and Smirnov's, whose 1 % and 5 % points are 1.63
and 1.36 / sqrt(texts).
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import numpy as np

from llmi import LLM, SamplingParams
from llmi.watermark import KGW, SynthID
from llmi.watermark.evidence import binomial_tail

KINDS = ("KGW", "selfhash", "SynthID")
PROMPTS = [
    "Once upon a time",
    "The history of",
    "In this chapter we",
    "She opened the door and",
    "Dear Sir,",
    "The weather was",
    "A good recipe for",
    "Most people think",
]


def mark_of(kind: str, vocab_size: int, number: int, table_size: int = 2**16) -> Any:
    """The watermark of a kind, with the key of this number."""
    if kind == "SynthID":
        return SynthID(np.random.default_rng(number).integers(0, 2**31, 30), sampling_table_size=table_size)
    return KGW(
        vocab_size, hashing_key=15485863 + 2 * number, seeding_scheme="selfhash" if kind == "selfhash" else "lefthash", context_width=1
    )


def uniformity(kind: str, texts: list[list[int]], vocab_size: int, table_size: int = 2**16) -> tuple[list[float], float]:
    """A p-value for each plain text, and their Kolmogorov-Smirnov distance from the uniform law."""
    p_values = []
    coins = np.random.default_rng(12).random(len(texts))
    for number, text in enumerate(texts):
        mark = mark_of(kind, vocab_size, number, table_size)
        found = mark.detect(text)
        p_value = found.p_value
        if isinstance(mark, KGW):
            more = binomial_tail(found.num_green + 1, found.num_scored, int(vocab_size * mark.greenlist_ratio) / vocab_size)
            p_value = more + float(coins[number]) * (p_value - more)
        p_values.append(p_value)
    ranked, count = np.sort(p_values), len(p_values)
    above = np.arange(1, count + 1) / count - ranked
    below = ranked - np.arange(count) / count
    return p_values, float(max(above.max(), below.max()))


def texts_of(llm: LLM, count: int, length: int, **options: Any) -> list[list[int]]:
    params = [SamplingParams(temperature=1, max_tokens=length, ignore_eos=True, seed=seed, **options) for seed in range(count)]
    return [output.token_ids for output in llm.generate([PROMPTS[i % len(PROMPTS)] for i in range(count)], params, use_tqdm=False)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--marked", type=int, default=100)
    parser.add_argument("--plain", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["KGW", "SynthID"])
    options = parser.parse_args()
    fails = 0
    with LLM(kv_cache_memory_bytes=1 << 28, max_model_len=512) as llm:
        vocab_size = llm.model_info.vocab_size
        for kind in options.kinds if options.marked else ():
            mark = mark_of(kind, vocab_size, 0)
            found = [mark.detect(text) for text in texts_of(llm, options.marked, options.tokens, logits_processors=[mark])]
            detected = sum(detection.p_value < 1e-6 for detection in found)
            least = min(detection.z for detection in found)
            print(f"{kind}: {detected} of {options.marked} texts of {options.tokens} tokens with p < 1e-6; least z {least:.1f}", flush=True)
            fails += detected < 0.95 * options.marked
        plain = texts_of(llm, options.plain, options.tokens)
    for kind in options.kinds if options.plain else ():
        p_values, distance = uniformity(kind, plain, vocab_size)
        limit = 1.63 / math.sqrt(options.plain)
        print(
            f"{kind}: {options.plain} plain texts, distance from uniform {distance:.4f} (1 % point {limit:.4f}), least p {min(p_values):.2g}",
            flush=True,
        )
        fails += distance > limit
    return 1 if fails else 0


if __name__ == "__main__":
    sys.exit(main())
