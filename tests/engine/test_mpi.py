"""Ranks that mpirun starts. Those that need an MPI run where the extra `mpi` is installed (docs/parallel.md names the command)."""

from __future__ import annotations

import ctypes
import http.client
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmi import LLM, InvalidParamsError, UnsupportedCombinationError
from llmi.errors import MissingExtraError
from llmi.ranks import mpi_world as mpi
from llmi.testing import tiny_model

MPIRUN = shutil.which("mpirun", path=str(Path(sys.prefix) / "bin")) or shutil.which("mpirun")
needs_mpi = pytest.mark.skipif(MPIRUN is None, reason="no mpirun: pip install 'llmi[mpi]'")
needs_open_mpi = pytest.mark.skipif(MPIRUN is None or not Path(str(MPIRUN)).with_name("prte").exists(), reason="no Open MPI")
SCRIPT = """
import os, signal, sys
from llmi import LLM
llm = LLM(sys.argv[1], seed=3, kv_cache_memory_bytes=1 << 23, num_threads=2{arguments})
{rest}
"""
PRINTS = "print(*(output.outputs[0].token_ids for output in llm.generate([[5, 9, 2, i] for i in range(4)], max_tokens=12)))"
PLAIN = f"""
import os, signal, sys
from llmi import LLM
def start():
    return LLM(sys.argv[1], seed=3, kv_cache_memory_bytes=1 << 23, tensor_parallel_size=3, distributed_executor_backend="mpi")
llm = start()
{PRINTS}
pid = llm.workers()[1].pid
os.kill(pid, signal.SIGKILL)
try:
    llm.generate([[5]], max_tokens=900, ignore_eos=True)
except Exception as error:
    print(type(error).__name__, str(pid) in str(error))
llm = start()
{PRINTS}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(vocab_size=257, path=tmp_path_factory.mktemp("mpi"))


def launcher(ranks: int) -> list[str]:
    said = subprocess.run([str(MPIRUN), "--version"], capture_output=True, text=True, check=True).stdout
    return [str(MPIRUN), *(["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in said else []), "-n", str(ranks)]


def run(model: Path, ranks: int, rest: str, tensor_parallel_size: str = "2") -> subprocess.CompletedProcess[str]:
    """The script under mpirun; with 0 ranks, in one process without."""
    start: Sequence[str] = ()
    arguments = ""
    if ranks:
        start = launcher(ranks)
        arguments = f", tensor_parallel_size={tensor_parallel_size}, distributed_executor_backend='mpi'"
    script = SCRIPT.format(arguments=arguments, rest=rest)
    return subprocess.run([*start, sys.executable, "-c", script, str(model)], capture_output=True, text=True, timeout=120, check=False)


@needs_mpi
def test_two_ranks_print_what_one_process_prints(model: Path) -> None:
    two = run(model, 2, PRINTS)
    assert two.returncode == 0, two.stderr
    assert two.stdout == run(model, 0, PRINTS).stdout != ""


@needs_mpi
def test_a_rank_that_dies_is_named(model: Path) -> None:
    found = run(
        model,
        2,
        "pid = llm.workers()[1].pid\nos.kill(pid, signal.SIGKILL)\n"
        "try:\n    llm.generate([[5, 6]], max_tokens=900)\nexcept Exception as error:\n    print(type(error).__name__, str(pid) in str(error))",
    )
    assert found.returncode != 0
    assert found.stdout.partition("\n=")[0] in ("", "WorkerDiedError True\n")  # mpirun may end rank 0 first; MPICH's prints a frame


@needs_mpi
@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ("3", "tensor_parallel_size = 3, and MPI's world has 2 processes"),
        (
            "2, block_size=16 * (1 + int(os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK'))))",
            "has other arguments; rank 0 is",
        ),
    ],
)
def test_ranks_that_do_not_fit_are_refused(model: Path, arguments: str, want: str) -> None:
    found = run(model, 2, PRINTS, arguments)
    assert found.returncode != 0 and want in found.stderr


@needs_open_mpi
def test_a_plain_process_starts_them(model: Path) -> None:
    """One that dies ends its engine alone, and the next one works."""
    found = subprocess.run([sys.executable, "-c", PLAIN, str(model)], capture_output=True, text=True, timeout=120, check=False)
    assert found.stdout == run(model, 0, PRINTS).stdout + "WorkerDiedError True\n" + run(model, 0, PRINTS).stdout, found.stderr


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, whose path is the host."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


@needs_mpi
def test_a_server(model: Path, tmp_path: Path) -> None:
    """Rank 0 alone listens, and the end that mpirun is told reaches both."""
    path = tmp_path / "socket"
    flags = ["--tensor-parallel-size", "2", "--distributed-executor-backend", "mpi", "--num-threads", "2", "--uds", str(path)]
    command = [*launcher(2), sys.executable, "-m", "llmi", "serve", "-m", f"tiny={model}", *flags]
    body = {"model": "tiny", "prompt": [5, 9, 2], "max_tokens": 9, "temperature": 0, "return_token_ids": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, LLM(model) as llm:
        assert server.stdout is not None
        assert any(line.startswith("ready:") for line in server.stdout)
        connection = UnixConnection(str(path))
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "Host": "localhost"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        server.terminate()
        server.wait(60)
        (output,) = llm.generate([[5, 9, 2]], max_tokens=9, temperature=0)
    assert answer["choices"][0]["token_ids"] == output.outputs[0].token_ids


@needs_mpi
def test_one_world_has_one_engine(model: Path) -> None:
    again = "llm.close()\nLLM(sys.argv[1], tensor_parallel_size=2, distributed_executor_backend='mpi')"
    found = run(model, 2, again)
    assert found.returncode != 0 and "one MPI world has one LLM" in found.stderr


def test_a_missing_library_names_the_extra(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str, mode: int) -> ctypes.CDLL:
        raise OSError(path)

    monkeypatch.setattr(mpi.ctypes, "CDLL", missing)
    with pytest.raises(MissingExtraError, match=r"llmi\[mpi\]"):
        LLM(model, tensor_parallel_size=2, distributed_executor_backend="mpi")


def test_two_libraries_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi.Path, "read_text", lambda path: "/a/libmpi.so.40\n/b/libmpi_abi.so.1\n")
    with pytest.raises(InvalidParamsError, match="one process can have one MPI"):
        mpi.world_of(2, 1)


@pytest.mark.parametrize(
    ("variables", "maps", "want"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMI_SIZE": "2"}, "", "ranks are started by one MPI's mpirun"),
        ({"PMI_SIZE": "2"}, "/a/libmpi.so.40\n", "another MPI's mpirun has started this process"),
    ],
)
def test_two_launchers_are_refused(variables: dict[str, str], maps: str, want: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi.Path, "read_text", lambda path: maps)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidParamsError, match=want):
        mpi.world_of(2, 1)


def test_replicas_are_not_those_of_mpi(model: Path) -> None:
    with pytest.raises(UnsupportedCombinationError, match="has the ranks of tensor_parallel_size"):
        LLM(model, data_parallel_size=2, distributed_executor_backend="mpi")
