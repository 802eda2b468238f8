"""What several ranks would hold, exchange and take for a model: arithmetic on its numbers, no weights read (decisions/0017)."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from llmi import _core
from llmi.errors import from_core
from llmi.models.inspection import STEP_TOKENS, ModelReport, windowed_kv_bytes

_FLOAT = 4
_PIECE_ROWS = 256  # of an MLP, gathered at once
CALLS = 4  # of rank 0 to the others in a step: of the forward pass and the head, each its length and its bytes


@dataclasses.dataclass(frozen=True)
class Link:
    """What carries the ranks' exchanges. shares_machine: ranks are on one machine, and divide what it can do."""

    name: str
    latency_s: float
    bytes_per_s: float
    shares_machine: bool = False

    def exchange_s(self, num_ranks: int, count: int, num_bytes: int) -> float:
        """Seconds of so many exchanges of num_bytes in all: a rank receives what the others have."""
        if num_ranks == 1:
            return 0.0
        return count * self.latency_s * math.ceil(math.log2(num_ranks)) + num_bytes * (num_ranks - 1) / num_ranks / self.bytes_per_s


LINKS = {
    link.name: link
    for link in (
        Link("shm", 1e-6, 1e10, shares_machine=True),
        Link("10GbE", 40e-6, 1.25e9),
        Link("100GbE", 5e-6, 12.5e9),
        Link("nvlink", 2e-6, 300e9),
    )
}


