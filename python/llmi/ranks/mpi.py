"""Ranks that mpirun or srun has started: MPI finds them, and they gather in shared memory, as those that llmi starts do."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from llmi import _core
from llmi.errors import InvalidParamsError, MissingExtraError
from llmi.models.files import OpenModel
from llmi.ranks.workers import SHARED, Ranks, rank_identity
from llmi.replicas.process import divided

_FIELD = "distributed_executor_backend"
_FACT_BYTES = 512
#: Open MPI's library, and the one of MPI's standard ABI, which MPICH has.
_OPEN_MPI, _ABI = "libmpi.so.40", "libmpi_abi.so.1"
#: Variables that a launcher sets, and the library of its processes; srun may be any.
_LAUNCHERS = (("OMPI_COMM_WORLD_SIZE", (_OPEN_MPI,)), ("PMI_SIZE", (_ABI,)), ("SLURM_NTASKS", (_OPEN_MPI, _ABI)))


def _library() -> ctypes.CDLL:
    """MPI of this process: the one that is loaded, else its launcher's. Raises InvalidParamsError and MissingExtraError."""
    mapped = Path("/proc/self/maps").read_text()
    loaded = [name for name in (_OPEN_MPI, _ABI) if f"/{name}" in mapped]
    if len(loaded) > 1:
        raise InvalidParamsError(f"{' and '.join(loaded)} are both loaded: one process can have one MPI", _FIELD)
    names: tuple[str, ...] = tuple(loaded) or next((names for variable, names in _LAUNCHERS if variable in os.environ), (_OPEN_MPI, _ABI))
    for name in names:
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
    """The processes that were started together. MPI is left when `exchange` returns, unless the program had begun it itself."""

    was_used = False

    def __init__(self) -> None:
        self._mpi = mpi = _library()
        is_open_mpi = hasattr(mpi, "ompi_mpi_comm_world")
        self._comm = ctypes.c_void_p(_address(mpi, "ompi_mpi_comm_world") if is_open_mpi else 0x101)
        self._byte = ctypes.c_void_p(_address(mpi, "ompi_mpi_byte") if is_open_mpi else 0x247)
        begun, rank, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        mpi.MPI_Initialized(ctypes.byref(begun))
        self._is_own = not begun.value
        if self._is_own:
            mpi.MPI_Finalized(ctypes.byref(rank))
            if rank.value:
                raise InvalidParamsError("MPI was left by this program, and cannot be begun again in its process", _FIELD)
            mpi.MPI_Init(None, None)
        mpi.MPI_Comm_rank(self._comm, ctypes.byref(rank))
        mpi.MPI_Comm_size(self._comm, ctypes.byref(size))
        self.rank, self.size = rank.value, size.value

    def exchange(self, fact: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What each rank has said, by rank."""
        own = json.dumps(fact).encode().ljust(_FACT_BYTES)
        found = ctypes.create_string_buffer(_FACT_BYTES * self.size)
        self._mpi.MPI_Allgather(own, _FACT_BYTES, self._byte, found, _FACT_BYTES, self._byte, self._comm)
        self.end()
        return [json.loads(found.raw[begin : begin + _FACT_BYTES]) for begin in range(0, len(found.raw) - 1, _FACT_BYTES)]

    def end(self) -> None:
        """MPI is left: no process waits in it, and none has to be there at the end."""
        finalized = ctypes.c_int()
        self._mpi.MPI_Finalized(ctypes.byref(finalized))
        if self._is_own and not finalized.value:
            self._mpi.MPI_Finalize()


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.addressof(ctypes.c_char.in_dll(library, name))


def world_of(count: int) -> World:
    """The world, which has as many processes; of one it is over. Raises InvalidParamsError and MissingExtraError."""
    if World.was_used:
        raise InvalidParamsError("one MPI world has one LLM: the ranks above 0 served the first one, and ended with it", _FIELD)
    world = World()
    if world.size != count:
        world.end()
        raise InvalidParamsError(
            f"tensor_parallel_size = {count}, and MPI's world has {world.size} processes: start as many, as in mpirun -n {count}",
            "tensor_parallel_size",
        )
    World.was_used = count > 1
    if count == 1:
        world.end()
    return world


class MpiRanks(Ranks):
    """The ranks of MPI's world. Those above 0 come no further than `start`: they compute, and end with rank 0's engine."""

    def __init__(self, world: World, split: Sequence[float] | None, num_threads: int | None) -> None:
        self._world, count = world, world.size
        own = _core.system_info()["num_threads"]
        is_bound = own < (os.cpu_count() or own)
        self.threads = [own] * count if is_bound and num_threads is None else divided(num_threads or own, count)
        self.split = [] if split is None else list(split)
        self._identity = ""
        self._facts: list[dict[str, Any]] = []
        if world.rank == 0:
            self.group = _core.RankGroup(count, spins=sum(self.threads) <= (os.cpu_count() or own))

    def options(self, rank: int, files: OpenModel) -> dict[str, Any]:
        """The core's options of this rank that are not those of an engine alone."""
        return {"num_threads": self.threads[rank], "tensor_split": self.split, "identity": self._identity}

    def start(self, files: OpenModel, spec: str, options: Mapping[str, Any]) -> None:
        """Joins the ranks. Returns on rank 0 alone."""
        rank = self._world.rank
        shared = {name: options[name] for name in SHARED} | {"spec": spec}
        self._identity = sha256(json.dumps([rank_identity(files), shared, self.split]).encode()).hexdigest()
        machine = [os.uname().nodename[:200], Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
        descriptor = self.group.descriptor if rank == 0 else -1
        self._facts = facts = self._world.exchange({"pid": os.getpid(), "machine": machine, "descriptor": descriptor})
        machines = {fact["machine"][1]: fact["machine"][0] for fact in facts}
        if len(machines) > 1:
            raise InvalidParamsError(
                f"the ranks are on {len(machines)} machines ({', '.join(machines.values())}), and gather in shared memory: give one",
                _FIELD,
            )
        if rank > 0:
            self._serve(rank, files, shared)
        for other, fact in enumerate(facts[1:], 1):
            self.group.watch(other, fact["pid"])

    def _serve(self, rank: int, files: OpenModel, shared: Mapping[str, Any]) -> NoReturn:
        """Computes until rank 0 has gone. What goes wrong is told to rank 0, whose status is the program's."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        status = 1
        try:
            first = self._facts[0]
            group = _core.RankGroup.join(os.open(f"/proc/{first['pid']}/fd/{first['descriptor']}", os.O_RDWR), rank)
            status = 0
            try:
                _core.serve_rank(files.core, ranks=group, **shared, **self.options(rank, files))
            except Exception as error:
                group.leave(str(error))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def pids(self) -> list[int]:
        """The processes of all ranks."""
        return [fact["pid"] for fact in self._facts]

    def close(self) -> None:
        """Ends the others."""
        if self._world.rank == 0:
            self.group.leave("")
