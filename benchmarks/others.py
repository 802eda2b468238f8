"""What other programs of the machine take while something is measured."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def _ours() -> float:
    """CPU seconds of this process and all below it."""
    parents, seconds = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            seconds[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return sum(taken for pid, taken in seconds.items() if _is_below(pid, parents))


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1 and pid != os.getpid():
        pid = parents.get(pid, 0)
    return pid == os.getpid()


def _all() -> float:
    """CPU seconds of the machine, with those that its host took from it."""
    fields = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]))
    return sum(fields[at] for at in (0, 1, 2, 5, 6, 7)) / os.sysconf("SC_CLK_TCK")


class Others:
    """Cores that other programs took while the block ran."""

    def __enter__(self) -> Others:
        self._begun = time.perf_counter(), _all(), _ours()
        return self

    def __exit__(self, *_: object) -> None:
        begun, everything, ours = self._begun
        self.cores = max(0.0, (_all() - everything - _ours() + ours) / (time.perf_counter() - begun))
