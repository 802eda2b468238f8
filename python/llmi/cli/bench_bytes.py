"""Bytes that a model's attention moves, naive and in tiles, and bytes that each fused op saves: arithmetic on the model's numbers, no
measurement."""

from __future__ import annotations

import math

from llmi import _core
from llmi.models.inspection import kv_head_bytes

TASK_QUERIES = 24  # queries of one KV head that share each load of K and V: kMaxTaskQueries in csrc/kernels/ops/attention.h
_FLOAT = 4


def attention_bytes(config: _core._ModelConfig, num_tokens: int, kv_cache_dtype: str) -> dict[str, int]:
    """Bytes between ops and memory in the attention of a prefill of num_tokens tokens, all layers together, each access counted once.

    naive: scores of all pairs are written and read, then their softmax is; K and V are read once. tiled: the kernels' order. A task of
    TASK_QUERIES queries reads the K and V that its last one sees, and scores stay in registers and the nearest cache.
    """
    heads, kv_heads, layers = config["num_heads"], config["num_kv_heads"], config["num_layers"]
    group = heads // kv_heads
    per_task = min(group, TASK_QUERIES)
    rows = max(1, TASK_QUERIES // per_task)
    queries_and_outputs = 2 * num_tokens * heads * config["padded_head_dim"] * _FLOAT
    token_bytes = 2 * kv_heads * kv_head_bytes(config["padded_head_dim"], kv_cache_dtype)
    naive = layers * (queries_and_outputs + num_tokens * token_bytes + 4 * heads * num_tokens * num_tokens * _FLOAT)
    tiled = layers * queries_and_outputs
    for window in config["windows"][:layers]:
        for begin in range(0, num_tokens, rows):
            end = min(begin + rows, num_tokens)
            seen = min(end, window + end - begin - 1) if window else end
            tiled += math.ceil(group / per_task) * seen * token_bytes
    return {"naive": naive, "tiled": tiled}


def fused_bytes(config: _core._ModelConfig, num_code_bytes: int) -> dict[str, int]:
    """Bytes of activations that each fused op spares a token, all layers together: what separate ops would write and read between them.

    num_code_bytes: of one input of a quantised layer; 0: the layers read floats.
    """
    layers, hidden = config["num_layers"], config["hidden_size"]
    sizes = list(zip(config["mlp_sizes"][:layers], config["mlp_gated"], strict=False))
    input_bytes = num_code_bytes or _FLOAT
    saved = {
        "Q, K and V in one product": 2 * layers * hidden * input_bytes,  # the input is read once, not three times
        "gate, up and activation": sum(2 * 2 * size * _FLOAT for size, gated in sizes if gated),  # both products, written and read
        "product and residual": 2 * layers * 2 * hidden * _FLOAT,  # attention's and the MLP's, written and read
    }
    if num_code_bytes:
        saved["norm and quantise"] = 2 * layers * hidden * _FLOAT  # the normed row is not read again
        saved["activation and quantise"] = sum(size * _FLOAT for size, _ in sizes)
    return {name: count for name, count in saved.items() if count}
