"""One replica in a process of its own: started, watched, and started again when it dies."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from llmi.errors import LlmiError, WorkerDiedError
from llmi.handover.settings import answers
from llmi.replicas.placing import Beginnings
from llmi.replicas.records import error_of
from llmi.replicas.under_way import UnderWay
from llmi.replicas.wire import BrokenMessageError, encode

#: Seconds until a replica that has died is started again: at once, then later and later, until it has answered a request.
DELAYS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: A replica that says nothing for so many ticks of a second, though it is asked, stands still.
_MOST_SILENT = 5


class Keeper(Protocol):
    """What a replica tells its router."""

    closed: threading.Event

    def is_ready(self, replica: Replica, identity: dict[str, Any]) -> str:
        """It may get requests, unless the reason is given why it may not."""
        ...

    def take(self, replica: Replica, events: list[dict[str, Any]]) -> None:
        """Events of its requests. Raises BrokenMessageError."""
        ...

    def take_values(self, replica: Replica, message: dict[str, Any]) -> None:
        """Vectors or scores of texts. Raises BrokenMessageError."""
        ...

    def take_prefill(self, replica: Replica, message: dict[str, Any]) -> None:
        """A question for blocks, or an answer to one. Raises BrokenMessageError."""
        ...

    def has_gone(self, replica: Replica, why: LlmiError, pid: int) -> None:
        """It has died, or could not be started."""
        ...


class Running(Protocol):
    """A replica's process, wherever it runs."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    @property
    def connection(self) -> Line:
        """Its messages."""
        ...

    @property
    def is_orderly(self) -> bool:
        """Whether it has ended, or refused what came, for reasons of its own: no request made it do so."""
        ...

    def why_silent(self) -> str:
        """Why it may have said nothing since the last call without a fault of its own: "stopped" by a signal, "starved" of a CPU, or ""."""
        ...

    def kill(self) -> None:
        """Ends it at once."""
        ...

    def finish(self) -> None:
        """Waits for its end, which comes by itself or now."""
        ...

    def how_it_ended(self) -> str:
        """In words."""
        ...


