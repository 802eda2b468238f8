"""MPI, loaded at run time: who the ranks are, and what each tells all."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmi.errors import InvalidParamsError, MissingExtraError

FIELD = "distributed_executor_backend"
_FACT_BYTES = 1024
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


class World:
    """The processes that were started together. `end` leaves MPI, unless the program had begun it itself."""

    was_used = False

    def __init__(self) -> None:
        self._mpi = mpi = _library()
        self._is_open_mpi = hasattr(mpi, "ompi_mpi_comm_world")
        self._serialized = 2 if self._is_open_mpi else 2048
        self._comm = self._handle("ompi_mpi_comm_world", 0x101)
        self._byte = self._handle("ompi_mpi_byte", 0x247)
        begun, rank, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        mpi.MPI_Initialized(ctypes.byref(begun))
        self._is_own = not begun.value
        if self._is_own:
            mpi.MPI_Finalized(ctypes.byref(rank))
            if rank.value:
                raise InvalidParamsError("MPI was left by this program, and cannot be begun again in its process", FIELD)
            mpi.MPI_Init_thread(None, None, self._serialized, ctypes.byref(begun))
        mpi.MPI_Comm_rank(self._comm, ctypes.byref(rank))
        mpi.MPI_Comm_size(self._comm, ctypes.byref(size))
        self.rank, self.size = rank.value, size.value

    def _handle(self, open_mpi: str, abi: int) -> ctypes.c_void_p:
        """One of MPI's own objects: a symbol of Open MPI's, a number of the standard ABI's."""
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._mpi, open_mpi)) if self._is_open_mpi else abi)

    def exchange(self, fact: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What each rank has said, by rank."""
        own = json.dumps(fact).encode().ljust(_FACT_BYTES)
        found = ctypes.create_string_buffer(_FACT_BYTES * self.size)
        self._mpi.MPI_Allgather(own, _FACT_BYTES, self._byte, found, _FACT_BYTES, self._byte, self._comm)
        return [json.loads(found.raw[begin : begin + _FACT_BYTES]) for begin in range(0, len(found.raw) - 1, _FACT_BYTES)]

    def handles(self) -> tuple[int, int, int]:
        """What the core calls MPI by: library, a communicator of its own, datatype. Raises InvalidParamsError."""
        level, own = ctypes.c_int(), ctypes.c_void_p()
        self._mpi.MPI_Query_thread(ctypes.byref(level))
        if level.value < self._serialized:
            raise InvalidParamsError("this program began MPI for its first thread alone: begin it with MPI_THREAD_SERIALIZED", FIELD)
        self._mpi.MPI_Comm_dup(self._comm, ctypes.byref(own))
        self._mpi.MPI_Comm_set_errhandler(own, self._handle("ompi_mpi_errors_return", 0x143))
        assert own.value is not None and self._byte.value is not None
        return self._mpi._handle, own.value, self._byte.value

    def end(self) -> None:
        """MPI is left: no process waits in it, and none has to be there at the end."""
        finalized = ctypes.c_int()
        self._mpi.MPI_Finalized(ctypes.byref(finalized))
        if self._is_own and not finalized.value:
            self._mpi.MPI_Finalize()


def world_of(count: int) -> World:
    """The world, which has as many processes; of one it is over. Raises InvalidParamsError and MissingExtraError."""
    if World.was_used:
        raise InvalidParamsError("one MPI world has one LLM: the ranks above 0 served the first one, and ended with it", FIELD)
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
