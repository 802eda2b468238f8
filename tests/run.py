"""Sets up what the tests need, in the environment of this Python, and runs them.

    python3 tests/run.py [pytest arguments]

Outside a virtual environment it makes one in .venv first. Installs llmi from this checkout with the extras that tests
use (torch is the exact version that parity is measured against), then runs pytest, in two
processes (in one with `-n 0`), and passes its status on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    if sys.prefix == sys.base_prefix:
        python = ROOT / ".venv" / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(ROOT / ".venv")], check=True)
    else:
        python = Path(sys.executable)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "torch==2.13.0"], check=True)
    with_test_parts = "--config-settings=cmake.define.LLMI_TESTING=ON"
    subprocess.run([*pip, with_test_parts, f"{ROOT}[test,parity,lint,notebook,pandas,plot,outlines,lm-format-enforcer]"], check=True)
    # From outside the checkout's python/ folder: what is tested is what was installed.
    status = subprocess.run(
        [str(python), "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-n", "2", "--dist", "worksteal", *sys.argv[1:]],
        cwd=ROOT,
        env=dict(os.environ),
        check=False,
    )
    return status.returncode


if __name__ == "__main__":
    sys.exit(main())
