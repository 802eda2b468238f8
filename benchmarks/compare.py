"""llmi beside llama.cpp on the same GGUF file, interleaved in one run: medians and spread, as JSON.

    python benchmarks/compare.py --llama-bin DIR [--rounds 5] [--output benchmarks/results/NAME.json]

DIR holds llama-bench (built from the vendored source of llama-cpp-python, native flags). Without it llmi is measured alone.
`--readme FILE.json` writes the README's table from a result.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report

from llmi import LLM, _core, _models
from llmi._bench import interleave, own_works


def llama_bench(binary: Path, model: Path, threads: int, arguments: list[str]) -> float:
    """llama-bench's own average, one repetition."""
    command = [str(binary), "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json", *arguments]
    return float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[0]["avg_ts"])


def free_tokens(threads: int) -> float:
    """M*: tokens whose products ride on one pass over 4-bit weights larger than the cache: time of one token over the marginal time of one of 64."""
    sys.path.insert(0, str(report.ROOT / "tests"))
    from quantization import random_blocks

    rows, cols = 98_304, 1024
    testing = _core.testing
    matrix = testing.PackedMatrix("", "Q4_1", random_blocks("Q4_1", rows, cols), rows, cols)

    def seconds(num_rows: int) -> float:
        x = np.ones((num_rows, cols), np.float32)
        best = 1e9
        for _ in range(5):
            start = time.perf_counter()
            testing.linear("", [matrix], x, num_threads=threads)
            best = min(best, time.perf_counter() - start)
        return best

    one = seconds(1)
    return one / ((seconds(64) - one) / 63)


def first_token_seconds() -> float:
    """Process start of `llmi chat -p` to the first character on its output, model cached."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "llmi._cli", "chat", "-p", "Hello", "--max-tokens", "4"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        elapsed = time.perf_counter() - start
        process.stdout.read()
    return elapsed


def peak_memory(model: Path) -> dict[str, float]:
    """VmHWM after load minus before, and what it may be compared with, in MB; in a fresh process."""
    code = (
        "import sys, re; from llmi import LLM, Tokenizer; t = Tokenizer(sys.argv[1]); t.vocab_bytes; import llmi._core\n"
        "hwm = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read()).group(1)) / 1000\n"
        "before = hwm(); llm = LLM(sys.argv[1], tokenizer=t, kv_cache_memory_bytes=1 << 26); after = hwm()\n"
        "print(before, after, llm.model_info.weight_bytes / 1e6)"
    )
    before, after, weights = map(
        float, subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True).stdout.split()
    )
    return {
        "load_mb": after - before,
        "packed_weights_mb": weights,
        "kv_mb": (1 << 26) / 1e6,
        "ratio": (after - before) / (weights + (1 << 26) / 1e6),
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All works, A B A B."""
    model = _models.fetch("smollm2-135m-instruct")
    threads = arguments.threads or _core.system_info()["num_threads"]
    llm = LLM(model, num_threads=threads, kv_cache_memory_bytes=1 << 29, enable_prefix_caching=False)
    works: dict[str, Callable[[], float]] = {f"llmi {name}": work for name, work in own_works(llm).items()}
    works["read bandwidth GB/s"] = lambda: _core.measure_ceilings(threads, 1 << 30)["read_bytes_per_s"] / 1e9
    works["tokens riding free M*"] = lambda: free_tokens(threads)
    works["first token s"] = first_token_seconds
    if arguments.llama_bin:
        binary = Path(arguments.llama_bin) / "llama-bench"
        works["llama.cpp prefill 512"] = lambda: llama_bench(binary, model, threads, ["-p", "512", "-n", "0"])
        works["llama.cpp decode 1"] = lambda: llama_bench(binary, model, threads, ["-p", "0", "-n", "128"])
    results = interleave(works, arguments.rounds)
    median = {name: entry["median"] for name, entry in results.items()}
    free = median["tokens riding free M*"]
    ratios = {
        "decode 8 / (min(8, M*) x decode 1)": median["llmi decode 8"] / (min(8.0, free) * median["llmi decode 1"]),
        "decode 1, share of read bandwidth": median["llmi decode 1"] * llm._step_weight_bytes / 1e9 / median["read bandwidth GB/s"],
    }
    if arguments.llama_bin:
        ratios["prefill 512 / llama.cpp"] = median["llmi prefill 512"] / median["llama.cpp prefill 512"]
        ratios["decode 1 / llama.cpp"] = median["llmi decode 1"] / median["llama.cpp decode 1"]
    return {
        "model": model.name, "table": llm._table, "threads": threads,
        "results": results, "ratios": ratios, "memory": peak_memory(model),
    }  # fmt: skip


def readme_table(result: dict[str, Any]) -> str:
    """The README's table."""
    results = result["results"]

    def cell(name: str) -> str:
        return f"{results[name]['median']:,.0f}" if name in results else ""

    rows = [
        ("prefill, 512 tokens", cell("llmi prefill 512"), cell("llama.cpp prefill 512")),
        ("prefill, 2,048 tokens", cell("llmi prefill 2048"), ""),
        ("decode, 1 sequence", cell("llmi decode 1"), cell("llama.cpp decode 1")),
        ("decode, 8 sequences", cell("llmi decode 8"), ""),
        ("decode, 32 sequences", cell("llmi decode 32"), ""),
    ]
    lines = [
        f"Tokens a second, SmolLM2-135M (the Q4_1 file), {result['threads']} threads of {result['cpu']} ({result['table']}), medians of"
        f" {next(iter(results.values()))['rounds']} interleaved rounds (`benchmarks/compare.py`, commit {result['commit'][:10]}):",
        "",
        "| | llmi | llama.cpp, same file |",
        "| --- | --- | --- |",
        *(f"| {name} | {ours} | {theirs} |" for name, ours, theirs in rows),
        "",
        f"First token of `llmi chat -p` {results['first token s']['median']:.2f} s after process start; loading takes"
        f" {result['memory']['load_mb']:.0f} MB at its peak for {result['memory']['packed_weights_mb']:.0f} MB of packed weights.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-bin", help="folder with llama-bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    sys.exit(report.main(parser, measure, readme_table))
