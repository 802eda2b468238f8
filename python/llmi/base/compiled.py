"""The compiled module, and what is said where it does not belong to these Python files."""

from __future__ import annotations

from typing import NoReturn

_CURE = "install the wheel of this Python, or build again: pip install --force-reinstall . (docs/install.md)"

try:
    import llmi._core as core
except ImportError as error:
    raise ImportError(f"llmi's compiled module cannot be loaded ({error}): {_CURE}") from error


def _absent(name: str) -> NoReturn:
    raise AttributeError(f"module 'llmi._core' has no attribute {name!r}; if it is older than these Python files, {_CURE}")


vars(core)["__getattr__"] = _absent
