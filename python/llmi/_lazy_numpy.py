"""numpy, imported when something of it is first used: `llmi generate` shows its first token without it, 0.09 s sooner."""

from __future__ import annotations

from typing import Any


class _LazyNumpy:
    def __getattr__(self, name: str) -> Any:
        import numpy

        value = getattr(numpy, name)
        setattr(self, name, value)
        return value


np = _LazyNumpy()
