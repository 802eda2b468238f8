"""python -m llmi.testing: checks in about a minute that this machine, and this build of llmi, compute the promised bits.

For each kernel table of the processor: SHA-256 digests of the default model's logits beside those that every build must give, one prompt
alone and in a batch, and the answer to a question. Exits with 1 where one differs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

from llmi import LLM, SamplingParams, _core
from llmi.errors import LlmiError

#: LLM's arguments, and the digests of the logits after 40 tokens and after 5 (tests/data/logits_digests.json).
CASES: dict[str, tuple[dict[str, Any], dict[int, str]]] = {
    "defaults": (
        {},
        {
            40: "99a2828cec47f424032cd66292f8e40cdd06dd99cd8827ac3c930aa5418c535d",
            5: "b3e94792906b6655bc6a9f16532d8deea7261713f4279b0e61455f5208dab31d",
        },
    ),
    "activation_bits=8": (
        {"activation_bits": 8},
        {
            40: "c76c7a43653133ab7a6e7a0eefe2e7df3d071dff69483191efb5dd76ceaf655d",
            5: "d801b6de19268ff8f837c35155646820cfefbc01f86d3a28a9e0a9b60d7fee6a",
        },
    ),
    "dtype=float32": (
        {"dtype": "float32"},
        {
            40: "ab4d0828b206a8e87ddffacc3418d2190d59a91ba52200ff75d5f7d37e52e126",
            5: "631b18d77b5ba529abfb22472d86b1ddc5f0a6b7ce3147510247d5de4d78071d",
        },
    ),
    "dtype=bfloat16": (
        {"dtype": "bfloat16"},
        {
            40: "d71c6aa6e23152cf829cb43f30192060e6ee156a6eeaf82b9ef6aa51e47a6b49",
            5: "7b5f6151c4b8d00e9b64593f8b04de916cc11f76c4704a165198afc39f100394",
        },
    ),
    "activation_bits=8, bf16 cache": (
        {"activation_bits": 8, "kv_cache_dtype": "bfloat16"},
        {
            40: "b76a28d3a204c41a59083b3ebeb5a2c7a041d8ed48db44884e44fb3bbb962bb8",
            5: "26b16ba6b6fe5df385fecb60677224d49e9d2734c9f96e92dab67f194ad9f2eb",
        },
    ),
    "bf16 products": (
        {"dtype": "bfloat16", "linear_dtype": "bf16"},
        {
            40: "6266925afa3a40a614cd6c55322580152d9f000638d1ce3f8cc0988ab3b79aff",
            5: "37a0cdcd4e207120c71fe06be57ad0c4ec9ec3d4afc005c86662fca495dd37db",
        },
    ),
}
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
_FEW = 5  # tokens of the reference table, which is slow


def token_ids(count: int, vocab_size: int) -> list[int]:
    """The tokens whose logits have digests."""
    ids: list[int] = np.random.default_rng(0).integers(1, vocab_size, count).tolist()
    return ids


def digest(llm: LLM, count: int) -> str:
    """SHA-256 of the logits after each of `count` tokens."""
    ids = token_ids(count, llm.model_info.vocab_size)
    with llm.sequence(ids[:1]) as sequence:
        rows = np.concatenate([sequence.logits[None], sequence.extend(ids[1:])])
    return hashlib.sha256(rows.tobytes()).hexdigest()


def check_table() -> list[str]:
    """What is wrong on the table of LLMI_ISA; prints what it does."""
    wrong = []
    few = _core.selected_table() == "reference"
    for name, (arguments, known) in CASES.items():
        count = _FEW if few else max(known)
        with LLM(kv_cache_memory_bytes=1 << 27, max_model_len=512, **arguments) as llm:
            if digest(llm, count) != known[count]:
                wrong.append(f"logits, {name}")
            if arguments or few:
                continue
            params = SamplingParams(temperature=0.8, seed=7, max_tokens=16, logprobs=1)
            prompts = ["The capital of France is", "Once upon a time", "def add(a, b):"]
            if llm.generate(prompts, params) != [llm.generate(prompt, params)[0] for prompt in prompts]:
                wrong.append("a batch and its prompts alone")
            if llm.chat(QUESTION, temperature=0)[0].text != ANSWER:
                wrong.append(f"the answer to {QUESTION!r}")
    print(f"{len(CASES)} settings: {', '.join(wrong) + ' DIFFER' if wrong else 'equal'}", flush=True)
    return wrong


def main() -> int:
    """Runs the check of each table in a process of its own."""
    start, failed = time.monotonic(), []
    for table in _core.system_info()["tables"]:
        print(f"{table:12} ", end="", flush=True)
        environment = {**os.environ, "LLMI_ISA": table}
        if subprocess.run([sys.executable, "-m", "llmi.testing", "--table"], env=environment, check=False).returncode:
            failed.append(table)
    took = f"{time.monotonic() - start:.0f} s"
    print(f"not the promised bits on {', '.join(failed)}: report `llmi doctor` with this" if failed else f"the promised bits, in {took}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(bool(check_table()) if sys.argv[1:] == ["--table"] else main())
    except LlmiError as error:
        sys.exit(str(error))
