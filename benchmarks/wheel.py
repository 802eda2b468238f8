"""Seconds from a wheel to the first answer in a fresh environment, by pip and by uv, and the wheel's size and oldest glibc.

    python benchmarks/wheel.py dist/llmi-*.whl [--root DIR]

The environment is made before the clock starts; packages come from the clients' caches where they have them, and the model is in llmi's.
A root (debootstrap, with a python3.11 in it and the needed wheels in /wheels) is entered by chroot, the wheel is installed there, and
`llmi doctor`, the digests of logits and the README's question are asked of it.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report

from llmi.testing.__main__ import ANSWER, QUESTION

PYTHON = "python3.11"


def timed(*commands: Sequence[str | Path]) -> tuple[dict[str, float], str]:
    """What the commands took together, on the clock and of processors, and what the last one printed."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tempfile.gettempdir())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(time.monotonic() - start, 2), "cpu_seconds": round(spent, 2)}, done.stdout.strip()


def to_the_answer(wheel: Path, folder: Path, installer: str) -> dict[str, float]:
    """By "pip" or "uv"."""
    environment = folder / installer
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin/python"
    install = (
        [python, "-m", "pip", "install", "-q", wheel] if installer == "pip" else ["uv", "pip", "install", "-q", "--python", python, wheel]
    )
    took, answer = timed(install, [environment / "bin/llmi", "chat", "-p", QUESTION])
    assert answer == ANSWER, answer
    return took


def asked_in(root: Path, wheel: Path) -> dict[str, str]:
    """What the wheel says in another system."""
    shutil.copy(wheel, root / "wheels")
    install = f"{PYTHON} -m venv /fresh 2>/dev/null || {PYTHON} -m venv --without-pip /fresh; PYTHONPATH=$(ls /wheels/pip-*.whl) /fresh/bin/python -m pip install -q --no-index --find-links /wheels /wheels/{wheel.name}"
    commands = [
        install,
        f"{PYTHON} -c \"import os; print(os.confstr('CS_GNU_LIBC_VERSION'))\"",
        "/fresh/bin/llmi doctor",
        "/fresh/bin/python -m llmi.testing",
        f"/fresh/bin/llmi chat -p '{QUESTION}'",
    ]
    said = [
        subprocess.run(
            ["chroot", root, "/bin/bash", "-c", f"cd / && {command}"],
            env={**os.environ, "HOME": "/root"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for command in commands
    ]
    assert said[-1] == ANSWER, said[-1]
    return {"libc": said[1], "doctor": said[2], "digests": said[3], "answer": said[4]}


def run(options: argparse.Namespace) -> dict[str, Any]:
    wheel = options.wheel.resolve()
    with tempfile.TemporaryDirectory() as folder:
        took = {name: to_the_answer(wheel, Path(folder), name) for name in ("pip", "uv") if name == "pip" or shutil.which("uv")}
    oldest = min(re.findall(r"manylinux_2_(\d+)_", wheel.name), key=int)
    result = {"wheel": wheel.name, "bytes": wheel.stat().st_size, "oldest_glibc_by_symbols": f"2.{oldest}", "to_answer": took}
    return result | ({"root": asked_in(options.root.resolve(), wheel)} if options.root else {})


def table(result: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in result.items())


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("wheel", type=Path)
    arguments.add_argument("--root", type=Path, help="a system with an older libc")
    sys.exit(report.main(arguments, run, table))
