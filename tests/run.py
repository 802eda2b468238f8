"""Sets up what the tests need, in the environment of this Python, and runs them.

    python3 tests/run.py [--all | --rest] [pytest arguments]

Outside a virtual environment it makes one in .venv first. Installs llmi from this checkout with the extras that the tests use, then runs
pytest, in two processes (in one with `-n 0`), and passes its status on.

The short run leaves out the tests marked `slow` and `parity`, and installs neither torch nor transformers. `--rest` runs those alone,
`--all` everything. A package that a test needs and that is not there is an error, but for those that only the others' tests need.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHORT = "test,lint,pandas"
LONG = f"{SHORT},parity,notebook,plot,outlines,lm-format-enforcer,privacy"
#: The marks of each run. Whole modules of tests may be skipped where the short run lacks a package that they import.
RUNS = {
    "": (SHORT, ["-m", "not slow and not parity"], "outlines,lmformatenforcer"),
    "--rest": (LONG, ["-m", "slow or parity"], ""),
    "--all": (LONG, [], ""),
}


def main(arguments: list[str]) -> int:
    run = arguments.pop(0) if arguments[:1] in (["--rest"], ["--all"]) else ""
    extras, marks, lacking = RUNS[run]
    if sys.prefix == sys.base_prefix:
        python = ROOT / ".venv" / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(ROOT / ".venv")], check=True)
    else:
        python = Path(sys.executable)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    with_test_parts = "--config-settings=cmake.define.LLMI_TESTING=ON"
    subprocess.run([*pip, with_test_parts, f"{ROOT}[{extras}]"], check=True)
    # From outside the checkout's python/ folder: what is tested is what was installed.
    status = subprocess.run(
        [str(python), "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-n", "2", "--dist", "worksteal", *marks, *arguments],
        cwd=ROOT,
        env={**os.environ, "TESTS_LACK": lacking},
        check=False,
    )
    return status.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
