"""What carries blocks from the folder of one engine to that of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from llmi.handover.shared_folder import SharedFolder


class Connector(Protocol):
    """One engine's side; any thread may call it."""

    folder: SharedFolder

    def offer(self, keys: Sequence[str]) -> dict[str, Any]:
        """What a producer tells of blocks that it has written, besides their number."""
        ...

    def fetch(self, keys: Sequence[str], told: Mapping[str, Any], end_s: float) -> None:
        """Brings blocks into this engine's folder. Raises OSError, ValueError; after end_s nobody waits for them."""
        ...

    def close(self) -> None:
        """Leaves the folder."""
        ...


class Local:
    """All engines of a user on one machine have one folder."""

    def __init__(self) -> None:
        self.folder = SharedFolder()

    def offer(self, keys: Sequence[str]) -> dict[str, Any]:
        """They are there."""
        return {}

    def fetch(self, keys: Sequence[str], told: Mapping[str, Any], end_s: float) -> None:
        """They are there."""

    def close(self) -> None:
        """Leaves the folder."""
        self.folder.close()


def connector_of(transfer: Mapping[str, Any]) -> Connector:
    """That of a kv_transfer_config. Raises InvalidParamsError, MissingExtraError."""
    if transfer["kv_connector"] == "nixl":
        from llmi.handover.nixl import Nixl  # noqa: PLC0415 (loaded where it is asked for alone)

        return Nixl()
    return Local()
