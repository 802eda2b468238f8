"""Libraries of tests/native that stand in for those of a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build_library(source: Path, folder: Path) -> str:
    if shutil.which("c++") is None:
        pytest.skip("no compiler")
    library = str(folder / f"lib{source.stem}.so")
    command = [
        "c++",
        "-std=c++20",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        str(source),
        "-o",
        library,
        "-I",
        str(ROOT / "csrc"),
    ]
    subprocess.run(command, check=True)
    return library
