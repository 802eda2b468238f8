"""Folders whose tensors cannot be read from some place on."""

from __future__ import annotations

from typing import Any

import pytest

from llmi.compress.folders import FolderSource


def fail_to_read(monkeypatch: pytest.MonkeyPatch, error: BaseException, allowed: int) -> None:
    """Raises `error` when a folder is asked for one tensor more than `allowed`."""
    reads = iter(range(allowed))
    plain = FolderSource.bytes_of

    def fails(self: FolderSource, tensor: Any) -> bytes:
        if next(reads, None) is None:
            raise error
        return plain(self, tensor)

    monkeypatch.setattr(FolderSource, "bytes_of", fails)
