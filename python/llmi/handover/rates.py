"""Which connectors work on this machine, and how fast: for `llmi doctor`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from llmi.errors import LlmiError
from llmi.handover.connectors import Connector, Local
from llmi.handover.shared_folder import SharedFolder

_NUM_BLOCKS = 16
_BLOCK_BYTES = 1 << 20
_PATIENCE_S = 10.0


def connectors() -> str:
    """Each with its rate, or why it does not work here."""
    return "; ".join(f"{name}: {_told(rate)}" for name, rate in (("local", _local_rate), ("nixl", _nixl_rate)))


def _told(rate: Callable[[], float]) -> str:
    try:
        return f"{rate() / 1e9:.1f} GB/s"
    except (LlmiError, OSError, ValueError) as error:
        return f"does not work ({error})"


def _write(folder: SharedFolder) -> list[str]:
    keys = [f"{number:064x}" for number in range(_NUM_BLOCKS)]
    data = memoryview(os.urandom(_BLOCK_BYTES))
    for key in keys:
        folder.write(key, data)
    return keys


def _local_rate() -> float:
    """Bytes a second, written and read."""
    Local().close()  # whether the folder of this user can be used
    folder = SharedFolder(is_own=True)
    try:
        begun = time.perf_counter()
        for key in _write(folder):
            (folder.path / f"{key}.kv1").read_bytes()
        return _NUM_BLOCKS * _BLOCK_BYTES / (time.perf_counter() - begun)
    finally:
        folder.close()


def _nixl_rate() -> float:
    """Bytes a second from one agent of this process to another, with what the connector copies."""
    from llmi.handover.nixl import Nixl  # noqa: PLC0415 (loaded where it is asked for alone)

    sides: list[Connector] = []
    try:
        sides += [Nixl(), Nixl()]
        keys = _write(sides[0].folder)
        seconds = 0.0
        for _ in range(2):  # the first one connects
            begun = time.perf_counter()
            sides[1].fetch(keys, sides[0].offer(keys), time.monotonic() + _PATIENCE_S)
            seconds = time.perf_counter() - begun
        return _NUM_BLOCKS * _BLOCK_BYTES / seconds
    finally:
        for side in sides:
            side.close()
