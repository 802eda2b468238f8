"""The place of cuBLASLt: it is no part of llmi, and only deterministic=False needs it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmi.errors import DeviceError

#: The versions whose interface llmi knows, newest first.
_NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_FOLDERS = ("nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib")  # of the wheels nvidia-cublas, nvidia-cublas-cu12, and of PyTorch
_TOOLKIT = "/usr/local/cuda/lib64"
_LOCATION = "LLMI_CUBLASLT"


def find_cublas_lt() -> str:
    """The newest: in a wheel, a toolkit, or by a name that the linker finds; $LLMI_CUBLASLT alone where it is set.

    Raises DeviceError with what would bring one.
    """
    if found := first_library(_NAMES, _FOLDERS, _LOCATION):
        return found
    raise DeviceError(
        f"deterministic = False multiplies with cuBLASLt, which was not found: pip install nvidia-cublas, or name it in {_LOCATION}"
    )


def first_library(names: Sequence[str], folders: Sequence[str], variable: str) -> str:
    """The first of these libraries that can be loaded: in a folder of a wheel, a toolkit, or by a name that the linker finds; that of the
    environment's variable alone where it is set. Empty: none."""
    for candidate in _candidates(names, folders, variable):
        try:
            ctypes.CDLL(candidate)
        except OSError:
            continue
        return candidate
    return ""


def _candidates(names: Sequence[str], folders: Sequence[str], variable: str) -> Iterator[str]:
    if location := os.environ.get(variable):
        yield location
        return
    for name in names:
        for root in sys.path:
            for folder in folders:
                path = Path(root, folder, name)
                if path.is_file():
                    yield str(path)
        yield f"{_TOOLKIT}/{name}"
        yield name
