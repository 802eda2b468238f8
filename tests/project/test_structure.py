"""The shape of the code: layers, file sizes, the top level, and what must not be there."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest

from mutant import Mutant
from plant import MUTANTS
from python_imports import Import, all_imports, circle_of, graph_of, imports_of, is_protocol, package_of, reached_from

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="the sources are not beside the tests")

# A layer may include itself and those listed.
LAYERS = {
    "core": set(),
    "kernels": {"core"},
    "io": {"core"},
    "cache": {"core", "kernels"},
    "model": {"core", "kernels", "io", "cache"},
    "sampling": {"core", "kernels"},
    "scheduler": {"core", "cache"},
    "constraint": {"core"},
    "speculative": {"core", "kernels", "sampling"},
    "engine": {"core", "kernels", "io", "cache", "model", "sampling", "scheduler", "speculative", "constraint"},
    "bindings": {"core", "kernels", "io", "cache", "model", "sampling", "scheduler", "speculative", "constraint", "engine"},
}
SOURCES = sorted(path for suffix in ("h", "cc", "cpp", "cu") for path in (ROOT / "csrc").rglob(f"*.{suffix}"))
TRACKED = [
    ROOT / line for line in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
]


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include ["<]([^">]+)[">]', path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_layers(path: Path) -> None:
    layer = path.relative_to(ROOT / "csrc").parts[0]
    for name in includes(path):
        top = name.split("/")[0]
        if top in LAYERS:
            assert top == layer or top in LAYERS[layer], f"{layer} may not include {name}"
        if top == "pybind11" or name == "Python.h":
            assert layer == "bindings"
        if name in ("immintrin.h", "x86intrin.h"):
            assert "kernels/cpu" in str(path)
        if name.startswith(("cuda", "cub/", "thrust/")):
            assert "kernels/cuda" in str(path)
        assert name != "regex", "std::regex is exponential on hostile input"


# What headers of a folder of csrc/kernels may include of the others. Sources of ops run ops, so they include dispatch as well.
KERNEL_HEADERS = {"layout": set(), "draws": set(), "ops": {"layout"}, "dispatch": {"layout", "draws", "ops"}}


def test_folders_of_kernels() -> None:
    kernels = ROOT / "csrc/kernels"
    assert not [path for path in kernels.iterdir() if path.is_file()]
    for path in SOURCES:
        folder = path.relative_to(kernels).parts[0] if path.is_relative_to(kernels) else ""
        if folder not in KERNEL_HEADERS:
            continue
        above = {"dispatch"} if path.suffix != ".h" else set()
        for name in includes(path):
            if name.startswith("kernels/"):
                assert name.split("/")[1] in KERNEL_HEADERS[folder] | {folder} | above, f"{path}: {name}"


def test_instruction_set_files_use_no_containers() -> None:
    for path in SOURCES:
        if any(part in path.parts for part in ("simd", "avx2", "avx_vnni", "avx512", "avx512_bf16")):
            assert set(includes(path)) & {"vector", "string", "algorithm", "map", "memory", "cmath"} == set(), path


@pytest.mark.slow
def test_headers_stand_alone(tmp_path: Path) -> None:
    """Each header compiles by itself (those named -inl.h are parts of an instruction set's one file, and pybind11's need Python).

    A source file includes its own header before all others, so the build compiles that one by itself. The others are compiled here.
    """
    headers = [
        path
        for path in SOURCES
        if path.suffix == ".h" and not path.name.endswith("-inl.h") and "bindings" not in path.relative_to(ROOT).parts
    ]
    alone = []
    for path in headers:
        source, line = path.with_suffix(".cc"), f'#include "{path.relative_to(ROOT / "csrc")}"'
        if source.is_file():
            assert re.search(r"^#include .*", source.read_text(), re.MULTILINE)[0] == line, f"{source} must include its own header first"  # type: ignore[index]
        else:
            alone.append(line)
    for index, line in enumerate(alone):
        (tmp_path / f"{index}.cc").write_text(line + "\n")
    files = [str(tmp_path / f"{index}.cc") for index in range(len(alone))]
    result = subprocess.run(
        ["c++", "-std=c++20", "-fsyntax-only", "-Wall", f"-I{ROOT / 'csrc'}", *files], capture_output=True, text=True, check=False
    )
    assert len(alone) > 50 and result.returncode == 0, result.stderr


def test_top_level() -> None:
    allowed = {
        "pyproject.toml",
        "CMakeLists.txt",
        "cmake",
        "csrc",
        "python",
        "tests",
        "benchmarks",
        "notebooks",
        "docs",
        "tools",
        "CITATION.cff",
        "NOTICE",
        "README.md",
        "LICENSE",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        ".ci",
        ".clang-format",
        ".gitignore",
    }
    assert {path.relative_to(ROOT).parts[0] for path in TRACKED} <= allowed


def test_no_pickle_and_no_leftovers() -> None:
    for path in TRACKED:
        if path.suffix not in (".py", ".h", ".cc", ".cpp", ".cu") or path == Path(__file__):
            continue
        text = path.read_text()
        if path.relative_to(ROOT).parts[0] != "tests":  # tests show that objects travel; the product never loads a pickle
            assert not re.search(r"\b(pickle|marshal|dill|torch\.load)\b", text), path
        assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text), path
        assert not re.search(r"/(root|work|home)/", text), path


def test_one_place_renders_templates() -> None:
    package = ROOT / "python/llmi"
    users = [path for path in package.rglob("*.py") if re.search(r"^\s*(import|from) jinja2", path.read_text(), re.MULTILINE)]
    assert users == [package / "chat/environment.py"]


# Modules of llmi that are loaded when they are needed. Their classes may be imported for type checkers alone.
# NumPy is loaded by two of them, and a first token needs none.
LOADED_LATE = {
    "llmi.async_llm",
    "llmi.handover.engine",
    "llmi.lab.capture",
    "llmi.lab.sequence",
    "llmi.lab.tree",
    "llmi.outputs.receipt",
    "llmi.outputs.trace",
    "llmi.ranks.workers",
    "llmi.speculation.factory",
}


@pytest.mark.parametrize("of_packages", [False, True], ids=["modules", "packages"])
def test_python_imports_have_no_circle(of_packages: bool) -> None:
    """Those in functions count. So do those for type checkers alone, unless they are of protocols."""
    counted = [entry for entry in all_imports() if not (entry.for_types and is_protocol(entry.target, entry.name))]
    circle = circle_of(graph_of(counted, of_packages))
    steps = set(itertools.pairwise(circle))
    places = [
        str(entry) for entry in counted if steps & {(entry.module, entry.target), (package_of(entry.module), package_of(entry.target))}
    ]
    assert circle == [], f"{' -> '.join(circle)}: {places}"


def test_python_imports_for_type_checkers_are_of_protocols() -> None:
    for_types = [entry for entry in all_imports() if entry.for_types and not is_protocol(entry.target, entry.name)]
    assert [str(entry) for entry in for_types if entry.target not in LOADED_LATE] == [], "without a circle it can be imported for all"
    early = graph_of(entry for entry in all_imports() if entry.at_top and not entry.for_types)
    assert reached_from(early, "llmi.llm") & LOADED_LATE == set()
    assert {entry.target for entry in for_types} == LOADED_LATE, "take out what is no longer imported so"


def test_circles_of_imports_are_found() -> None:
    circle = circle_of({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}})
    assert "".join(circle) in ("abca", "bcab", "cabc"), "each imports the next"
    assert circle_of({"a": {"b", "c"}, "b": {"c"}}) == []
    source = "from llmi.llm import LLM\nif TYPE_CHECKING:\n    from llmi.session import Session\ndef f():\n    import llmi\n    return llmi.Receipt\n"
    assert list(imports_of("x", source)) == [
        Import("x", "llmi.llm", "LLM", 1, False, True),
        Import("x", "llmi.session", "Session", 3, True, True),
        Import("x", "llmi", "", 5, False, False),
        Import("x", "llmi.outputs.receipt", "Receipt", 6, False, False),
    ]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bugs_still_fit(mutant: Mutant) -> None:
    """plant.py takes long: this says at once that a change has moved the place of one, or made it two."""
    mutant.find(ROOT)
    assert all((ROOT / path).is_file() for path in mutant.files())


def test_each_subject_has_a_planted_bug() -> None:
    subjects = {path.parts[-2] for path in (ROOT / "tests").glob("*/test_*.py")}
    assert {name.split("/")[0] for mutant in MUTANTS for name in mutant.tests.split()} == subjects


def test_the_short_run_has_all_of_kernels_cache_and_sampling() -> None:
    """A wrong bit there is found by the run that everybody makes."""
    for folder in ("kernels", "cache", "sampling"):
        files = list((ROOT / "tests" / folder).glob("test_*.py"))
        assert files and not [path.name for path in files if "mark.slow" in path.read_text()], folder
