"""What a step of decoding gives a device, and the host's time for it, without a GPU.

    python benchmarks/device_steps.py [--steps 1000] [--output FILE.json]

Engines run on the null device, which keeps memory and runs no kernel, so a step takes the host's time alone: to schedule, plan, upload,
launch, take tokens and emit them, but not CUDA's own calls. Counts are those of a step in the middle of an answer, when its layers are
recorded. Random weights in the shapes of SmolLM2-135M and of 4 layers of Qwen3 0.6B.

Which bytes of weights a step reads is counted by the emulation, on a tiny model: kernels name them where they read them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import report
from gpu import QWEN_06B

from llmi import LLM, SamplingParams, _core
from llmi.testing import tiny_model

SMOLLM2 = {
    "hidden_size": 576, "num_layers": 30, "vocab_size": 49_152, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "intermediate_size": 1536, "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {"SmolLM2-135M": SMOLLM2, "Qwen 0.6B shape, 4 of its 28 layers": QWEN_06B | {"num_layers": 4}}
TINY = {
    "hidden_size": 128, "num_layers": 2, "vocab_size": 272, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
    "intermediate_size": 128, "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
#: Linear layers in 4 bits, and in 16 in the CPU's order of sums and on tensor cores.
ENGINES: dict[str, dict[str, Any]] = {
    "4 bits": {"quantization": "q4_0"},
    "bf16": {"dtype": "bfloat16", "linear_dtype": "float32"},
    "bf16 on tensor cores": {"dtype": "bfloat16"},
}


@contextmanager
def null_devices() -> Iterator[None]:
    """Emulated devices that are opened inside run no kernel."""
    _core.testing.open_null_devices(True)
    try:
        yield
    finally:
        _core.testing.open_null_devices(False)


def decode(llm: LLM, num_sequences: int, num_tokens: int, **changes: Any) -> list[float]:
    """Generates `num_tokens` for each prompt; returns the seconds between the tokens of the first one."""
    params = SamplingParams(**{"temperature": 0.6, "seed": 1, "ignore_eos": True, "max_tokens": num_tokens, "detokenize": False} | changes)
    prompts = [[5 + i % 97, 6, 7] for i in range(num_sequences)]
    return llm.generate(prompts, params, use_tqdm=False)[0].metrics.inter_token_latencies_s.tolist()


def counts_a_step(llm: LLM, num_sequences: int, num_steps: int = 16, **changes: Any) -> dict[str, Any]:
    """What one step of decoding so many sequences gives the device: the difference of answers of which one is num_steps longer."""
    work = []
    for num_tokens in (2 * num_steps, 2 * num_steps, 2 * num_steps, num_steps, 2 * num_steps):  # the first three only record
        decode(llm, num_sequences, num_tokens, **changes)
        work.append(_core.testing.device_work())
    shorter, longer = (_difference(work[i], work[i - 1]) for i in (3, 4))
    return {name: value / num_steps for name, value in _difference(longer, shorter).items()}


def _difference(after: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, float]:
    flat = [{**counts, **{f"{kernel} launches": n for kernel, n in counts.get("kernels", {}).items()}} for counts in (after, before)]
    for counts in flat:
        counts.pop("kernels", None)
    return {name: value - flat[1].get(name, 0) for name, value in flat[0].items() if value != flat[1].get(name, 0)}


def step_seconds(llm: LLM, num_sequences: int, num_steps: int) -> dict[str, float]:
    decode(llm, num_sequences, 8)
    seconds = np.array(decode(llm, num_sequences, num_steps + 1)) * 1e6
    return {"median us": round(float(np.median(seconds)), 1), "least us": round(float(seconds.min()), 1)}


def num_weights(shape: dict[str, Any]) -> int:
    """Of the matrices that a step multiplies with: the layers', and the head."""
    hidden, query = shape["hidden_size"], shape["num_attention_heads"] * shape["head_dim"]
    key_value = 2 * shape["num_key_value_heads"] * shape["head_dim"]
    layer = hidden * (2 * query + key_value + 3 * shape["intermediate_size"])
    return int(shape["num_layers"] * layer + shape["vocab_size"] * hidden)


def streamed_over_stored(shape: dict[str, Any], counts: dict[str, float], engine: dict[str, Any]) -> float:
    """How often a step reads each byte of the matrices."""
    return counts["streamed_bytes"] / (num_weights(shape) * (18 / 32 if "quantization" in engine else 2))


def measure(path: Path, engine: dict[str, Any], num_steps: int) -> dict[str, Any]:
    options: dict[str, Any] = {"max_model_len": num_steps + 64, "max_num_seqs": 256, "kv_cache_memory_bytes": 1 << 34}
    with LLM(path, device="cuda", enable_prefix_caching=False, **options, **engine) as llm:
        result: dict[str, Any] = {f"a step of {n}": counts_a_step(llm, n) for n in (1, 32)}
        result |= {f"host, a step of {n}": step_seconds(llm, n, num_steps) for n in (1, 256)}
    return result


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    os.environ["LLMI_EMULATE_CUDA"] = "1"
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, null_devices():
        for name, shape in SHAPES.items():
            path = tiny_model(path=Path(scratch) / "model", **shape)
            for kind, engine in ENGINES.items():
                measured[f"{name}, {kind}"] = {"layers": shape["num_layers"], **measure(path, engine, arguments.steps)}
    streamed: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = tiny_model(path=scratch, **TINY)
        for kind, engine in ENGINES.items():
            with LLM(path, device="cuda", enable_prefix_caching=False, kv_cache_memory_bytes=1 << 22, **engine) as llm:
                streamed[kind] = {f"{n} rows": streamed_over_stored(TINY, counts_a_step(llm, n, 4), engine) for n in (1, 32)}
    return {"steps": arguments.steps, "measured": measured, "weights streamed over stored": streamed}


def table(result: dict[str, Any]) -> str:
    lines = []
    for name, entry in result["measured"].items():
        lines.append(name)
        for work, figures in entry.items():
            if isinstance(figures, dict):
                lines.append(f"  {work}: " + ", ".join(f"{figure} {value:g}" for figure, value in figures.items()))
    lines.append(f"weights streamed over stored: {result['weights streamed over stored']}")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    sys.exit(report.main(parser, run, table))
