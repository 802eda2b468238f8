"""numpy, imported when something of it is first used: `llmi generate` shows its first token without it, 0.09 s sooner."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from typing import Any


def load() -> Any:
    """numpy. A thread imports it: Ctrl-C, which goes to the main thread, would leave it half imported, and it cannot be imported twice."""
    if "numpy" not in sys.modules:
        with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            thread = threading.Thread(target=_import, name="llmi-numpy", daemon=True)
            thread.start()
            thread.join()
    return importlib.import_module("numpy")


def _import() -> None:
    with contextlib.suppress(Exception):  # which the caller's own import meets again
        importlib.import_module("numpy")


class _LazyNumpy:
    def __getattr__(self, name: str) -> Any:
        value = getattr(load(), name)
        setattr(self, name, value)
        return value


np = _LazyNumpy()
