"""MPI, loaded at run time: who the ranks are, and what each tells all."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmi.errors import InvalidParamsError, MissingExtraError, UnsupportedCombinationError, WorkerDiedError

FIELD = "distributed_executor_backend"
_FACT_BYTES = 1024
_PAUSE_S = 0.02
_BOOT = "import sys; sys.path[:] = {path!r}; from llmi.ranks.mpi import serve_spawned; serve_spawned()"
#: Open MPI's library, and the one of MPI's standard ABI, which MPICH has.
_OPEN_MPI, _ABI = "libmpi.so.40", "libmpi_abi.so.1"
#: Variables that a launcher sets, and the library of its processes; srun may be any.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", (_OPEN_MPI,)),
    ("PMI_SIZE", (_ABI,)),
    ("PMIX_RANK", (_OPEN_MPI,)),
    ("SLURM_NTASKS", (_OPEN_MPI, _ABI)),
)


def launcher() -> str:
    """The variable by which this process was told of others; empty: it was started alone. Raises InvalidParamsError."""
    told = [variable for variable, _ in _LAUNCHERS if variable in os.environ]
    if "OMPI_COMM_WORLD_SIZE" in told and "PMI_SIZE" in told:
        raise InvalidParamsError("OMPI_COMM_WORLD_SIZE and PMI_SIZE are both set: ranks are started by one MPI's mpirun", FIELD)
    return told[0] if told else ""


def launched_rank() -> int:
    """The number that a launcher has given to this process; 0 where none has started it."""
    return next((int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK") if name in os.environ), 0)


def _library() -> ctypes.CDLL:
    """MPI of this process: the one that is loaded, else its launcher's. Raises InvalidParamsError and MissingExtraError."""
    mapped = Path("/proc/self/maps").read_text()
    loaded = [name for name in (_OPEN_MPI, _ABI) if f"/{name}" in mapped]
    if len(loaded) > 1:
        raise InvalidParamsError(f"{' and '.join(loaded)} are both loaded: one process can have one MPI", FIELD)
    names = dict(_LAUNCHERS).get(launcher(), (_OPEN_MPI, _ABI))
    if loaded and loaded[0] not in names:
        raise InvalidParamsError(f"{loaded[0]} is loaded, and another MPI's mpirun has started this process ({names[0]}): take one", FIELD)
    for name in loaded or names:
        for path in (Path(name), Path(sys.prefix) / "lib" / name):
            if path.is_absolute() and name == _OPEN_MPI and path.exists():
                for variable in ("OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX"):  # a wheel was built for another place
                    os.environ.setdefault(variable, sys.prefix)
            try:
                return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
    raise MissingExtraError("mpi", names[0])


