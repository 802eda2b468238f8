"""Tokens that training visits in a second, by depth of unrolling, beside the speed of a plain matrix product.

    OPENBLAS_NUM_THREADS=1 python benchmarks/train_speed.py [--rows 2] [--repeats 5]

Random data in SmolLM2-135M's sizes, sequences of 125 tokens of which 85 teach; seconds of CPU time, so that other programs disturb less.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
import report

from llmi.training.data import Data
from llmi.training.eagle import EagleModel
from llmi.training.layer import Shape
from llmi.training.losses import Head, laws_of
from llmi.training.packing import batches, parts_of
from llmi.training.text import Text

SHAPE = Shape(576, 1536, 9, 3, 64, 1e5, 1e-5)
SHORTLIST, LENGTH, PROMPT, SEQUENCES = 4096, 125, 40, 32


def data_of_noise() -> Data:
    """A text whose rows and embeddings are drawn."""
    rng = np.random.default_rng(0)
    text = Text.of([(number, [0] * PROMPT, rng.integers(0, 1000, LENGTH - PROMPT).tolist(), False) for number in range(SEQUENCES)])
    count = len(text.token_ids)
    positions = np.arange(count) % LENGTH
    teaches = positions >= PROMPT - 1
    rows = rng.standard_normal((count, SHAPE.hidden_size)).astype(np.float16)
    head = Head((rng.standard_normal((SHORTLIST, SHAPE.hidden_size)) * 0.05).astype(np.float32))
    embeddings = rng.standard_normal((1000, SHAPE.hidden_size)).astype(np.float32)
    return Data(
        text,
        rows,
        np.arange(SHORTLIST, dtype=np.int32),
        head,
        laws_of(head, rows[teaches]),
        np.where(teaches, np.cumsum(teaches) - 1, -1),
        embeddings,
        text.token_ids.astype(np.int64),
        positions,
        np.repeat(text.offsets[1:], LENGTH),
        1.0,
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """{"depths": {depth: visits a second}}."""
    rng = np.random.default_rng(1)
    weights = {name: (rng.standard_normal(size) * 0.03).astype(np.float32) for name, size in SHAPE.parameters().items()}
    data, model = data_of_noise(), EagleModel(SHAPE, weights, 1.0)
    tokens, parts = next(batches(parts_of(data.text.offsets), 0, options.rows))
    gradient = np.empty_like(model.vector)
    visits: dict[str, float] = {}
    for depths in (1, 2, 3):
        model.loss(tokens, parts, data, depths, gradient)
        start = time.process_time()
        for _ in range(options.repeats):
            model.loss(tokens, parts, data, depths, gradient)
        visits[str(depths)] = float(np.count_nonzero(tokens >= 0) * options.repeats / (time.process_time() - start))
    matrix = rng.standard_normal((1024, 1024)).astype(np.float32)
    start = time.process_time()
    for _ in range(20):
        matrix @ matrix
    return {"visits_per_s": visits, "matmul_gflops": 20 * 2 * 1024**3 / (time.process_time() - start) / 1e9}


def table(result: dict[str, Any]) -> str:
    """Markdown rows."""
    rows = [f"| {depths} | {visits:,.0f} |" for depths, visits in result["visits_per_s"].items()]
    return "\n".join(["| tokens ahead | visits a CPU second |", "| --- | --- |", *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    return report.main(parser, run, table)


if __name__ == "__main__":
    sys.exit(main())
