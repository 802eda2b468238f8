"""What a release is made of: one version, the list of wheels, the checklist, and the check for users."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import llmi
from llmi.testing.__main__ import CASES

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").is_file(), reason="the sources are not beside the tests")
NAMES = {
    "defaults": "auto float16 a16",
    "activation_bits=8": "auto float16",
    "dtype=float32": "float32 float32",
    "dtype=bfloat16": "bfloat16 float16",
    "activation_bits=8, bf16 cache": "auto bfloat16",
    "bf16 products": "bf16dot float16",
}


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["scikit-build"]["metadata"]["version"]["input"] == "python/llmi/__init__.py"
    assert f"\nversion: {llmi.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(llmi.__version__)} \(\d{{4}}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_checklist_says_what_is_missing() -> None:
    done = subprocess.run([ROOT / "tools/release.sh", "--check"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert [line[:4] for line in lines[:4]] == ["yes "] * 4 and len(lines) == 6, done.stdout + done.stderr
    assert done.returncode == any(line.startswith("no") for line in lines)


def test_the_list_of_wheels() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    builds = [f"{tag.removesuffix('*')}manylinux_{arch}" for arch in settings["archs"] for tag in settings["build"].split()]
    pythons = ("cp311", "cp312", "cp313", "cp314")
    assert builds == [f"{python}-manylinux_{arch}" for arch in ("x86_64", "aarch64") for python in pythons]
    images = {arch: settings[f"manylinux-{arch}-image"] for arch in settings["archs"]}
    assert set(images.values()) == {"manylinux_2_28"} and settings["skip"] == "*-musllinux_*"
    assert settings["environment"] == {"CMAKE_ARGS": "-DLLMI_CUDA=OFF"}


def test_digests_of_the_users_check_are_the_committed_ones() -> None:
    known = json.loads((ROOT / "tests/data/logits_digests.json").read_text())
    for name, (_, digests) in CASES.items():
        assert digests == {count: known[f"smollm2-135m-instruct {NAMES[name]} {count}"] for count in (40, 5)}, name


def test_the_users_check_finds_equal_bits(smollm_path: Path) -> None:
    environment = {**os.environ, "LLMI_AUDIT": "0"}
    done = subprocess.run([sys.executable, "-m", "llmi.testing", "--table"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{len(CASES)} settings: equal\n"), done.stderr


def test_doctor_says_which_build_it_is() -> None:
    assert re.match(
        r"none installed|built on this machine .*: \S+|a wheel for many Linux systems, without CUDA: \S+", llmi.doctor().facts["build"]
    )
