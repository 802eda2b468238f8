"""How a server is run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from llmi.server.limits import Limits


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
    keys : Path or None
        A TOML file of keys (llmi.server.keys). None: everybody who reaches the address may call.
    limits : Limits
    allowed_hosts, allowed_origins : tuple of str
        Further values of the headers Host and Origin that are taken.
    drain_s : float
        How long requests under way may take when the server is told to end.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    receipts: Path | None = None
    keys: Path | None = None
    limits: Limits = dataclasses.field(default_factory=Limits)
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    drain_s: float = 30.0
