"""A batch as bytes: what comes back is what was sent, and bytes that are no batch are refused.

test_forward.py runs all its batches through their bytes, so that logits and digests hold them, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from decoders import open_decoder
from llmi import _core

T = _core.testing


@pytest.fixture
def batch(tiny_path: Callable[..., Path]) -> bytes:
    """A chain and a tree on top of cached tokens, with taps, in a model of two KV groups."""
    decoder = open_decoder(tiny_path("gemma3"), dtype="float32", table="reference")
    chain, tree = decoder.new_sequence(), decoder.new_sequence()
    decoder.forward([(tree, list(range(1, 40)), None)])
    data: bytes = decoder.batch_bytes([(chain, [5, 6, 7], None), (tree, [8, 9, 10, 11], [-1, 0, 0, 1])], tap_layers=[0, 2])
    return data


def vectors(data: bytes) -> list[tuple[int, int]]:
    """Where each vector's values begin, and how many there are."""
    sizes = [4, 4, 32, 4, 4, 8, 72, 4, 16, 4, 4, 4, 4, 4, 32, 4]
    places, offset = [], 0
    for size in sizes:
        (count,) = struct.unpack_from("<Q", data, offset)
        places.append((offset + 8, count))
        offset += 8 + count * size
    assert offset == len(data)
    return places


def test_bytes_round_trip(batch: bytes) -> None:
    assert T.batch_from_bytes(batch) == batch
    counts = [count for _, count in vectors(batch)]
    assert counts[:4] == [7, 7, 2, 4]  # tokens, positions, segments, parents
    assert counts[5:9] == [4, 0, 0, 0]  # tables (two segments in two groups), states with their logs and captures
    assert counts[9:] == [0, 7, 2, 0, 0, 0, 0]  # types of tokens, wanted rows, taps, attention, kept layers, steering
    segments, _ = vectors(batch)[2]
    assert struct.unpack_from("<8q", batch, segments) == (0, 3, 0, -1, 3, 4, 39, 0)
    positions, count = vectors(batch)[1]
    assert struct.unpack_from(f"<{count}i", batch, positions) == (0, 1, 2, 39, 40, 40, 41)


def test_bytes_that_are_no_batch(batch: bytes) -> None:
    for data in (b"", batch[:-1], batch[:4], batch + b"\0"):
        with pytest.raises(_core.CoreError, match="bytes of a batch"):
            T.batch_from_bytes(data)


@pytest.mark.parametrize(
    ("vector", "offset", "layout", "value"),
    [
        (2, 8, "<q", 4),  # a segment of rows that the next one has
        (2, 24, "<q", 2),  # parents past the last
        (2, 56, "<q", 1),
        (3, 4, "<i", 1),  # its own parent
        (5, 8, "<q", 1 << 40),  # a table out of range
        (5, 8, "<q", -1),
        (10, 0, "<i", 1),  # a wanted row twice
        (10, 24, "<i", 7),  # past the last row
        (0, -8, "<Q", 1 << 62),  # more tokens than bytes
    ],
)
def test_offsets_are_checked(batch: bytes, vector: int, offset: int, layout: str, value: int) -> None:
    data = bytearray(batch)
    struct.pack_into(layout, data, vectors(batch)[vector][0] + offset, value)
    with pytest.raises(_core.CoreError, match="bytes of a batch"):
        T.batch_from_bytes(bytes(data))


def with_rows(batch: bytes, steered: tuple[int, int, int, int]) -> bytes:
    """The batch with a layer that is kept, and rows that one vector of three values steers."""
    parts = [("<i", [1]), ("<q", list(steered)), ("<f", [0.5, 0.25, 2.0])]
    counts = [1, 1, 3]
    packed = [
        struct.pack("<Q", n) + b"".join(struct.pack(layout, value) for value in values)
        for n, (layout, values) in zip(counts, parts, strict=True)
    ]
    return batch[: -3 * 8] + b"".join(packed)


def test_steering_is_checked(batch: bytes) -> None:
    good = with_rows(batch, (3, 4, 1, 0))
    assert T.batch_from_bytes(good) == good
    for wrong in (
        with_rows(batch, (3, 5, 1, 0)),
        with_rows(batch, (-1, 1, 1, 0)),
        with_rows(batch, (0, 1, 1, 3)),
        with_rows(batch, (0, 1, 1, -1)),
    ):
        with pytest.raises(_core.CoreError, match="bytes of a batch"):
            T.batch_from_bytes(wrong)
