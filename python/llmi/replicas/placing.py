"""Which replica gets a request: the one that knows its longest beginning, unless that one has far more to do than another."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

BLOCK = 16  # token ids
_MOST_KNOWN = 1 << 16
_FAR_MORE = 4  # sequences that a replica may have on top of twice those of the least busy one


class Beginnings:
    """The beginnings of texts that a replica has computed, as chained hashes of blocks; the oldest are forgotten."""

    def __init__(self) -> None:
        self._known: dict[bytes, None] = {}

    def add(self, chain: Sequence[bytes]) -> None:
        """It computes this text."""
        for digest in chain:
            self._known.pop(digest, None)
            self._known[digest] = None
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def count(self, chain: Sequence[bytes]) -> int:
        """How many of a text's first blocks it knows."""
        return next((index for index, digest in enumerate(chain) if digest not in self._known), len(chain))

    def clear(self) -> None:
        """It knows nothing more."""
        self._known.clear()


def chain_of(token_ids: Sequence[int], salt: str) -> list[bytes]:
    """The chained hashes of a text's whole blocks."""
    chain, last = [], salt.encode()
    for begin in range(0, len(token_ids) - BLOCK + 1, BLOCK):
        last = hashlib.blake2b(last + struct.pack(f"<{BLOCK}I", *token_ids[begin : begin + BLOCK]), digest_size=16).digest()
        chain.append(last)
    return chain


def choose(replicas: Iterable[tuple[int, Beginnings]], chain: Sequence[bytes]) -> int:
    """The place of the one to take, of (sequences under way, what it knows)."""
    found = [(load, known.count(chain)) for load, known in replicas]
    least = min(load for load, _ in found)
    allowed = [place for place, (load, _) in enumerate(found) if load <= 2 * least + _FAR_MORE]
    return max(allowed, key=lambda place: (found[place][1], -found[place][0], -place))