@contextlib.contextmanager
def _environment(own: Mapping[str, str]) -> Iterator[None]:
    """Open MPI reads it when it begins, and hands it on to what it starts."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in own.items() if name not in before or name == "PATH"})
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


#: For ranks that Open MPI starts from a plain process: a dead one ends no other program, they may be more than cores and are bound to
#: none, and they run as the same user, who may be root.
_SPAWN = {
    "OMPI_MCA_mpi_ft_enable": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def _spawning() -> contextlib.AbstractContextManager[None]:
    return _environment({**_SPAWN, "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"})


class World:
    """The processes that compute together: those that were started so, or those that `spawn` starts.

    Raises
    ------
    InvalidParamsError, MissingExtraError
    WorkerDiedError
        From each call, where another process has gone.
    """

    was_used = False
    is_spawned = False

    def __init__(self) -> None:
        self._mpi = mpi = _library()
        self._is_open_mpi = hasattr(mpi, "ompi_mpi_comm_world")
        self._serialized = 2 if self._is_open_mpi else 2048
        self._comm = self._handle("ompi_mpi_comm_world", 0x101)
        self._byte = self._handle("ompi_mpi_byte", 0x247)
        begun, finalized = ctypes.c_int(), ctypes.c_int()
        mpi.MPI_Initialized(ctypes.byref(begun))
        mpi.MPI_Finalized(ctypes.byref(finalized))
        if finalized.value:
            raise InvalidParamsError("MPI was left by this program, and cannot be begun again in its process", FIELD)
        self._is_own = not begun.value
        if self._is_own:
            mpi.MPI_Init_thread(None, None, self._serialized, ctypes.byref(begun))
        self._enter(self._comm)

    def _enter(self, communicator: ctypes.c_void_p) -> None:
        rank, size = ctypes.c_int(), ctypes.c_int()
        self._comm = communicator
        self._mpi.MPI_Comm_rank(communicator, ctypes.byref(rank))
        self._mpi.MPI_Comm_size(communicator, ctypes.byref(size))
        self.rank, self.size = rank.value, size.value

    def _handle(self, open_mpi: str, abi: int) -> ctypes.c_void_p:
        """One of MPI's own objects: a symbol of Open MPI's, a number of the standard ABI's."""
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._mpi, open_mpi)) if self._is_open_mpi else abi)

    def _return_errors(self, communicator: ctypes.c_void_p) -> None:
        self._mpi.MPI_Comm_set_errhandler(communicator, self._handle("ompi_mpi_errors_return", 0x143))

    def _check(self, status: int) -> None:
        if status == 0:
            return
        text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
        self._mpi.MPI_Error_string(status, text, ctypes.byref(length))
        raise WorkerDiedError(f"MPI: {text.value.decode()}")

    def spawn(self, count: int) -> None:
        """Starts others, to be `count` ranks with this one. Raises InvalidParamsError where this MPI does not."""
        if not self._is_open_mpi:
            raise InvalidParamsError(f"Open MPI alone starts ranks from a plain process: start this one by mpirun -n {count}", FIELD)
        alone, between, merged = self._handle("ompi_mpi_comm_self", 0x102), ctypes.c_void_p(), ctypes.c_void_p()
        self._return_errors(alone)
        boot = _BOOT.format(path=[str(Path(__file__).parents[2]), *filter(None, sys.path)])
        argv = (ctypes.c_char_p * 4)(b"-P", b"-c", boot.encode(), None)
        info = self._handle("ompi_mpi_info_null", 0x130)
        with _spawning():
            self._check(self._mpi.MPI_Comm_spawn(os.fsencode(sys.executable), argv, count - 1, info, 0, alone, ctypes.byref(between), None))
        self._check(self._mpi.MPI_Intercomm_merge(between, 0, ctypes.byref(merged)))
        self._join(between, merged)

    def join_parent(self) -> None:
        """In a process that was started so."""
        between, merged = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._mpi.MPI_Comm_get_parent(ctypes.byref(between)))
        self._check(self._mpi.MPI_Intercomm_merge(between, 1, ctypes.byref(merged)))
        self._join(between, merged)

    def _join(self, between: ctypes.c_void_p, merged: ctypes.c_void_p) -> None:
        self.is_spawned, self._between = True, between
        self._enter(merged)
        self._return_errors(merged)

    def exchange(self, fact: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What each rank has said, by rank."""
        own = json.dumps(fact).encode().ljust(_FACT_BYTES)
        found = ctypes.create_string_buffer(_FACT_BYTES * self.size)
        self._check(self._mpi.MPI_Allgather(own, _FACT_BYTES, self._byte, found, _FACT_BYTES, self._byte, self._comm))
        return [json.loads(found.raw[begin : begin + _FACT_BYTES]) for begin in range(0, len(found.raw) - 1, _FACT_BYTES)]

    def tell(self, fact: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What rank 0 says to all."""
        text = json.dumps(fact).encode()
        length = ctypes.c_int64(len(text))
        self._check(self._mpi.MPI_Bcast(ctypes.byref(length), 8, self._byte, 0, self._comm))
        told = ctypes.create_string_buffer(text, length.value) if self.rank == 0 else ctypes.create_string_buffer(length.value)
        self._check(self._mpi.MPI_Bcast(told, length.value, self._byte, 0, self._comm))
        return dict(json.loads(told.raw))

    def handles(self) -> tuple[int, int, int]:
        """What the core calls MPI by: library, a communicator of its own, datatype. Raises InvalidParamsError."""
        level, own = ctypes.c_int(), ctypes.c_void_p()
        self._mpi.MPI_Query_thread(ctypes.byref(level))
        if level.value < self._serialized:
            raise InvalidParamsError("this program began MPI for its first thread alone: begin it with MPI_THREAD_SERIALIZED", FIELD)
        self._mpi.MPI_Comm_dup(self._comm, ctypes.byref(own))
        self._return_errors(own)
        assert own.value is not None and self._byte.value is not None
        return self._mpi._handle, own.value, self._byte.value

    def wait_for_all(self) -> None:
        """Sleeps until each rank has come here."""
        request, done, status = ctypes.c_void_p(), ctypes.c_int(), (ctypes.c_int64 * 8)()
        self._mpi.MPI_Ibarrier(self._comm, ctypes.byref(request))
        while self._mpi.MPI_Test(ctypes.byref(request), ctypes.byref(done), status) == 0 and not done.value:
            time.sleep(_PAUSE_S)

    def end(self) -> None:
        """The ranks know no more of each other, and those that were not begun by the program leave MPI; a plain process may spawn again."""
        finalized = ctypes.c_int()
        self._mpi.MPI_Finalized(ctypes.byref(finalized))
        if finalized.value:
            return
        if self.is_spawned and self._between.value is not None:
            self._mpi.MPI_Comm_free(ctypes.byref(self._comm))
            self._mpi.MPI_Comm_disconnect(ctypes.byref(self._between))
            self._between = ctypes.c_void_p()
        if self._is_own and not (self.is_spawned and self.rank == 0):
            self._mpi.MPI_Finalize()


def world_of(count: int, num_stages: int) -> World:
    """The world, which has as many processes; of one it is over.

    Raises
    ------
    InvalidParamsError, MissingExtraError, UnsupportedCombinationError, WorkerDiedError
    """
    if num_stages > 1:
        raise UnsupportedCombinationError(
            "pipeline_parallel_size with distributed_executor_backend = 'mpi': stages are on one machine so far; leave one of them out",
            "pipeline_parallel_size",
            FIELD,
        )
    if World.was_used:
        raise InvalidParamsError("one MPI world has one LLM: the ranks above 0 served the first one, and ended with it", FIELD)
    if count > 1 and not launcher():
        with _spawning():
            world = World()
        if world.size == 1:
            world.spawn(count)
            return world
    else:
        world = World()
    if world.size != count:
        world.end()
        tasks = int(os.environ.get("SLURM_NTASKS", "1"))
        hint = f"; srun started {tasks} tasks that do not know of each other: --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH" * (
            world.size == 1 < tasks
        )
        raise InvalidParamsError(
            f"tensor_parallel_size = {count}, and MPI's world has {world.size} processes: start as many, as in mpirun -n {count}{hint}",
            "tensor_parallel_size",
        )
    World.was_used = count > 1
    if count == 1:
        world.end()
    return world
