"""llama.cpp's logits of given tokens, from an environment of its own that has llama-cpp-python.

    PEERS/bin/python benchmarks/peer_logits.py FILE.gguf CONTEXT THREADS

The first line of its output is JSON, "vocab_size" and what runs. Then for each line of its input, {"token_ids": [..], "first": 7,
"one_by_one": true}, come the fp32 rows after the tokens from `first` on. The tokens are one batch, or those up to `first` are and the
others come one after the other, as an answer is decoded. `benchmarks/fidelity.py --llama-python PEERS/bin/python` drives it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np


def rows(model: Any, token_ids: list[int], first: int, one_by_one: bool) -> Any:
    """float32 [len(token_ids) - first, vocab_size]: row i is after token first + i."""
    model.reset()
    begins = [0, *range(first + 1, len(token_ids))] if one_by_one else [0]
    for begin, end in zip(begins, [*begins[1:], len(token_ids)], strict=True):
        model.eval(token_ids[begin:end])
    return model.scores[first : len(token_ids)]


def serve(path: str, context: int, threads: int) -> None:
    """Answers until its input ends. All but the context, the threads and that logits are kept is llama-cpp-python's default."""
    import llama_cpp

    model = llama_cpp.Llama(path, n_ctx=context, n_threads=threads, n_threads_batch=threads, logits_all=True, verbose=False)
    facts = {
        "vocab_size": model.n_vocab(),
        "llama_cpp_python": llama_cpp.__version__,
        "system": llama_cpp.llama_print_system_info().decode(),
    }
    out = sys.stdout.buffer
    out.write(json.dumps(facts).encode() + b"\n")
    out.flush()
    for line in sys.stdin:
        for row in rows(model, **json.loads(line)):
            out.write(np.ascontiguousarray(row, np.float32).data)
        out.flush()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
