"""Ranks that MPI finds, or Open MPI starts from a plain process: on one machine they gather in shared memory, as those that llmi starts."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from llmi import _core
from llmi.errors import InvalidParamsError
from llmi.models.files import OpenModel, open_model
from llmi.ranks.mpi_world import FIELD, World
from llmi.ranks.workers import SHARED, Ranks, peak_bytes, rank_facts
from llmi.replicas.process import divided


def _machine() -> list[str]:
    """What processes that share memory, processes and network have in common: two containers are two machines."""
    spaces = [str(Path(f"/proc/self/ns/{kind}").stat().st_ino) for kind in ("pid", "net")]
    return [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), *spaces]


def _check_same(facts: Sequence[Mapping[str, Any]]) -> None:
    """Raises InvalidParamsError naming a rank that runs something else than rank 0, and in what."""
    first = facts[0]
    for rank, fact in enumerate(facts):
        other = [name for name, value in first["same"].items() if fact["same"][name] != value]
        if other:
            shown = [
                f"{name} {fact['same'][name]} instead of {first['same'][name]}" for name in other if name not in ("files", "arguments")
            ]
            what = [
                *shown,
                *(["other files (by name, size and time)"] if "files" in other else []),
                *(["other arguments"] if "arguments" in other else []),
            ]
            raise InvalidParamsError(
                f"rank {rank} ({fact['host']}, process {fact['pid']}) has {', '.join(what)}; rank 0 is"
                f" {first['host']}, process {first['pid']}",
                FIELD,
            )


class MpiRanks(Ranks):
    """The ranks of MPI's world. Those above 0 come no further than `start`: they compute, and end with rank 0's engine."""

    def __init__(self, world: World, split: Sequence[float] | None, num_threads: int | None) -> None:
        self._world = world
        if world.is_spawned and world.rank == 0:
            world.tell({"split": split, "num_threads": num_threads})
        self._own = {"pid": os.getpid(), "host": os.uname().nodename[:63], "machine": _machine()}
        machines = [fact["machine"] for fact in world.exchange(self._own)]
        self.is_one_machine = all(machine == machines[0] for machine in machines)
        here = [rank for rank, machine in enumerate(machines) if machine == self._own["machine"]]
        own = _core.system_info()["num_threads"]
        is_bound = own < (os.cpu_count() or own)
        threads = [own] * len(here) if is_bound and num_threads is None else divided(num_threads or own, len(here))
        self._num_threads = threads[here.index(world.rank)]
        self._spins = sum(threads) <= (os.cpu_count() or own)
        self._has_settled = False
        self.split = [] if split is None else list(split)
        self._identity = ""
        self._facts: list[dict[str, Any]] = []
        if self.is_one_machine and world.rank == 0:
            self.group = _core.RankGroup(world.size, spins=self._spins)

    def options(self, rank: int, files: OpenModel) -> dict[str, Any]:
        """The core's options of this rank that are not those of an engine alone."""
        return {"num_threads": self._num_threads, "tensor_split": self.split, "identity": self._identity}

    def start(self, files: OpenModel, spec: str, options: Mapping[str, Any]) -> None:
        """Joins the ranks. Returns on rank 0 alone."""
        world = self._world
        shared = {name: options[name] for name in SHARED} | {"spec": spec}
        if world.is_spawned and world.rank == 0:
            world.tell({"path": str(files.path), "spec": spec, "options": shared})
        same = rank_facts(files) | {"arguments": sha256(json.dumps([shared, self.split]).encode()).hexdigest()}
        self._identity = sha256(json.dumps(same).encode()).hexdigest()
        descriptor = self.group.descriptor if self.is_one_machine and world.rank == 0 else -1
        self._facts = facts = world.exchange({**self._own, "same": same, "descriptor": descriptor})
        try:
            _check_same(facts)
            if not self.is_one_machine:
                members = [(fact["pid"], fact["host"]) for fact in facts]
                self.group = _core.RankGroup.over_mpi(*world.handles(), world.rank, members, spins=self._spins)
        except InvalidParamsError:
            world.end()
            raise
        if self.is_one_machine:
            world.end()
        if world.rank > 0:
            self._serve(files, shared)
        if self.is_one_machine:
            for other, fact in enumerate(facts[1:], 1):
                self.group.watch(other, fact["pid"])

    def _serve(self, files: OpenModel, shared: Mapping[str, Any]) -> NoReturn:
        """Computes until rank 0 has gone. What goes wrong is told to rank 0, whose status is the program's."""
        for number in (signal.SIGINT, signal.SIGTERM):  # mpirun hands them to all, and rank 0 decides
            signal.signal(number, signal.SIG_IGN)
        status, rank = 1, self._world.rank
        first = self._facts[0]
        leader = os.pidfd_open(first["pid"]) if self.is_one_machine and not self._world.is_spawned else None
        try:
            if self.is_one_machine:
                self.group = _core.RankGroup.join(os.open(f"/proc/{first['pid']}/fd/{first['descriptor']}", os.O_RDWR), rank)
            status = 0
            try:
                _core.serve_rank(files.core, ranks=self.group, **shared, **self.options(rank, files))
            except Exception as error:
                self.group.leave(str(error))
            self.end()
            if leader is not None:  # hydra takes the end of one rank for the end of all
                select.select([leader], [], [])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def pids(self) -> list[int]:
        """The processes of all ranks, each on its machine."""
        return [fact["pid"] for fact in self._facts]

    def peaks(self) -> list[int]:
        """As of `Ranks`; 0 for a process of another machine."""
        return [peak_bytes(fact["pid"]) if fact["machine"] == self._own["machine"] else 0 for fact in self._facts]

    def close(self) -> None:
        """Ends the others."""
        if "group" not in self.__dict__:  # they were refused
            return
        self.group.leave("")
        if not self.is_one_machine:
            self._has_settled = self.group.settle()
            if self._world.is_spawned and self._has_settled:
                self._world.end()

    def end(self) -> None:
        """Closes, and leaves MPI with the others, which all do at the end of the program: of several machines they wait for each other."""
        self.close()
        if self._has_settled:
            if not self._world.is_spawned:
                self._world.wait_for_all()
            self._world.end()


def serve_spawned() -> NoReturn:
    """What a process runs that Open MPI has started."""
    world = World()
    world.join_parent()
    told = world.tell()
    ranks = MpiRanks(world, told["split"], told["num_threads"])
    told = world.tell()
    ranks.start(open_model(Path(told["path"])), told["spec"], told["options"])
    raise AssertionError("a rank above 0 ends in start")
