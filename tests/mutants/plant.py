"""Plants the bugs one at a time (see mutant.py): the tests that each names must fail. The short run finds all of them.

    python tests/mutants/plant.py [PART ..]     those whose name or tests contain a PART; all without

Builds a copy of the repository in a temporary directory, for which cmake, ninja and pybind11 must be installed. Exits with 1 if a
bug is missed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bugs_of_decoding
import bugs_of_numbers
import bugs_of_ranks
import bugs_of_the_surface
import bugs_of_tiers

ROOT = Path(__file__).parents[2]
MUTANTS = [*bugs_of_numbers.BUGS, *bugs_of_decoding.BUGS, *bugs_of_ranks.BUGS, *bugs_of_the_surface.BUGS, *bugs_of_tiers.BUGS]


def run(command: list[str], cwd: Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def build(source: Path, target: Path) -> str:
    """Builds the module into the package; returns what went wrong."""
    result = run(["ninja", "_core"], target)
    if result.returncode != 0:
        return result.stdout[-600:]
    for module in target.glob("_core*.so"):
        shutil.copy(module, source / "python" / "llmi")
    return ""


def configure(source: Path, target: Path) -> None:
    pybind11 = run([sys.executable, "-m", "pybind11", "--cmakedir"], ROOT).stdout.strip()
    defines = {
        "CMAKE_BUILD_TYPE": "Release",
        "LLMI_CUDA": "OFF",
        "LLMI_TESTING": "ON",
        "pybind11_DIR": pybind11,
        "Python_EXECUTABLE": sys.executable,
    }
    flags = [*(f"-D{name}={value}" for name, value in defines.items()), *os.environ.get("CMAKE_ARGS", "").split()]
    configured = run(["cmake", "-G", "Ninja", "-B", str(target), *flags, str(source)], source)
    assert configured.returncode == 0, configured.stderr


def main(parts: list[str]) -> int:
    if any(part.startswith("-") for part in parts):
        print(__doc__)
        return 2
    chosen = [mutant for mutant in MUTANTS if not parts or any(part in f"{mutant.name} {mutant.tests}" for part in parts)]
    missed = []
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        target = source / "build" / "mutants"  # as deep as other builds: a compiler's cache finds their objects
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".git", "*.so", "__pycache__", ".venv*", "build"))
        configure(source, target)
        assert not (fault := build(source, target)), fault
        environment = {**os.environ, "PYTHONPATH": str(source / "python")}
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "120", "-m", "not slow and not parity"]
        for files in sorted({mutant.files() for mutant in chosen}):  # a test that fails anyway catches nothing
            sound = run([*pytest, *files], source, environment)
            assert sound.returncode == 0, f"{files} fail without any bug:\n{sound.stdout[-2000:]}"
        for mutant in chosen:
            path, original = mutant.apply(source)
            start = time.monotonic()
            if path.suffix != ".py" and (fault := build(source, target)):
                verdict = f"DOES NOT BUILD: {fault}"
            else:
                # 1: a test failed. A crash ends by a signal: caught too.
                status = run([*pytest, *mutant.files()], source, environment).returncode
                verdict = "caught" if status == 1 or status < 0 else f"MISSED (pytest ended with {status})"
            if verdict != "caught":
                missed.append(mutant.name)
            path.write_text(original)
            print(f"{mutant.name}: {verdict} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
