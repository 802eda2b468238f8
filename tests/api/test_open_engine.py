"""How an engine is opened: from C++ without Python, with the tokens and logits that Python gets; and by named options from Python."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_gguf
from llmi import LLM, SamplingParams, _core
from llmi.families import spec_of
from llmi.models.files import open_model
from llmi.testing import tiny_model
from waiting import HANG_S

ROOT = Path(__file__).parents[2]
PROMPT = [*range(1, 19)]


def core_library() -> Path:
    """The newest libllmi_core.a of this checkout, unless a source is newer."""
    libraries = sorted((ROOT / "build").glob("*/libllmi_core.a"), key=lambda path: path.stat().st_mtime)
    if not libraries:
        pytest.skip("no libllmi_core.a in build/: the core was built elsewhere")
    sources = [path for suffix in ("h", "cc", "cu") for path in (ROOT / "csrc").rglob(f"*.{suffix}")]
    if any(path.stat().st_mtime > libraries[-1].stat().st_mtime for path in sources):
        pytest.skip(f"{libraries[-1].relative_to(ROOT)} is older than the sources: build the core first")
    return libraries[-1]


def cuda_flags(library: Path) -> list[str]:
    """What a library with the CUDA backend is linked with besides, from where CMake found the toolkit's libraries."""
    for found in library.parent.glob("CMakeFiles/*/CMakeCUDACompiler.cmake"):
        folders = re.search(r'CMAKE_CUDA_HOST_IMPLICIT_LINK_DIRECTORIES "([^"]*)"', found.read_text())
        assert folders is not None
        return [*(f"-L{folder}" for folder in folders[1].split(";") if folder), "-lcudart_static", "-lrt"]
    return []


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("c++") is None or not (ROOT / "csrc").is_dir():
        pytest.skip("no compiler, or no sources")
    library = core_library()
    program = tmp_path_factory.mktemp("native") / "open_engine"
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    source = str(ROOT / "tests/native/open_engine.cc")
    subprocess.run(
        ["c++", *flags, source, str(library), "-o", str(program), *cuda_flags(library), "-lpthread", "-ldl"], check=True, timeout=300
    )
    return program


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("device_name", ["cpu", "emulated"])
def test_opened_by_cpp(program: Path, architecture: str, device_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if device_name == "emulated" and not hasattr(_core, "testing"):
        pytest.skip("this build has no emulated device")
    path = tiny_gguf.write(tmp_path / "tiny.gguf", tiny_model(architecture, vocab_size=258, num_layers=3, path=tmp_path / "directory"))
    spec = tmp_path / "spec.json"
    spec.write_text(spec_of(open_model(path).core).to_json())
    done = subprocess.run([str(program), str(path), str(spec), device_name], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]

    monkeypatch.setenv("LLMI_EMULATE_CUDA", "1")
    device = "cpu" if device_name == "cpu" else "cuda"
    with LLM(path, device=device, max_num_batched_tokens=16, kv_cache_memory_bytes=1 << 23, max_model_len=256) as llm:
        params = SamplingParams(n=3, temperature=0.9, seed=2, max_tokens=24, ignore_eos=True)
        outputs = llm.generate(PROMPT, params)[0].outputs
        assert [line[0] for line in lines] == ["tokens"] * 3 + ["logits"]
        assert [[int(token) for token in line[1:]] for line in lines[:3]] == [output.token_ids for output in outputs]
        assert len({tuple(output.token_ids) for output in outputs}) == 3
        with llm.sequence(PROMPT) as sequence, sequence.fork() as fork:
            sequence.extend([20, 21])
            fork.extend([30])
            assert [int(word, 16) for word in lines[3][1:]] == fork.logits.view(np.uint32).tolist()


def test_a_model_that_is_not_there(program: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text("{}")
    command = [str(program), str(tmp_path / "none.gguf"), str(spec), "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 1 and "none.gguf" in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    "name, value, error, message",
    [
        ("max_num_sequences", 3, TypeError, "the engine has no option max_num_sequences"),
        ("max_num_seqs", "3", TypeError, "the engine's option max_num_seqs has another type: '3'"),
        ("device", "tpu", _core.CoreError, "device must be cpu or cuda"),
        ("scheduling_policy", "lifo", _core.CoreError, "scheduling_policy 'lifo' is unknown"),
        ("linear_dtype", "int8", _core.CoreError, "linear_dtype 'int8' is unknown"),
        ("linear_dtype", "fp16", _core.CoreError, "multiplies on a GPU's tensor cores"),
        ("cublas_lt", "libcublasLt.so", _core.CoreError, "cuBLASLt multiplies on a GPU"),
        ("activation_bits", 4, _core.CoreError, "activation_bits must be 8 or 16"),
    ],
)
def test_options_that_the_core_refuses(name: str, value: object, error: type[Exception], message: str, tmp_path: Path) -> None:
    """A name, a type or a choice that the core does not know is named; LLM refuses them earlier, in its own words."""
    files = open_model(tiny_model(path=tmp_path))
    with pytest.raises(error) as caught:
        _core.Engine(files.core, dropped=_core.DropFlag(), **{name: value})
    assert message in str(caught.value)


def test_none_is_the_cores_default(tmp_path: Path) -> None:
    files = open_model(tiny_model(path=tmp_path))
    given: dict[str, Any] = {"spec": spec_of(files.core).to_json(), "kv_cache_memory_bytes": 1 << 23, "max_model_len": 64}
    plain = _core.Engine(files.core, dropped=_core.DropFlag(), **given).info()
    assert _core.Engine(files.core, dropped=_core.DropFlag(), **given, num_threads=None, block_size=None, dtype=None).info() == plain
