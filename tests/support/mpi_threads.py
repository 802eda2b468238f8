"""Ranks as threads that exchange messages by a library with MPI's names (tests/native/mpi.cc), each as if on a machine of its own."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmi import _core
from native_library import ROOT, build_library
from rank_threads import RankThreads

_worlds = itertools.count()


def build_mpi(folder: Path) -> ctypes.CDLL:
    """The library."""
    library = ctypes.CDLL(build_library(ROOT / "tests/native/mpi.cc", folder))
    library.stand_in_communicator.restype = ctypes.c_void_p
    return library


def groups(mpi: ctypes.CDLL, count: int) -> tuple[int, list[Any]]:
    """A new world of so many ranks: its number, and their groups."""
    world = next(_worlds)
    members = [(1000 + rank, f"host-{rank}") for rank in range(count)]
    return world, [
        _core.RankGroup.over_mpi(mpi._handle, mpi.stand_in_communicator(world, rank), 0, rank, members, spins=False)
        for rank in range(count)
    ]


class RanksOverMpi(RankThreads):
    """Ranks of an LLM in a world of their own."""

    mpi: ctypes.CDLL  # to be set
    made: list[Any]  # the groups of the last one

    def _new_group(self, *_: int) -> Any:
        _, type(self).made = groups(self.mpi, len(self.threads))
        return self.made[0]

    def _start(self, number: int, opening: Mapping[str, Any], *_: Any) -> None:
        self.serve(self.made[number], opening)
