"""The other processes of a model: started, watched by the core, and gone when this one is."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import llmi
from llmi import _core
from llmi.base.log import log
from llmi.engine.numerics_id import NUMERICS_VERSION
from llmi.errors import WorkerDiedError
from llmi.models.files import OpenModel
from llmi.outputs.memory import Worker
from llmi.replicas.process import divided

_BOOT = "from llmi.ranks.worker import main; main()"
_END_S = 5.0  # how long a worker that was told to end may take
#: The core's options that are the same on all ranks.
SHARED = (
    *("device", "dtype", "activation_bits", "kv_cache_dtype", "linear_dtype", "cublas_lt", "block_size", "layers"),
    *("max_num_batched_tokens", "gpu_memory_utilization", "nccl"),
)


def rank_facts(files: OpenModel) -> dict[str, Any]:
    """What all ranks must have in common: version, byte order, and the files by name, size and time, of which this has the hash."""
    facts = [[file.name, file.size, Path(file.path).stat().st_mtime_ns] for file in files.files]
    return {
        "version": llmi.__version__,
        "numerics": NUMERICS_VERSION,
        "byte order": sys.byteorder,
        "files": hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
    }


def rank_identity(files: OpenModel) -> str:
    """`rank_facts` in one text."""
    return hashlib.sha256(json.dumps(rank_facts(files)).encode()).hexdigest()


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had; 0 where it has gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


class Ranks:
    """`count` processes for each of `stages` parts of a model's layers; this one is rank 0. split: their shares; None: equal ones."""

    def __init__(self, count: int, split: Sequence[float] | None, num_threads: int | None, stages: int = 1) -> None:
        self.count, self.stages = count, stages
        self.threads = divided(num_threads or _core.system_info()["num_threads"], count * stages)
        self.split = [] if split is None else list(split)
        self.group = self._new_group()
        self._openings: list[dict[str, Any]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._closed = False

    def _may_spin(self) -> bool:
        return sum(self.threads) <= int(_core.system_info()["num_threads"])

    def _new_group(self) -> _core.RankGroup:
        return _core.RankGroup(self.count, spins=self._may_spin())

    def options(self, number: int, files: OpenModel) -> dict[str, Any]:
        """The core's options of this process, by its number among all, that are not those of an engine alone."""
        return {
            "num_threads": self.threads[number],
            "tensor_split": self.split,
            "stage": number // self.count,
            "pipeline_parallel_size": self.stages,
            "identity": rank_identity(files),
        }

    def start(self, files: OpenModel, spec: str, options: Mapping[str, Any]) -> None:
        """Starts the others, which load their parts. Raises WorkerDiedError where one cannot be started."""
        shared = {name: options[name] for name in SHARED} | {"spec": spec}
        self._openings = [
            {"path": str(files.path), "options": {**shared, **self.options(number, files)}} for number in range(1, self.count * self.stages)
        ]
        self._start_all()

    def restart(self, reason: str) -> _core.RankGroup:
        """Ends what is left of the others and starts them again, in a new group, which it returns."""
        log.warning("%s: the ranks are started again, and requests go on", reason)
        with self._lock:
            if self._closed:
                raise WorkerDiedError("the engine was closed")
            self._end(0.0)
            self.group = self._new_group()
            self._start_all()
            return self.group

    def pids(self) -> list[int]:
        """The processes of all ranks now."""
        with self._lock:
            return [os.getpid(), *(process.pid for process in self._processes)]

    def peaks(self) -> list[int]:
        """The most memory that each of them has had."""
        return [peak_bytes(pid) for pid in self.pids()]

    def _start_all(self) -> None:
        """The first rank of each stage has the end of a socket from the one before, and one to the next; the last stage's is this one."""
        with contextlib.ExitStack() as kept:
            groups = [self.group.descriptor]
            links: list[tuple[int, ...]] = [()]
            if self.stages > 1:
                pairs = [socket.socketpair() for _ in range(self.stages)]
                for end in (end for pair in pairs for end in pair):
                    kept.callback(end.close)
                groups += [_core.RankGroup.prepare(self.count, spins=self._may_spin()) for _ in range(1, self.stages)]
                for descriptor in groups[1:]:
                    kept.callback(os.close, descriptor)
                links += [(pairs[stage - 1][1].fileno(), pairs[stage][0].fileno()) for stage in range(1, self.stages)]
                self.group.link(pairs[-1][1].detach(), pairs[0][0].detach())
            for number, opening in enumerate(self._openings, 1):
                stage, rank = divmod(number, self.count)
                self._start(number, opening, (groups[stage], *(links[stage] if rank == 0 else ())))

    def _start(self, number: int, opening: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """descriptors: of the shared memory of its stage, and of the ends of sockets that it has."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])}
        stage, rank = divmod(number, self.count)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *map(str, (rank, os.getpid(), *descriptors))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=environment,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C of a terminal is for this process alone
            )
        except OSError as error:
            raise WorkerDiedError(f"rank {number} cannot be started: {error}", f"rank {number}") from None
        self._processes.append(process)
        if stage == 0:
            self.group.watch(rank, process.pid)
        else:
            self.group.watch_stage(number, process.pid)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:  # who is gone already is noticed by the core
            process.stdin.write(json.dumps(opening).encode())

    def close(self) -> None:
        """Ends the others; those that do not end by themselves are killed."""
        with self._lock:
            self._closed = True
            self._end(_END_S)

    def _end(self, patience_s: float) -> None:
        self.group.leave("")
        deadline = time.monotonic() + patience_s
        processes, self._processes = self._processes, []
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()


def workers_of(info: _core._EngineInfo, weight_bytes: int, kv_bytes: int, ranks: Ranks | None) -> list[Worker]:
    """All ranks of an engine; one that computes alone is one."""
    if ranks is None or not info["ranks"]:
        pid = os.getpid()
        return [Worker(0, 0, os.uname().nodename, pid, weight_bytes, kv_bytes, peak_bytes(pid), 0, 0, 0, 0)]
    return [
        Worker(
            rank=rank,
            stage=facts["stage"],
            host=facts["host"],
            pid=pid,
            weight_bytes=facts["weight_bytes"],
            kv_bytes=facts["kv_bytes"],
            peak_bytes=peak,
            query_heads=facts["query_heads"],
            kv_heads=facts["kv_heads"],
            hidden_rows=facts["hidden"],
            vocabulary=facts["vocabulary"],
        )
        for rank, (facts, pid, peak) in enumerate(zip(info["ranks"], ranks.pids(), ranks.peaks(), strict=False))
    ]
