"""Shows which parts run on this machine, and why."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from typing import Any

from llmi import _core
from llmi.errors import ModelFileError, from_core
from llmi.models import by_name
from llmi.models.catalogue import cache_dir

EXTRAS = {"torch": "parity", "transformers": "parity", "pandas": "pandas", "ipywidgets": "notebook", "huggingface_hub": "base"}


@dataclasses.dataclass
class Doctor:
    """The report of `llmi doctor`; `facts` holds its values."""

    facts: dict[str, Any]

    def __str__(self) -> str:
        return "\n".join(f"{name:14} {value}" for name, value in self.facts.items())

    __repr__ = __str__


def build() -> str:
    """What is installed: a released wheel, one that was built on this machine, or the sources themselves."""
    try:
        found = importlib.metadata.distribution("llmi")
    except importlib.metadata.PackageNotFoundError:
        return "none installed: the sources are on Python's path"
    tags = re.findall(r"^Tag: (\S+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    if not tags:
        return "none installed: Python's path leads to the sources"
    many = [tag for tag in tags if "manylinux" in tag]
    made = "a wheel for many Linux systems, without CUDA" if many else "built on this machine or one like it"
    return f"{made}: {', '.join(many or tags)}"


def doctor() -> Doctor:
    """ISA, kernel tables, threads, memory, extras and caches.

    Returns
    -------
    Doctor
        Prints itself; `facts` holds the values by name.

    Raises
    ------
    LlmiError
        What the machine says cannot be read.

    Examples
    --------
    >>> doctor().facts["llmi"] == llmi.__version__
    True
    """
    import llmi
    from llmi.handover.rates import connectors

    try:
        system = _core.system_info()
    except _core.CoreError as error:
        raise from_core(error) from None
    sets = {"avx2": system["avx2"], "avx_vnni": system["avx_vnni"], "avx512": system["avx512"], "avx512_bf16": system["avx512_bf16"]}
    features = [name for name, is_there in sets.items() if is_there]
    try:
        selected = _core.selected_table()
        if os.environ.get("LLMI_ISA"):
            selected += " (forced by LLMI_ISA)"
    except _core.CoreError as error:
        selected = f"none: {error.message}"
    found = [name for name in EXTRAS if importlib.util.find_spec(name) is not None]
    try:
        cache = f"{cache_dir()}: {', '.join(name for name, _, _ in by_name.cached_models()) or 'empty'}"
    except ModelFileError as error:
        cache = f"none: {error}"
    return Doctor(
        {
            "llmi": llmi.__version__,
            "build": build(),
            "python": f"{platform.python_version()} ({sys.executable})",
            "cpu": f"{system['cpu'] or platform.machine()}: {', '.join(features) or 'baseline'}",
            "kernels": f"{selected}; available: {', '.join(system['tables'])}",
            "cuda": system["why_no_cuda"] or "ready",
            "16-bit files": "bf16 and fp16 on CUDA: tensor cores by default, without the CPU's bits; linear_dtype = 'float32' has them",
            "precision": "activation_bits = 16 (the default) and 8, on all kernels; on CUDA, 16 is tested in emulation",
            "test parts": "in this build" if hasattr(_core, "testing") else "left out of this build (CMake option LLMI_TESTING)",
            "threads": f"{system['num_threads']} (LLMI_NUM_THREADS, OMP_NUM_THREADS, affinity and cgroup counted)",
            "memory": f"{system['available_memory_bytes'] / 1e6:,.0f} MB free",
            "connectors": connectors(),
            "optional": ", ".join(found) or "none installed",
            "cache": cache,
        }
    )
