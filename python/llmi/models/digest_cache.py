"""SHA-256 digests of files that were read before, by device, inode, size and time of change: a server that starts again need not read the
model for them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

from llmi.models.catalogue import cache_dir

_MOST = 1024  # digests that are kept


def _place() -> Path:
    return cache_dir() / "digests.json"


def key_of(path: str) -> str:
    """What a file is known by: device, inode, size, and the times in nanoseconds at which content and inode changed."""
    status = Path(path).stat()
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def known_digests() -> dict[str, str]:
    """All that are kept, by key; {} if the cache cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(_place().read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return {key: value for key, value in found.items() if isinstance(value, str) and len(value) == 64}
    return {}


def keep(digests: dict[str, str]) -> None:
    """Adds digests. A cache that cannot be written is left as it is."""
    with contextlib.suppress(OSError):
        place = _place()
        place.parent.mkdir(parents=True, exist_ok=True)
        entries = list({**known_digests(), **digests}.items())[-_MOST:]
        part = place.with_name(f"{place.name}.{secrets.token_hex(4)}.part")
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(dict(entries), file)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
