"""Where engines hand blocks over: a folder in shared memory, one file a block (csrc/cache/prefix_folder.h).

Each engine holds a shared lock while it is open. The last one to close removes the files; killed engines hold no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from pathlib import Path

from llmi.errors import InvalidParamsError

_ROOT = Path("/dev/shm")
_MOST_BYTES = 1 << 30
_ENDINGS = (".kv1", ".part1")


class SharedFolder:
    """The folder of this user, or one that this engine alone has. Raises InvalidParamsError where there is no shared memory, or the folder
    is another user's."""

    def __init__(self, is_own: bool = False) -> None:
        name = f"llmi-kv-{os.geteuid()}"
        self.path = _ROOT / (f"{name}-{secrets.token_hex(8)}" if is_own else name)
        self.most_bytes = _MOST_BYTES
        self._is_own = is_own
        if is_own:
            for left in _ROOT.glob(f"{name}-*"):
                _remove_left(left)
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise InvalidParamsError(f"kv_transfer_config: no blocks can lie in shared memory: {error}", "kv_transfer_config") from None
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def write(self, key: str, data: memoryview) -> None:
        """Writes a block's file. Raises OSError."""
        unfinished = self.path / f"{key}.part1"
        unfinished.write_bytes(data)
        unfinished.rename(self.path / f"{key}.kv1")

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
        if self._is_own:
            _remove_left(self.path)


def _remove_left(path: Path) -> None:
    """Removes the folder of an engine that is no more."""
    with contextlib.suppress(OSError):
        lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is open
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