def gathers(
    spec: Mapping[str, Any], numbers: _core._ModelConfig, num_rows: int, num_wanted: int, num_ranks: int, num_sequences: int = 1
) -> tuple[int, int]:
    """(gathers, their bytes, those of all ranks together) of a step of num_rows rows, num_wanted of which have logits.

    spec: as JSON has it, with its numbers (_core.spec_numbers).
    """
    hidden = numbers["hidden_size"]
    count, values = 1, num_rows * hidden  # the embedding
    pieces = -(-num_rows // _PIECE_ROWS)
    shapes = iter(zip(numbers["layer_heads"], numbers["layer_head_dims"], strict=True))  # of layers with attention
    for layer, inner in zip(spec["layers"], numbers["mlp_sizes"], strict=True):
        mixed = _mixed(layer, spec, shapes)
        count += 1 + len(mixed)
        values += num_rows * (hidden + sum(mixed))
        moe = layer.get("moe", {})
        parts = [inner] if inner else []
        if moe.get("num_experts"):
            parts.append(moe["num_used"] * moe["expert"]["size"])
        count += 2 * pieces * len(parts)
        values += num_rows * sum(part + hidden for part in parts)
    has_states = any(layer.get("mixer", "attention") != "attention" for layer in spec["layers"])
    # And the head; and a byte of each rank for a sequence with states: whether they are finite.
    return count + 1 + has_states, _FLOAT * (values + num_wanted * numbers["vocab_size"]) + has_states * num_ranks * num_sequences


def _mixed(layer: Mapping[str, Any], spec: Mapping[str, Any], shapes: Iterator[tuple[int, int]]) -> list[int]:
    """Sizes of the rows that are gathered before a layer's output projection. shapes: heads and their size of the next attention."""
    mixer = layer.get("mixer", "attention")
    if mixer == "short_conv":
        return []  # each rank computes it whole
    if mixer != "attention":
        return [layer["recurrence"]["num_heads"] * layer["recurrence"]["value_size"]]
    attention = layer["attention"]
    heads, padded = next(shapes)
    head_size = attention.get("latent", {}).get("value_size") or padded
    return [*_normed_whole(attention, spec, heads), heads * head_size]


def _normed_whole(attention: Mapping[str, Any], spec: Mapping[str, Any], heads: int) -> list[int]:
    """Sizes of the rows of queries and keys that a norm sees whole, and that are gathered before it."""
    norms = attention.get("norms", {})
    if norms.get("span") != "projection":
        return []
    size = attention.get("head_dim") or spec["head_dim"]
    sizes = {"query": heads * size, "key": (attention.get("num_kv_heads") or spec["num_kv_heads"]) * size}
    return [sizes[name] for name in sizes if norms.get(name, {}).get("present")]


@dataclasses.dataclass(frozen=True)
class RankShare:
    """What one rank holds: bytes of weights, of those that a token reads, and of the cache of one sequence."""

    weight_bytes: int
    read_bytes: int
    kv_bytes: int
    held: dict[str, Any]


def spec_fields(report: ModelReport) -> dict[str, Any]:
    """The model's spec as `gathers` reads it."""
    assert report.spec is not None
    return dict(json.loads(report.spec.to_json()))


def shares(report: ModelReport, num_ranks: int, num_stages: int = 1) -> list[RankShare]:
    """Of each rank of each stage. Raises as LLM(tensor_parallel_size=num_ranks, pipeline_parallel_size=num_stages) would."""
    assert report.spec is not None
    config = report.config
    try:
        plan = _core.check_ranks(report.spec.to_json(), str(report.path), num_ranks, [], num_stages)
    except _core.CoreError as error:
        raise from_core(error, report.path) from None

    def bytes_of(held: dict[str, float], only_read: bool) -> int:
        return round(
            sum(
                (tensor.unpacked_bytes or tensor.num_bytes) * held.get(tensor.name, 1.0) * (report.used(tensor) if only_read else 1.0)
                for tensor in report.tensors
            )
        )

    attends = [layer.get("mixer", "attention") == "attention" for layer in spec_fields(report)["layers"]]

    def kv_bytes(heads: list[int]) -> int:
        layers = zip(
            itertools.compress(heads, attends), config["layer_kv_heads"], config["layer_head_dims"], config["windows"], strict=True
        )
        return sum(
            windowed_kv_bytes([window], held, size, report.num_tokens, report.kv_cache_dtype) for held, own, size, window in layers if own
        )

    return [RankShare(bytes_of(rank["held"], False), bytes_of(rank["held"], True), kv_bytes(rank["kv_heads"]), rank) for rank in plan]


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Seconds of a token and of a prompt of the report's length with so many ranks of so many stages."""

    num_ranks: int
    num_stages: int
    decode_s: float
    prefill_s: float


def forecast(report: ModelReport, ranks: list[RankShare], link: Link, read_bytes_per_s: float, ops_per_s: float) -> Forecast:
    """read_bytes_per_s, ops_per_s: what one machine can do.

    A stage's slowest rank is waited for, and one sequence's stages follow each other; attention is divided as the weights are.
    """
    stages = [[rank for rank in ranks if rank.held["stage"] == stage] for stage in range(ranks[-1].held["stage"] + 1)]
    count, tokens = len(stages[0]), report.num_tokens
    spec = spec_fields(report)
    whole = sum(rank.read_bytes for rank in ranks)
    if link.shares_machine:  # all ranks together have one machine
        reads, operations = sum(rank.read_bytes + rank.kv_bytes for rank in ranks), 1.0
    else:
        reads = sum(max(rank.read_bytes + rank.kv_bytes for rank in stage) for stage in stages)
        operations = sum(max(rank.read_bytes for rank in stage) for stage in stages) / whole
    steps = [STEP_TOKENS] * (tokens // STEP_TOKENS) + ([tokens % STEP_TOKENS] if tokens % STEP_TOKENS else [])

    def step_s(num_rows: int) -> float:
        number, num_bytes = gathers(spec, report.config, num_rows, 1, count)
        row_bytes = _FLOAT * report.config["hidden_size"] * num_rows
        messages = len(stages) * (link.latency_s + row_bytes / link.bytes_per_s) if len(stages) > 1 else 0.0
        return link.exchange_s(count, number + CALLS, num_bytes) + messages

    return Forecast(
        count,
        len(stages),
        max(reads / read_bytes_per_s, report.decode(tokens) * operations / ops_per_s) + step_s(1),
        max(report.prefill(tokens) * operations / ops_per_s, len(steps) * reads / read_bytes_per_s) + sum(map(step_s, steps)),
    )


def slower_from(report: ModelReport, link: Link, read_bytes_per_s: float, ops_per_s: float, most: int = 64) -> int | None:
    """The least number of ranks that decodes slower than one rank less; None: none up to `most`, or the model's tiles."""
    before = math.inf
    for count in range(1, min(most, -(-report.config["hidden_size"] // 16)) + 1):
        seconds = forecast(report, shares(report, count), link, read_bytes_per_s, ops_per_s).decode_s
        if seconds > before:
            return count
        before = seconds
    return None
