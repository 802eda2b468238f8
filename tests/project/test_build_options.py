"""What a wheel leaves out, and that what users have works without it. Runs on both builds; .ci/check_wheel runs it on the small one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import llmi
from llmi import _core
from llmi.base.compiled import lacking
from waiting import HANG_S

PACKAGE = Path(llmi.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
HAS_TEST_PARTS = hasattr(_core, "testing")

#: llmi.testing in an interpreter whose core has no test parts.
WITHOUT_TEST_PARTS = """
import os
from llmi import _core
from llmi.base.compiled import lacking
if hasattr(_core, "testing"):
    del _core.testing
import llmi
from llmi import LLM, PromptLookup, SamplingParams, SpeculativeConfig
from llmi.testing import assert_lossless, assert_same_distribution, assert_same_tokens, exact_distribution, random_drafter, tiny_model, verification_law

path = tiny_model("gemma3", vocab_size=16)
with LLM(path, kv_cache_memory_bytes=1 << 24, max_model_len=256) as llm:
    law = exact_distribution(llm, [1, 2], SamplingParams(top_k=2, seed=1), num_tokens=2)
    assert len(law) == 4
    assert_lossless(PromptLookup(), llm, num_tokens=50)
    assert_lossless(SpeculativeConfig(random_drafter(0.5), 2, "rejection"), llm, [[1, 2]], [SamplingParams(temperature=0.8)], num_tokens=10)
    assert_same_tokens(llm.generate([1, 2], seed=1, max_tokens=4), llm.generate([1, 2], seed=1, max_tokens=4))
assert sum(verification_law("rejection", [0.5, 0.5], [0.25, 0.75]).values()) == 1
assert_same_distribution({0: 500, 1: 500}, {0: 0.5, 1: 0.5})
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=HANG_S, check=False
    )


def test_llmi_testing_needs_no_test_parts() -> None:
    done = run(WITHOUT_TEST_PARTS)
    assert done.returncode == 0, done.stderr


def test_fixtures_work(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "def test_it(tiny_llm, tiny_llm_factory, random_drafter):\n"
        "    assert tiny_llm.generate([1], max_tokens=2, seed=1)[0].token_ids\n"
        "    assert tiny_llm_factory() is tiny_llm and random_drafter(0.5).quality == 0.5\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_package_does_not_use_test_parts() -> None:
    users = [path.name for path in PACKAGE.glob("*.py") if re.search(r"_core\.testing|(?<!has)attr\(_core, .testing", path.read_text())]
    assert not users


def test_doctor_tells() -> None:
    shown = llmi.doctor().facts["test parts"]
    assert shown.startswith("in this build" if HAS_TEST_PARTS else "left out")


@pytest.mark.skipif(HAS_TEST_PARTS, reason="a build with test parts emulates")
def test_emulation_is_refused_in_one_line() -> None:
    code = """
import llmi
from llmi.testing import tiny_model
try:
    llmi.LLM(tiny_model(), device="cuda")
except llmi.DeviceError as error:
    print(error)
"""
    done = run(code, LLMI_EMULATE_CUDA="1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 1 and "LLMI_TESTING=ON" in lines[0] and "emulated device" in lines[0], done.stdout


@pytest.mark.skipif(not (ROOT / "cmake").is_dir(), reason="no checkout")
def test_sources_of_test_parts_are_listed_apart() -> None:
    """A file that only tests need is in no list of the product; a wheel's build has the option off, tests/run.py on."""
    lists = dict(re.findall(r"set\((\w+)([^)]*)\)", (ROOT / "cmake" / "Sources.cmake").read_text()))
    product = lists["LLMI_CORE_SOURCES"] + lists["LLMI_BINDING_SOURCES"]
    assert not re.search(r"bind_testing|bind_device_probes|emulated_device", product)
    apart = lists["LLMI_TESTING_CORE_SOURCES"] + lists["LLMI_TESTING_BINDING_SOURCES"]
    assert all(name in apart for name in ("bind_testing.cpp", "bind_device_probes.cpp", "cuda/emulated_device.cc"))
    assert 'cmake.define.LLMI_TESTING = "OFF"' in (ROOT / "pyproject.toml").read_text()
    assert "cmake.define.LLMI_TESTING=ON" in (ROOT / "tests" / "run.py").read_text()


@pytest.mark.skipif(not (ROOT / "cmake").is_dir() or shutil.which("cmake") is None, reason="no checkout, or no cmake")
@pytest.mark.parametrize("compiler", ["GNU 10.2", "IntelLLVM 2024.1"])
def test_a_compiler_that_was_not_compared_is_refused(compiler: str, tmp_path: Path) -> None:
    name, version = compiler.split()
    given = {"COMPILER_ID": name, "COMPILER_VERSION": version, "COMPILER_ID_RUN": "TRUE", "COMPILER_WORKS": "TRUE"}
    given |= {"STANDARD_COMPUTED_DEFAULT": "17", "EXTENSIONS_COMPUTED_DEFAULT": "ON"}  # else CMake asks the compiler itself
    flags = [f"-DCMAKE_CXX_{key}={value}" for key, value in given.items()]
    done = subprocess.run(["cmake", "-S", ROOT, "-B", tmp_path, *flags], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 1 and re.search(rf"needs\s+GCC\s+11.*is\s+{name}\s+{version}", done.stderr, re.DOTALL), done.stderr


def test_a_processor_that_lacks_what_is_needed() -> None:
    flags = "fpu vme cx16 lahf_lm popcnt sse4_1 ssse3"
    assert lacking(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t:\n") == ["sse4_2"]
    assert lacking(f"flags\t\t: {flags} sse4_2\n") == lacking("Features\t: fp asimd\n") == lacking("") == []


def test_a_missing_or_old_compiled_module_says_what_to_do() -> None:
    done = run("import sys; sys.modules['llmi._core'] = None; import llmi; llmi.LLM")
    assert re.match(r"ImportError: llmi's compiled module cannot be loaded .*--force-reinstall", done.stderr.splitlines()[-1]), done.stderr
    with pytest.raises(AttributeError, match=r"'a_newer_name'; if it is older than these Python files, install the wheel"):
        _core.a_newer_name  # type: ignore[attr-defined]  # noqa: B018
