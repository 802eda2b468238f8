"""A GGUF file of random weights in the shape of a known model, so that weights exceed the caches: for speed alone.

    python benchmarks/random_model.py {qwen3-0.6b,llama-3.2-1b} {BF16,Q4_0,Q4_1,Q4_K,..} FILE.gguf

The layers are Llama's (Qwen3's norms of queries and keys cost next to nothing); the vocabulary is SmolLM2's, filled up with unused
entries to the model's own size.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import report

from llmi.models import by_name

sys.path.insert(0, str(report.ROOT / "tests" / "support"))
from quantization import LAYOUTS, random_blocks

SHAPES = {
    "qwen3-0.6b": {"layers": 28, "hidden": 1024, "intermediate": 3072, "heads": 16, "kv_heads": 8, "head_dim": 128, "vocab": 151_936},
    "llama-3.2-1b": {"layers": 16, "hidden": 2048, "intermediate": 8192, "heads": 32, "kv_heads": 8, "head_dim": 64, "vocab": 128_256},
}


def write(shape: dict[str, int], dtype: str, path: Path) -> None:
    """All matrices of `dtype`, norms of ones; the head is the embedding."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_block_count(shape["layers"])
    writer.add_embedding_length(shape["hidden"])
    writer.add_feed_forward_length(shape["intermediate"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_rope_dimension_count(shape["head_dim"])
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    known = gguf.GGUFReader(by_name.fetch("smollm2-135m-instruct")).fields

    def field(name: str) -> Any:
        return known["tokenizer.ggml." + name].contents()

    tokens = field("tokens")
    unused = shape["vocab"] - len(tokens)
    writer.add_tokenizer_model(field("model"))
    writer.add_tokenizer_pre(field("pre"))
    writer.add_token_list([*tokens, *(f"<unused{i}>" for i in range(unused))])
    writer.add_token_types([*field("token_type"), *[int(gguf.TokenType.UNUSED)] * unused])
    writer.add_token_merges(field("merges"))
    writer.add_bos_token_id(field("bos_token_id"))
    writer.add_eos_token_id(field("eos_token_id"))
    kind = gguf.GGMLQuantizationType[dtype]

    def matrix(name: str, rows: int, cols: int) -> None:
        blocks = np.frombuffer(random_blocks(dtype, rows, cols, seed=len(name) * 1009 + rows), np.uint8).reshape(rows, -1)
        writer.add_tensor(name, blocks, raw_dtype=kind)

    query, kv = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    matrix("token_embd.weight", shape["vocab"], shape["hidden"])
    for layer in range(shape["layers"]):
        for name, rows, cols in (
            ("attn_q", query, shape["hidden"]),
            ("attn_k", kv, shape["hidden"]),
            ("attn_v", kv, shape["hidden"]),
            ("attn_output", shape["hidden"], query),
            ("ffn_gate", shape["intermediate"], shape["hidden"]),
            ("ffn_up", shape["intermediate"], shape["hidden"]),
            ("ffn_down", shape["hidden"], shape["intermediate"]),
        ):
            matrix(f"blk.{layer}.{name}.weight", rows, cols)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(shape["hidden"], np.float32))
    writer.add_tensor("output_norm.weight", np.ones(shape["hidden"], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("dtype", choices=("BF16", *LAYOUTS))
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    write(SHAPES[options.shape], options.dtype, options.file)
