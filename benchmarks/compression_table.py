"""What each method of compression costs, in one table: `python benchmarks/compression_table.py [MODEL ..] [--rows NAME ..] [--tokens 2048]
[--llama-cpp FOLDER]`.

A model is a GGUF file, a name, or "tiny": a random one of Qwen's family with biases, which is neither Llama nor Gemma. Where a rotation knows the
graph, the base is the rotated file in fp16, off every grid; else it is the file itself, and the table says what it is quantised to. The text is
llmi's own, in windows of 512 tokens, second halves scored; calibrations are on 10,240 tokens that the base writes. A row that a graph does not
allow holds the first words of the refusal. With a folder of llama.cpp's programs there are rows of llama-quantize, and a column of
llama-perplexity: the same base, text and text to calibrate by. Markdown for docs/compression.md.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
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
from llmi.compress.own_text import own_text
from llmi.compress.texts import judged_text
from llmi.models import by_name
from llmi.testing import tiny_model


class Peer:
    """llama.cpp's programs, and their files of one base."""

    def __init__(self, programs: Path, base: Path, folder: Path, judged: str, own: str) -> None:
        self.programs, self.base = programs, base
        self.text, self.logits, self.imatrix = folder / "judged.txt", folder / "base.logits", folder / "peer.imatrix.gguf"
        self.text.write_text(judged)
        (folder / "own.txt").write_text(own)
        self.run("llama-perplexity", "-m", base, "-f", self.text, "--kl-divergence-base", self.logits)
        self.run("llama-imatrix", "-m", base, "-f", folder / "own.txt", "-o", self.imatrix, "--parse-special")

    def run(self, program: str, *arguments: object) -> str:
        """What it prints."""
        command = [self.programs / program, *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout[-2000:]}")
        return done.stdout

    def quantize(self, out: Path, kind: str, imatrix: Path | None) -> None:
        """A file by llama-quantize."""
        self.run("llama-quantize", *(["--imatrix", imatrix] if imatrix else []), self.base, out, kind)

    def divergence(self, model: Path) -> float:
        """The KL that llama-perplexity finds."""
        for _ in range(3):  # its log loses the last lines now and then
            shown = self.run("llama-perplexity", "-m", model, "-f", self.text, "--kl-divergence", "--kl-divergence-base", self.logits)
            if found := re.search(r"Mean\s+KLD:\s+(-?[\d.]+)", shown):
                return float(found[1])
        raise RuntimeError(shown[-2000:])


class Made(NamedTuple):
    """What the rows are made of."""

    base: Path
    sums: Calibration
    peer: Peer | None


def of(**settings: Any) -> Callable[[Made, Path], Any]:
    """A row that `quantize` makes; `calibrated` gives it the calibration."""
    calibrated = settings.pop("calibrated", False)
    return lambda made, out: quantize(made.base, out, **settings, calibration=made.sums if calibrated else None)


def of_budget(made: Made, out: Path) -> Any:
    """At most the bytes of Q4_K_M's mixture."""
    mixture = out.with_name("mixture.gguf")
    size = quantize(made.base, mixture, like="Q4_K_M", method="search").bytes
    mixture.unlink()
    return quantize(made.base, out, budget_bytes=size, method="gptq", calibration=made.sums)


def by_peer(kind: str, weighted: str = "") -> Callable[[Made, Path], Any]:
    """A row that llama-quantize makes: plain, by llama-imatrix's file, or by llmi's."""

    def row(made: Made, out: Path) -> None:
        peer = made.peer
        assert peer is not None
        imatrix = {"": None, "llama-imatrix": peer.imatrix, "llmi calibrate": out.with_name("llmi.imatrix.gguf")}[weighted]
        if weighted == "llmi calibrate" and imatrix is not None and not imatrix.exists():
            made.sums.save(imatrix)
        peer.quantize(out, kind, imatrix)

    return row


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
    "like Q4_K_M": of(like="Q4_K_M"),
    "like Q4_K_M, importance": of(like="Q4_K_M", calibrated=True),
    "like Q4_K_M, gptq": of(like="Q4_K_M", method="gptq", calibrated=True),
    "budget of Q4_K_M's bytes, gptq": of_budget,
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


PEER_ROWS = {
    "llama-quantize Q4_0": by_peer("Q4_0"),
    "llama-quantize Q4_0, llama-imatrix": by_peer("Q4_0", "llama-imatrix"),
    "llama-quantize Q4_K_M": by_peer("Q4_K_M"),
    "llama-quantize Q4_K_M, llama-imatrix": by_peer("Q4_K_M", "llama-imatrix"),
    "llama-quantize Q4_K_M, llmi calibrate": by_peer("Q4_K_M", "llmi calibrate"),
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


def table(model: Path, rows: list[str], tokens: int, folder: Path, programs: Path | None) -> str:
    """The rows of one model."""
    base, told = base_of(model, folder)
    with LLM(base, kv_cache_memory_bytes=1 << 28) as llm:
        ids = llm.tokenizer.encode(judged_text(), add_special_tokens=False)[:tokens]
        peer = None
        if programs is not None:
            own = "".join(map(llm.tokenizer.decode, own_text(llm, 0, 10_240)))
            peer = Peer(programs, base, folder, llm.tokenizer.decode(ids), own)
    made = Made(base, calibrate(base, tokens=10_240, gram=True), peer)
    columns = ["", "MB", "bits a weight", "KL", *(["by llama-perplexity"] if peer else []), "same top", "s"]
    lines = [f"**{told}**", "", f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    weights = sum(math.prod(tensor.shape) for tensor in GgufSource(base).tensors)
    for name in rows:
        out, begin = folder / "row.gguf", time.perf_counter()
        try:
            (ROWS | PEER_ROWS)[name](made, out)
        except LlmiError as error:
            lines.append(f"| {name} " + "| " * (len(columns) - 2) + f"| {str(error).split(':')[0]}: refused |")
            continue
        seconds = time.perf_counter() - begin
        [result] = evaluate_all([out], base=base, texts=[ids], window=512, skip=256, keep_base=True)
        size = out.stat().st_size
        cells = [name, f"{size / 1e6:,.1f}", f"{8 * size / weights:.2f}", f"{result.kl:.4f} +- {result.kl_error:.4f}"]
        if peer is not None:
            cells.append(f"{peer.divergence(out):.4f}")
        lines.append(f"| {' | '.join([*cells, f'{result.same_top:.1%}', f'{seconds:.0f}'])} |")
        print(lines[-1], file=sys.stderr, flush=True)
        out.unlink()
    return "\n".join(lines)


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["SmolLM2-135M-Instruct"])
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, *PEER_ROWS])
    parser.add_argument("--tokens", type=int, default=2048, help="of the text")
    parser.add_argument("--llama-cpp", type=Path, help="folder of llama-quantize, llama-imatrix and llama-perplexity")
    options = parser.parse_args()
    rows = options.rows or [*ROWS, *(PEER_ROWS if options.llama_cpp else [])]
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            model = tiny(Path(folder)) if name == "tiny" else by_name.resolve(name)
            print(table(model, rows, options.tokens, Path(folder), options.llama_cpp) + "\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
