"""The compiled module, and what is said where it does not belong to these Python files or to this processor."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import NoReturn

_CURE = "install the wheel of this Python, or build again: pip install --force-reinstall . (docs/install.md)"
#: Flags of x86-64-v2, for which the module is compiled. Virtual machines hide some of them by default (kvm64, qemu64).
_NEEDED = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")


def lacking(cpuinfo: str) -> list[str]:
    """What the processor lacks, by the text of /proc/cpuinfo; nothing where that lists no flags, as on aarch64."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return [] if flags is None else [flag for flag in _NEEDED if flag not in flags[1].split()]


def _check_processor() -> None:
    text = ""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        text = file.read(1 << 14)  # the first processor's part
    if missing := lacking(text):
        raise ImportError(
            f"llmi needs a processor of x86-64-v2; this one lacks {', '.join(missing)} (a virtual machine: give it CPU type host)"
        )


_check_processor()
try:
    import llmi._core as core
except ImportError as error:
    raise ImportError(f"llmi's compiled module cannot be loaded ({error}): {_CURE}") from error


def _absent(name: str) -> NoReturn:
    raise AttributeError(f"module 'llmi._core' has no attribute {name!r}; if it is older than these Python files, {_CURE}")


vars(core)["__getattr__"] = _absent