class Line(Protocol):
    """Messages to and from a process."""

    def send(self, data: bytes) -> None:
        """Sends an encoded message. Raises OSError where the other side has gone."""
        ...

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where the other side has gone. Raises BrokenMessageError."""
        ...

    def close(self) -> None:
        """Whoever waits here returns."""
        ...


class Places(Protocol):
    """Where processes run: this machine (process.Folder), those of a cluster, or servers that run already.

    none : what it means that none is ready, in words.
    """

    none: str

    def start(self, name: str, is_over: Callable[[], bool]) -> Running:
        """Starts a process. Raises WorkerDiedError."""
        ...

    def remove(self) -> None:
        """All processes have ended."""
        ...


class Machines(Places, Protocol):
    """Places that processes are divided among."""

    def threads(self, num_threads: int | None, count: int) -> tuple[list[int], int]:
        """Threads of each of `count` engines, and how many of them this machine gets."""
        ...


class Replica:
    """A process and its requests.

    state : "starting", "ready", "gone" (it is started again after a while) or "closed".
    under_way : its requests by number; the router's lock guards them, and `known`.
    problem : why it has gone; never_began: before it was ready.
    is_innocent : no request of it can be the reason that it has gone.
    stats : of its engine, a second old at most; {} before the first.
    is_producer : it computes prompts for the others.
    """

    def __init__(self, name: str, keeper: Keeper, places: Places, opening: Mapping[str, Any]) -> None:
        self.name = name
        self.state = "starting"
        self.under_way: dict[int, UnderWay] = {}
        self.known = Beginnings()
        self.problem: LlmiError | None = None
        self.stats: dict[str, Any] = {}
        self.info: dict[str, Any] = {}
        self.fingerprint: str | None = None
        self.pid = 0
        self.num_starts = 0
        self.never_began = self.is_innocent = False
        self.is_producer = answers(opening.get("arguments", {}).get("kv_transfer_config"))
        self._keeper, self._places = keeper, places
        self._opening = encode({"kind": "open", **opening})
        self._process: Running | None = None
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._silent = 0
        self._was_stopped = False  # when it was killed
        self._num_failures = 0
        self.thread = threading.Thread(target=self._run, name=f"llmi-replica-{name}", daemon=True)

    @property
    def num_sequences(self) -> int:
        """Under way here."""
        return sum(entry.num_sequences for entry in list(self.under_way.values()))

    @property
    def answers(self) -> bool:
        """Whether it has said something since it was last asked but one."""
        return self._silent <= 1

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message, without waiting for a replica that does not read."""
        self._outbox.put(encode(message))

    def tick(self) -> None:
        """A second has passed: a replica that has said nothing for too many of them stands still, and is killed. A second without a CPU
        does not count."""
        process = self._process
        if process is None:
            return
        why = process.why_silent()
        self._silent += why != "starved"
        if self._silent > _MOST_SILENT:
            self._was_stopped |= why == "stopped"
            process.kill()
        else:
            self.send({"kind": "ping"})

    def kill(self) -> None:
        """Ends the process."""
        process = self._process
        if process is not None:
            process.kill()

    def note_answer(self) -> None:
        """It has answered a request: when it dies, it is started again at once."""
        self._num_failures = 0

    def _run(self) -> None:
        closed = self._keeper.closed
        while not closed.is_set():
            try:
                self._live()
            except LlmiError as error:
                self.problem, self.never_began = error, self.state != "ready"
            if closed.is_set():
                break
            assert self.problem is not None
            self.state = "gone"
            self.stats = {name: 0 for name, value in self.stats.items() if not isinstance(value, str)}
            self._keeper.has_gone(self, self.problem, self.pid)
            if closed.wait(DELAYS_S[min(self._num_failures, len(DELAYS_S) - 1)]):
                break
            self._num_failures += 1
            self.state = "starting"
        self.state = "closed"

    def _live(self) -> None:
        """One life of the process. Raises how it ended."""
        process = self._places.start(self.name, self._keeper.closed.is_set)
        self.pid, self._silent, self._was_stopped, self._outbox = process.pid, 0, False, queue.SimpleQueue()
        self.num_starts += 1
        threading.Thread(target=_write, args=(process, self._outbox), name=f"llmi-to-{self.name}", daemon=True).start()
        self._outbox.put(self._opening)
        self._process = process
        broken = ""
        try:
            while not self._keeper.closed.is_set() and (message := process.connection.receive()) is not None:
                self._silent = 0
                self._take(message)
        except BrokenMessageError as error:
            broken = f" after a broken message ({error})"
        finally:
            self._process = None
            if broken or self._keeper.closed.is_set():
                process.kill()
            self._outbox.put(None)
            process.connection.close()
            process.finish()
            self.is_innocent = self._was_stopped or process.is_orderly
        raise self._died(f"{process.how_it_ended()}{broken}")

    def _died(self, how: str) -> WorkerDiedError:
        what = f"replica {self.name} (pid {self.pid})" if self.pid else f"server {self.name}"
        return WorkerDiedError(f"{what} {how}", self.name, self.pid)

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "events" and self.state == "ready" and isinstance(message.get("events"), list):
            self._keeper.take(self, message["events"])
        elif kind == "pooled" and self.state == "ready":
            self._keeper.take_values(self, message)
        elif kind in ("ask", "prefilled") and self.state == "ready":
            self._keeper.take_prefill(self, message)
        elif kind == "pong" and isinstance(message.get("stats"), dict | None):
            self.stats = message["stats"] or self.stats
        elif kind == "failed":
            raise error_of(message.get("error"))
        elif (
            kind == "ready" and self.state != "ready" and all(isinstance(message.get(name), dict) for name in ("identity", "info", "stats"))
        ):
            self.info, self.stats, self.fingerprint = message["info"], message["stats"], message.get("fingerprint")
            if why := self._keeper.is_ready(self, message["identity"]):
                raise self._died(f"is left out: {why}")
        else:
            raise BrokenMessageError(f"{kind[:40]!r} may not come now")


def _write(process: Running, outbox: queue.SimpleQueue[bytes | None]) -> None:
    """Sends what is put out until the other side has gone."""
    while (data := outbox.get()) is not None:
        try:
            process.connection.send(data)
        except OSError:
            return
