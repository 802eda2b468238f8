"""Where engines of one user on one machine hand blocks over: a folder in shared memory, one file a block (csrc/cache/prefix_folder.h).

Each engine holds a shared lock while it is open. The last one to close removes the files; killed engines hold no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from llmi.errors import InvalidParamsError

_ROOT = Path("/dev/shm")
_MOST_BYTES = 1 << 30
_ENDINGS = (".kv1", ".part1")


class SharedFolder:
    """The folder of this user. Raises InvalidParamsError where there is no shared memory, or the folder is another user's."""

    def __init__(self) -> None:
        self.path = _ROOT / f"llmi-kv-{os.geteuid()}"
        self.most_bytes = _MOST_BYTES
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise InvalidParamsError(f"kv_transfer_config: no blocks can lie in shared memory: {error}", "kv_transfer_config") from None
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def close(self) -> None:
        """Lets go of it."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where another engine is open
            for entry in os.scandir(self.path):
                if entry.name.endswith(_ENDINGS):
                    Path(entry).unlink()
        os.close(self._lock)
        self._lock = -1
