"""Replicas as Ray's actors: Ray chooses their machines, and carries their messages (docs/parallel.md)."""

from __future__ import annotations

import collections
import importlib
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from llmi.errors import InvalidParamsError, WorkerDiedError, import_extra
from llmi.replicas.wire import decode

_LOOK_S = 0.2
_MOST_WAIT_S = 60.0  # for a place on a machine
_NEWS_S = 10.0  # how long a call for news may take


class _Line:
    """What a replica has in an actor instead of a socket."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.news: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def send(self, data: bytes) -> None:
        """Puts an encoded message out."""
        self.news.put(data)

    def receive(self) -> dict[str, Any]:
        """The next message. Raises BrokenMessageError."""
        return _decoded(self.messages.get())


class Actor:
    """A replica's process, as Ray runs it."""

    def __init__(self) -> None:
        self._line = _Line()
        self._early: dict[int, bytes] = {}
        self._next = 0
        replica = importlib.import_module("llmi.server.replica").Replica(self._line)
        threading.Thread(target=_run, args=(replica,), name="llmi-replica", daemon=True).start()

    def place(self) -> tuple[int, str]:
        """Its process, and its machine's name."""
        return os.getpid(), socket.gethostname()

    def take(self, number: int, data: bytes) -> None:
        """The message of this number: Ray may hand calls over in another order."""
        self._early[number] = data
        while (found := self._early.pop(self._next, None)) is not None:
            self._line.messages.put(found)
            self._next += 1

    def news(self) -> list[bytes]:
        """Waits for messages of the replica, and returns all that are there."""
        try:
            found = [self._line.news.get(timeout=_NEWS_S)]
        except queue.Empty:
            return []
        while not self._line.news.empty():
            found.append(self._line.news.get())
        return found


class Runs(Protocol):
    """What a replica's process runs."""

    def run(self) -> None:
        """Answers until the other side has gone. Raises BrokenMessageError."""
        ...


def _run(replica: Runs) -> None:
    try:
        replica.run()
    finally:
        os._exit(1)  # a broken message


def _decoded(data: bytes) -> dict[str, Any]:
    return decode(data[4:])  # behind its length


class Remote:
    """A replica in an actor, with the calls of a Process."""

    is_orderly = False

    def __init__(self, name: str, num_threads: int, is_over: Callable[[], bool]) -> None:
        self._ray = import_extra("ray", "ray")
        self._messages: collections.deque[bytes] = collections.deque()
        self._number = 0
        self._lock = threading.Lock()
        options = {"num_cpus": num_threads, "max_restarts": 0, "concurrency_groups": {"news": 1}, "scheduling_strategy": "SPREAD"}
        self._actor = self._ray.remote(**options)(Actor).remote()
        place, begun = self._actor.place.remote(), time.monotonic()
        self.pid, self._host = 0, ""
        try:
            while not self._ray.wait([place], timeout=_LOOK_S)[0]:
                if is_over():
                    raise WorkerDiedError(f"replica {name}: closed while it was started", name)
                if time.monotonic() - begun > _MOST_WAIT_S:
                    free = self._ray.available_resources().get("CPU", 0)
                    why = f"no machine gave it {num_threads} CPUs within {_MOST_WAIT_S:.0f} s ({free:g} of all machines' are free)"
                    raise WorkerDiedError(f"replica {name} cannot be started: {why}: give a smaller num_threads", name)
            self.pid, self._host = self._ray.get(place)
        except self._ray.exceptions.RayError as error:
            raise WorkerDiedError(f"replica {name} cannot be started: {error}", name) from None
        except WorkerDiedError:
            self.kill()
            raise
        self.connection = self

    def send(self, data: bytes) -> None:
        """Sends an encoded message."""
        with self._lock:
            self._actor.take.remote(self._number, data)
            self._number += 1

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where the actor has gone. Raises BrokenMessageError."""
        while not self._messages:
            if not self._ray.is_initialized():
                return None
            try:
                self._messages.extend(self._ray.get(self._actor.news.options(concurrency_group="news").remote()))
            except self._ray.exceptions.RayError:
                return None
        return _decoded(self._messages.popleft())

    def why_silent(self) -> str:
        """Nobody here knows."""
        return ""

    def kill(self) -> None:
        """Ends the actor at once."""
        if self._ray.is_initialized():  # else all actors have ended with the connection to the cluster
            self._ray.kill(self._actor)

    def close(self) -> None:
        """Nothing is held here."""

    def finish(self) -> None:
        """Ends the actor if it has not ended."""
        self.kill()

    def how_it_ended(self) -> str:
        """In words."""
        return f"has gone from {self._host}"


class Cluster:
    """Machines of a Ray cluster: the one that this program is in (ray.init, RAY_ADDRESS), else this machine alone.

    Raises
    ------
    MissingExtraError, InvalidParamsError
    """

    none = "no replica can be started"

    def __init__(self) -> None:
        own = "RAY_ADDRESS" not in os.environ
        if own and "ray" not in sys.modules:
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray then listens on the loopback address alone
        self._ray = import_extra("ray", "ray")
        self._num_threads = 1
        if self._ray.is_initialized():
            return
        if own and os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") != "0":
            raise InvalidParamsError(
                "Ray is imported, and would listen on all addresses: call ray.init first", "distributed_executor_backend"
            )
        self._ray.init(include_dashboard=False, log_to_driver=False)

    def threads(self, num_threads: int | None, count: int) -> tuple[list[int], int]:
        """Threads of each replica, and how many replicas this machine may get."""
        cpus = [int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]]
        self._num_threads = num_threads or max(1, sum(cpus) // count)
        places = [each // self._num_threads for each in cpus]
        if sum(places) < count - 1:
            raise InvalidParamsError(
                f"data_parallel_size = {count}: Ray places {count - 1} replicas, and its machines of {', '.join(map(str, cpus))} CPUs have"
                f" room for {sum(places)} of {self._num_threads} threads: give a smaller num_threads or data_parallel_size",
                "data_parallel_size",
            )
        return [self._num_threads] * count, min(count, 1 + max(places))

    def start(self, name: str, is_over: Callable[[], bool]) -> Remote:
        """Starts a replica on some machine. Raises WorkerDiedError."""
        return Remote(name, self._num_threads, is_over)

    def remove(self) -> None:
        """The cluster stays."""
