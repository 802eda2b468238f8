"""Batches: sequences in parts, packed into rows of one length, in an order that a seed names."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
#: Positions of a row. Longer sequences are cut; keys before the cut are not seen.
ROW_LEN = 256
ROWS = 2
#: A part of fewer positions teaches too little for its place.
_SHORTEST = 8


def parts_of(offsets: I64) -> I64:
    """[num_parts, 2] of first token and end, from the sequences' offsets [num_sequences + 1]."""
    parts = [
        (start, min(start + ROW_LEN, end))
        for first, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        for start in range(first, end, ROW_LEN)
    ]
    return np.array([part for part in parts if part[1] - part[0] >= _SHORTEST], np.int64).reshape(-1, 2)


def pack(parts: I64, order: I64, rows: int) -> Iterator[list[list[int]]]:
    """Batches of `rows` rows: the parts of each row by number. A batch ends where the next part finds no room in it."""
    batch: list[list[int]] = [[] for _ in range(rows)]
    room = [ROW_LEN] * rows
    for number in order.tolist():
        length = int(parts[number, 1] - parts[number, 0])
        row = next((row for row in range(rows) if room[row] >= length), None)
        if row is None:
            yield batch
            batch, room, row = [[] for _ in range(rows)], [ROW_LEN] * rows, 0
        batch[row].append(number)
        room[row] -= length
    if any(batch):
        yield batch


def _arrays(parts: I64, batch: list[list[int]]) -> tuple[I64, I64]:
    """(token of each place or -1 [rows, ROW_LEN], number of its part or -1)."""
    tokens, numbers = np.full((len(batch), ROW_LEN), -1, np.int64), np.full((len(batch), ROW_LEN), -1, np.int64)
    for row, members in enumerate(batch):
        at = 0
        for number in members:
            first, end = parts[number].tolist()
            tokens[row, at : at + end - first] = np.arange(first, end)
            numbers[row, at : at + end - first] = number
            at += end - first
    return tokens, numbers


def pack_in_order(offsets: I64, rows: int = ROWS) -> Iterator[tuple[I64, I64]]:
    """Each sequence once, in batches as `batches` gives them."""
    parts = parts_of(offsets)
    return (_arrays(parts, batch) for batch in pack(parts, np.arange(len(parts)), rows))


def batches(parts: I64, seed: int, rows: int = ROWS) -> Iterator[tuple[I64, I64]]:
    """Without end, epoch after epoch: (token of each place or -1 [rows, ROW_LEN], number of its part or -1)."""
    epoch = 0
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(len(parts))
        for batch in pack(parts, order, rows):
            yield _arrays(parts, batch)
        epoch += 1
