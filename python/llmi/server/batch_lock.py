"""One run of `llmi batch` at a time for one output."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from llmi.errors import InvalidParamsError


@contextlib.contextmanager
def only_run(output: Path) -> Iterator[None]:
    """Holds the lock of an output, a file next to it, which the system frees with the process. Raises InvalidParamsError where another run
    has it."""
    path = output.with_name(output.name + ".lock")
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                break
        except BlockingIOError:
            os.close(descriptor)
            raise InvalidParamsError(
                f"{output}: another run of `llmi batch` writes to it: wait for its end, and the same command goes on where it ended, or"
                " give another output",
                "output",
            ) from None
        except FileNotFoundError:
            pass
        os.close(descriptor)  # of a run that ended just now, and took the file away
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
