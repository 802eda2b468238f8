"""A model's own smaller files as its draft model, beside the heads that llmi ships: `python benchmarks/small_drafts.py [--requests 12]`.

Files of SmolLM2 without some layers, or in 3 bits, draft four tokens for the whole file. Greedy answers to llmi's questions; tokens a second are
of one sequence, each drafter's answers in turn, and equal to those without drafts. "auto" chooses how many it drafts. One table for
docs/compression.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llmi
from llmi.compress import drop_layers, quantize
from llmi.models import by_name
from llmi.training.turns import turns

LENGTH = 4
FILES: dict[str, Callable[[Path, Path], Any]] = {
    "8 of 30 layers left out": lambda model, out: drop_layers(model, out, count=8),
    "16 of 30 layers left out": lambda model, out: drop_layers(model, out, count=16),
    "IQ4_NL": lambda model, out: quantize(model, out, type="IQ4_NL"),
    "Q3_K (IQ4_NL where 256 does not divide)": lambda model, out: quantize(model, out, like="Q3_K_M"),
}


def measured(llm: llmi.LLM, chats: list[Any], max_tokens: int, drafter: Any, want: list[list[int]] | None) -> dict[str, Any]:
    """Tokens a second of one sequence at a time, and what was accepted. Raises AssertionError: other tokens than without drafts."""
    params = llmi.SamplingParams(temperature=0, max_tokens=max_tokens)
    tokens, drafted, accepted, runs = [], 0, 0, 0
    begin = time.perf_counter()
    for chat in chats:
        output = llm.chat(chat, params, use_tqdm=False, speculative_config=drafter)[0].outputs[0]
        tokens.append(list(output.token_ids))
        if output.spec_decode_metrics is not None:
            drafted += output.spec_decode_metrics.num_draft_tokens
            accepted += output.spec_decode_metrics.num_accepted_tokens
            runs += output.spec_decode_metrics.num_drafts
    seconds = time.perf_counter() - begin
    assert want is None or tokens == want, "drafts change no token"
    return {
        "tokens": tokens,
        "rate": sum(map(len, tokens)) / seconds,
        "accepted": accepted / drafted if drafted else 0.0,
        "a_draft": accepted / runs if runs else 0.0,
    }


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=96)
    options = parser.parse_args()
    model = by_name.resolve(options.model)
    chats = [[{"role": "user", "content": turn.text}] for turn in turns(0, 0, 2 * options.requests) if turn.text][: options.requests]
    rows = []
    with tempfile.TemporaryDirectory() as folder, llmi.LLM(model, enable_prefix_caching=False) as llm:
        plain = measured(llm, chats, options.max_tokens, None, None)
        rows.append(("no drafts", model.stat().st_size, plain))
        rows.append(("`auto`: heads and tables that llmi ships", 0, measured(llm, chats, options.max_tokens, "auto", plain["tokens"])))
        for index, (name, make) in enumerate(FILES.items()):
            path = Path(folder) / f"{index}.gguf"
            make(model, path)
            drafter = llmi.DraftModel(path, enable_prefix_caching=False)
            config = llmi.SpeculativeConfig(drafter, LENGTH)
            rows.append((name, path.stat().st_size, measured(llm, chats, options.max_tokens, config, plain["tokens"])))
            drafter.llm.close()
    print(f"{options.requests} greedy answers of at most {options.max_tokens} tokens, {LENGTH} drafted at a time, one sequence:\n")
    print("| draft | MB | accepted | tokens of a draft | tokens a second over none |\n| --- | --- | --- | --- | --- |")
    for name, size, row in rows:
        told = f"{row['accepted']:.0%} | {row['a_draft']:.2f}" if row["a_draft"] else "|"
        print(f"| {name} | {size / 1e6:,.0f} | {told} | {row['rate'] / plain['rate']:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
