"""How a server is run."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(kw_only=True)
class ServerSettings:
    """Settings of one server.

    Attributes
    ----------
    host, port : str, int
        Where it listens; port 0 takes a free one.
    uds : Path or None
        A Unix socket instead.
    receipts : Path or None
        A folder for a receipt of each answer.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    receipts: Path | None = None
