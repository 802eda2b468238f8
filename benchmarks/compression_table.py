"""What each method of compression costs, in one table: `python benchmarks/compression_table.py [MODEL ..] [--rows NAME ..] [--tokens 2048]`.

A model is a GGUF file, a name, or "tiny": a random one of Qwen's family with biases, which is neither Llama nor Gemma. Where a rotation knows the
graph, the base is the rotated file in fp16, off every grid; else it is the file itself, and the table says what it is quantised to. The text is
llmi's own, in windows of 512 tokens, second halves scored; calibrations are on 10,240 tokens that the base writes. A row that a graph does not
allow holds the first words of the refusal. Markdown for docs/compression.md.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llmi import LLM, LlmiError
from llmi.compress import Calibration, calibrate, drop_layers, evaluate_all, pool_heads, prune, quantize, rotate
from llmi.compress.gguf_file import GgufSource
from llmi.compress.texts import judged_text
from llmi.models import by_name
from llmi.testing import tiny_model


class Made(NamedTuple):
    """What the rows are made of."""

    base: Path
    sums: Calibration


def of(**settings: Any) -> Callable[[Made, Path], Any]:
    """A row that `quantize` makes; `calibrated` gives it the calibration."""
    calibrated = settings.pop("calibrated", False)
    return lambda made, out: quantize(made.base, out, **settings, calibration=made.sums if calibrated else None)


ROWS: dict[str, Callable[[Made, Path], Any]] = {
    "Q8_0 absmax": of(type="Q8_0", method="absmax"),
    "Q4_0 absmax": of(type="Q4_0", method="absmax"),
    "Q4_0 search": of(type="Q4_0"),
    "Q4_0 importance": of(type="Q4_0", calibrated=True),
    "Q4_0 awq, importance": of(type="Q4_0", calibrated=True, awq=True),
    "Q4_0 gptq": of(type="Q4_0", method="gptq", calibrated=True),
    "Q4_0 awq, gptq": of(type="Q4_0", method="gptq", calibrated=True, awq=True),
    "Q4_1 importance": of(type="Q4_1", calibrated=True),
    "Q4_1 gptq": of(type="Q4_1", method="gptq", calibrated=True),
    "like Q4_K_M, importance": of(like="Q4_K_M", calibrated=True),
    "like Q4_K_M, gptq": of(like="Q4_K_M", method="gptq", calibrated=True),
    "int8 by tensor": of(type="int8-tensor", method="absmax"),
    "int8 by tensor, kl": of(type="int8-tensor", method="kl"),
    "int8 by channel": of(type="int8-channel", method="absmax"),
    "int8 by 32": of(type="int8-32", method="absmax"),
    "50 % magnitude": lambda made, out: prune(made.base, out, sparsity=0.5),
    "50 % Wanda": lambda made, out: prune(made.base, out, sparsity=0.5, method="wanda", calibration=made.sums),
    "50 % SparseGPT": lambda made, out: prune(made.base, out, sparsity=0.5, method="sparsegpt", calibration=made.sums),
    "2:4 Wanda": lambda made, out: prune(made.base, out, pattern="2:4", method="wanda", calibration=made.sums),
    "one layer left out": lambda made, out: drop_layers(made.base, out, count=1),
    "two layers left out": lambda made, out: drop_layers(made.base, out, count=2),
    "two layers left out, repaired": lambda made, out: drop_layers(made.base, out, count=2, repair=True, calibration=made.sums),
    "one head of keys and values": lambda made, out: pool_heads(made.base, out, num_kv_heads=1),
}


def tiny(folder: Path) -> Path:
    """A random Qwen2 with biases, as GGUF."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
    from gguf_model import encode, metadata_of, tensors_of

    model = tiny_model(path=folder / "model", vocab_size=300, hidden_size=256, num_layers=4, intermediate_size=512)
    metadata = {key.replace("llama.", "qwen2."): value for key, value in metadata_of(model).items()}
    tensors, rng = tensors_of(model), np.random.default_rng(0)
    for name in [name for name in tensors if name.rpartition(".weight")[0].endswith(("attn_q", "attn_k", "attn_v"))]:
        tensors[name.replace(".weight", ".bias")] = rng.standard_normal(len(tensors[name])).astype(np.float32)
    path = folder / "tiny-qwen2.gguf"
    path.write_bytes(encode({**metadata, "general.architecture": "qwen2", "general.file_type": 0}, tensors))
    return path


def base_of(model: Path, folder: Path) -> tuple[Path, str]:
    """(what is compressed, what is said of it)."""
    try:
        rotate(model, folder / "rotated.gguf")
    except LlmiError as error:
        return model, f"{model.name} itself ({str(error).partition(': ')[0]} does not know its graph)"
    return folder / "rotated.gguf", f"{model.name}, rotated, fp16"


def table(model: Path, rows: list[str], tokens: int, folder: Path) -> str:
    """The rows of one model."""
    base, told = base_of(model, folder)
    made = Made(base, calibrate(base, tokens=10_240, gram=True))
    lines = [f"**{told}**", "", "| | MB | bits a weight | KL | same top | s |", "| --- | --- | --- | --- | --- | --- |"]
    with LLM(base, kv_cache_memory_bytes=1 << 26) as llm:
        text = llm.tokenizer.encode(judged_text(), add_special_tokens=False)[:tokens]
    weights = sum(math.prod(tensor.shape) for tensor in GgufSource(base).tensors)
    for name in rows:
        out, begin = folder / "row.gguf", time.process_time()
        try:
            ROWS[name](made, out)
        except LlmiError as error:
            lines.append(f"| {name} | | | {str(error).split(':')[0]}: refused | | |")
            continue
        seconds = time.process_time() - begin
        [result] = evaluate_all([out], base=base, texts=[text], window=512, skip=256, keep_base=True)
        size = out.stat().st_size
        lines.append(
            f"| {name} | {size / 1e6:,.1f} | {8 * size / weights:.2f} | {result.kl:.4f} +- {result.kl_error:.4f}"
            f" | {result.same_top:.1%} | {seconds:.0f} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
        out.unlink()
    return "\n".join(lines)


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["SmolLM2-135M-Instruct"])
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--tokens", type=int, default=2048, help="of the text")
    options = parser.parse_args()
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            model = tiny(Path(folder)) if name == "tiny" else by_name.resolve(name)
            print(table(model, options.rows, options.tokens, Path(folder)) + "\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
