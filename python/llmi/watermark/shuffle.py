"""torch.randperm and torch.randint of torch's CPU generator, in NumPy: its Mersenne twister, its swaps, the same numbers.

Position i is swapped with i + random() % (n - i), for i from 0 to n - 2 (aten/src/ATen/native/TensorFactories.cpp of PyTorch).
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray


def random_words(seed: int, count: int) -> NDArray[np.uint32]:
    """The first `count` 32-bit numbers of torch.Generator("cpu").manual_seed(seed); the twister sees the seed's low 32 bits."""
    return np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 1 << 32, count, np.uint32)


def _partners(seed: int, size: int, count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Positions 0 to count - 1, and the position that each is swapped with, itself or a later one."""
    places = np.arange(count, dtype=np.uint32)
    return places, places + random_words(seed, count) % (np.uint32(size) - places)


@functools.lru_cache(maxsize=4)
def permutation(seed: int, size: int) -> NDArray[np.int64]:
    """torch.randperm(size): int64 [size]."""
    partners = _partners(seed, size, size - 1)[1].tolist()
    values = list(range(size))
    for place, partner in enumerate(partners):
        values[place], values[partner] = values[partner], values[place]
    return np.array(values, dtype=np.int64)


@functools.lru_cache(maxsize=128)
def first_of_permutation(seed: int, size: int, count: int) -> NDArray[np.bool_]:
    """bool [size]: whether a value is among the first `count` of torch.randperm(size), 0 < count < size.

    What position i holds when its turn comes was put there by the last earlier swap with i, from a position before i: a chain of such
    positions ends at one that no earlier swap has touched. All chains are followed at once, each step as long as all before it.
    """
    places, partners = _partners(seed, size, count)
    moved = partners != places
    put_by = np.full(size, -1, dtype=np.int64)
    np.maximum.at(put_by, partners[moved], places[moved].astype(np.int64))
    held = np.where(put_by[:count] < 0, places, put_by[:count])
    while (further := held[held]).tobytes() != held.tobytes():
        held = further
    late = put_by[count:]
    first = np.ones(size, dtype=np.bool_)
    first[np.where(late < 0, np.arange(count, size), held[late])] = False
    first.setflags(write=False)  # callers share it
    return first


def is_among_first(seed: int, size: int, count: int, value: int) -> bool:
    """Whether `value` is among the first `count` of torch.randperm(size): one value's way through the swaps."""
    _, partners = _partners(seed, size, count)
    place, seen = value, 0
    while True:
        if (partners[seen : place + 1] == place).any():  # an earlier position takes it, or it stays when its turn comes
            return True
        if place >= count:
            return False
        place, seen = int(partners[place]), place + 1
