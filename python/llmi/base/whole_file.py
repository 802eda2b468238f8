"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def whole_file(path: Path, *, private: bool = False, sync: bool = True) -> Iterator[BinaryIO]:
    """A file next to `path` that takes its place at the end; after an error `path` is as it was. Raises OSError.

    private: its owner alone may read it. sync: it is on the disk before it takes its place.
    """
    part = path.with_name(f".{path.name}-{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666), "wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, text: str, *, private: bool = False, sync: bool = True) -> None:
    """Writes a text so. Raises OSError."""
    with whole_file(path, private=private, sync=sync) as file:
        file.write(text.encode())
