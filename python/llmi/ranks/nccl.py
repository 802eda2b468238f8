"""The place of NCCL: it is no part of llmi. Without it ranks on GPUs gather through the host's memory."""

from __future__ import annotations

import os

from llmi.engine.cublas import first_library

_NAMES = ("libnccl.so.2",)
_FOLDERS = ("nvidia/nccl/lib", "torch/lib")  # of the wheels nvidia-nccl-cu13 and nvidia-nccl-cu12, and of PyTorch
_LOCATION = "LLMI_NCCL"


def find_nccl(device: str) -> str:
    """In a wheel, a toolkit, or by the name that the linker finds; $LLMI_NCCL alone where it is set. Empty: there is none."""
    if device == "cuda":
        return first_library(_NAMES, _FOLDERS, _LOCATION)
    return os.environ.get(_LOCATION, "") if device == "emulated" else ""
