"""SHA-256 digests of files that were read before, by device, inode, size and time of change: a server that starts again need not read the
model for them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from llmi.base.whole_file import write_whole
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
        write_whole(place, json.dumps(dict(entries)), private=True, sync=False)
