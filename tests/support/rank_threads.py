"""Ranks as threads of this process: decoders, and engines whose other ranks need no start of Python."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmi import _core
from llmi.models.files import open_model
from llmi.ranks import workers

T = _core.testing


@contextlib.contextmanager
def decoder_on_ranks(
    files: Any, spec: str, count: int, split: list[float] | None = None, half_bytes: int = 1 << 16, group: Any = None, **options: Any
) -> Iterator[Any]:
    """A T.Decoder that is rank 0 of `count`, in this group or a new one."""
    group = group or _core.RankGroup(count, spins=False, half_bytes=half_bytes)
    groups = [group, *(_core.RankGroup.join(group.descriptor, rank) for rank in range(1, count))]
    options = {"num_threads": 1, "tensor_split": split or []} | options
    decoders = [T.Decoder(files, spec, ranks=each, **options) for each in groups]
    threads = [threading.Thread(target=decoder.follow) for decoder in decoders[1:]]
    for thread in threads:
        thread.start()
    try:
        yield decoders[0]
    finally:
        group.leave("")
        for thread in threads:
            thread.join()


class RankThreads(workers.Ranks):
    """Ranks that are threads."""

    def __init__(self, count: int, split: Any, num_threads: int | None, stages: int = 1) -> None:
        super().__init__(count, split, num_threads, stages)
        self.threads = [1] * (count * stages)
        self.running: list[threading.Thread] = []
        self.last: Any = None  # the group as the last of them sees it: its leave() is that rank's death

    def _may_spin(self) -> bool:
        return False

    def pids(self) -> list[int]:
        return [os.getpid()] * len(self.threads)

    def _start(self, number: int, opening: Mapping[str, Any], descriptors: Any) -> None:
        group = _core.RankGroup.join(descriptors[0], number % self.count)
        if len(descriptors) > 1:
            group.link(*map(os.dup, descriptors[1:]))
        self.serve(group, opening)

    def serve(self, group: Any, opening: Mapping[str, Any]) -> None:
        """A thread for this rank."""
        self.last = group

        def run() -> None:
            with contextlib.suppress(_core.CoreError):  # rank 0 tells it
                _core.serve_rank(open_model(Path(opening["path"])).core, ranks=group, **opening["options"])

        self.running.append(threading.Thread(target=run))
        self.running[-1].start()

    def close(self) -> None:
        super().close()
        for thread in self.running:
            thread.join()
