"""Requests over several engines: each goes where its beginning is known, and to another one when its own dies."""

from __future__ import annotations

import atexit
import collections
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from llmi import _core
from llmi.errors import EngineClosedError, EngineError, HookError, LlmiError, QueueFullError, WorkerDiedError, call_core
from llmi.replicas.answering import Answers
from llmi.replicas.asked import Asked, can_travel
from llmi.replicas.channel import Channel
from llmi.replicas.identity import difference
from llmi.replicas.placing import BLOCK, Beginnings, chain_of, choose
from llmi.replicas.policy import PolicyFile, ReplicaView, RoutedRequest
from llmi.replicas.pooled import Pools
from llmi.replicas.prefills import Prefills
from llmi.replicas.records import whole_number
from llmi.replicas.replica import Places, Replica
from llmi.replicas.under_way import UnderWay
from llmi.replicas.wire import BrokenMessageError
from llmi.requests.submission import Submission

if TYPE_CHECKING:
    from llmi.session import Session

_TICK_S = 1.0
_WAIT_S = 0.1
_routers: weakref.WeakSet[Router] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for router in list(_routers):
        router.close()


class Router:
    """The replicas of one model. Any thread may call it.

    Parameters
    ----------
    openings : dict
        What each process is opened with (llmi.server.replica), by its name.
    places
        Where they run.
    policy : PolicyFile, optional
        Says where requests go, and which are taken. Only where no engine is in this process.
    """

    def __init__(self, openings: Mapping[str, Mapping[str, Any]], places: Places, policy: PolicyFile | None = None) -> None:
        self._policy = policy
        self.closed = threading.Event()
        self.identity: dict[str, Any] = {}  # of all that may get requests; {} until the first one is ready
        self._places = places
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)  # a replica is ready, or has gone
        self.pools = Pools(self._moved, lambda: self.replicas, self.check_open)
        self._prefills = Prefills(self._lock, lambda: self.replicas)
        self._local: _core.Engine | None = None
        self._session: weakref.ref[Any] = weakref.ref(self)  # the LLM of the local engine
        self._own_speculation: object = None
        self._goes_on = True
        self._seats = 0
        self._here: dict[int, tuple[Channel, int]] = {}  # requests of the local engine: their channels and sequences
        self._known_here = Beginnings()
        self._core_channel = _core.OutputChannel()
        self._answers: Answers | None = None  # of requests whose replicas have died, by the local engine
        self._moved_here: dict[int, UnderWay] = {}
        self._waiting: collections.deque[UnderWay] = collections.deque()  # while no replica is ready
        self._suspects: collections.deque[UnderWay] = collections.deque()
        self._suspect: UnderWay | None = None  # the one that runs
        self.replicas = [Replica(name, self, places, opening) for name, opening in openings.items()]
        _routers.add(self)
        for replica in self.replicas:
            replica.thread.start()
        threading.Thread(target=self._watch, name="llmi-watch", daemon=True).start()

    def join(self, engine: _core.Engine, session: Session, identity: dict[str, Any]) -> None:
        """The engine of this process is one of the replicas, too."""
        self._local, self._session, self.identity = engine, weakref.ref(session), identity
        self._answers = Answers(self._session, self._take_here)
        threading.Thread(target=self._pump, name="llmi-here", daemon=True).start()

    def use(self, own_speculation: object, goes_on: bool, seats: int) -> None:
        """own_speculation: the engine's own, which replicas have, too. goes_on: tokens are a function of model, prompt, parameters and
        seed. seats: sequences in a batch of each engine at most."""
        self._own_speculation, self._goes_on, self._seats = own_speculation, goes_on, seats

    def wait_until_ready(self) -> None:
        """Returns when every replica is. Raises why one cannot be started."""
        with self._moved:
            while any(replica.state != "ready" for replica in self.replicas):
                for replica in self.replicas:
                    if replica.problem is not None:
                        raise replica.problem
                self._moved.wait(_WAIT_S)

    # --- what a call does

    def channel(self) -> _core.OutputChannel:
        """A channel for its reader."""
        return cast("_core.OutputChannel", Channel())

    def check(self, request: _core.Request) -> None:
        """Raises CoreError for what could never run, as far as it can be told here."""
        if self._local is not None:
            self._local.check(request)

    def check_open(self) -> None:
        """Raises EngineClosedError, and EngineError where no replica can be started."""
        if self._pid != os.getpid():
            raise EngineClosedError("the LLM belongs to the parent of a fork: make one in this process")
        if self.closed.is_set():
            raise EngineClosedError("the engine is closed")
        if self._local is not None:
            call_core(self._local.check_open)
        elif why := self._why_none():
            raise why

    def _why_none(self) -> EngineError | None:
        """The error of requests where no replica can be started."""
        if not all(replica.state == "gone" and replica.never_began for replica in self.replicas):
            return None
        return EngineError(f"{self._places.none}, the next try comes by itself: {self.replicas[0].problem}")

    def submit(self, submissions: Sequence[Submission], channel: _core.OutputChannel) -> None:
        """Hands requests to their engines; their news come on the channel."""
        self.check_open()
        here: list[_core.Request] = []
        with self._lock:
            for submission in submissions:
                entry = None
                if self._local is None or (self.replicas and can_travel(submission, self._own_speculation)):
                    coupled = submission.speculation is None or submission.speculation.is_coupled
                    entry = UnderWay(submission, channel, self._goes_on and coupled)
                if entry is None or self._place(entry, is_new=True):
                    here.append(submission.built)
                    chain = entry.chain if entry is not None else chain_of(submission.prompt_token_ids, submission.cache_salt)
                    self._known_here.add(chain)
                    self._here[submission.built.id] = (cast("Channel", channel), submission.params.n)
                else:
                    submission.request = cast("_core.Request", entry.record)
            if here:
                assert self._local is not None
                call_core(self._local.submit, here, self._core_channel)

    def abort(self, request_ids: Sequence[int]) -> None:
        """Ends requests; each reader gets what there is."""
        wanted = set(request_ids)
        with self._lock:
            if self._local is not None:
                self._local.abort([request_id for request_id in request_ids if request_id in self._here])
            if self._answers is not None:
                self._answers.abort([request_id for request_id in request_ids if request_id in self._moved_here])
            for replica in self.replicas:
                ids = [request_id for request_id in replica.under_way if request_id in wanted]
                for request_id in ids:
                    replica.under_way[request_id].is_aborted = True
                if ids:
                    replica.send({"kind": "abort", "ids": ids})
            for line in (self._waiting, self._suspects):
                for entry in [entry for entry in line if entry.asked.id in wanted]:
                    line.remove(entry)
                    entry.fail(None)

    def pool(self, parts: Sequence[Mapping[str, Any]]) -> list[list[bytes]]:
        """What replicas make of parts of texts."""
        return self.pools.run(parts)

    def interrupt_hook(self, request_ids: Sequence[int]) -> bool:
        """Hooks run in the local engine alone."""
        return self._local is not None and self._local.interrupt_hook([i for i in request_ids if i in self._here])

    # --- its state

    @property
    def num_engines(self) -> int:
        """How many there are."""
        return len(self.replicas) + (self._local is not None)

    @property
    def num_queued(self) -> int:
        """Requests that no step has begun, as far as it is known here."""
        local = 0 if self._local is None else self._local.num_queued
        behind = sum(max(0, replica.num_sequences - self._seats) for replica in self.replicas)
        return local + len(self._waiting) + len(self._suspects) + behind

    @property
    def stalled_s(self) -> float:
        """How long all engines that have work stand still."""
        stalled = [float(replica.stats.get("stalled_s", 0.0)) for replica in self.replicas if replica.state == "ready"]
        stalled += [] if self._local is None else [self._local.stalled_s]
        return min(stalled, default=0.0)

    def states(self) -> list[dict[str, Any]]:
        """Each replica as it is now: load, the sequences under way; starts, how often its process was started; problem, why it has gone."""
        found: list[dict[str, Any]] = []
        if self._local is not None:
            stats = call_core(self._local.latest_stats)
            found.append({"name": "0", "pid": self._pid, "state": "ready", "load": self._num_here(), "fingerprint": None, "starts": 1})
            found[0] |= {"problem": None, "stats": stats}
        for replica in self.replicas:
            entry = {"name": replica.name, "pid": replica.pid, "state": replica.state, "load": replica.num_sequences}
            problem = None if replica.problem is None else str(replica.problem)
            entry |= {"fingerprint": replica.fingerprint, "starts": replica.num_starts, "problem": problem, "stats": replica.stats}
            found.append(entry)
        return found

    def latest_stats(self) -> dict[str, Any]:
        """The counters of all engines, added up."""
        found = [replica.stats for replica in self.replicas if replica.stats]
        found += [] if self._local is None else [call_core(self._local.latest_stats)]
        names = {name for stats in found for name, value in stats.items() if isinstance(value, int | float)}
        sums = {name: sum(stats.get(name, 0) for stats in found) for name in names}
        texts = {name: "; ".join(str(stats[name]) for stats in found if stats.get(name)) for name in ("audit", "saved_blocks_problem")}
        return {**sums, **texts}

    def close(self) -> None:
        """Ends all processes. Their requests end as those of a closed engine do."""
        if self._pid != os.getpid() or self.closed.is_set():
            return
        self.closed.set()
        for replica in self.replicas:
            replica.kill()
        for replica in self.replicas:
            if replica.thread is not threading.current_thread():
                replica.thread.join()
        if self._answers is not None:
            self._answers.close()
        with self._lock:
            left = [*self._waiting, *self._suspects, *self._moved_here.values()]
            for entry in [*left, *(entry for replica in self.replicas for entry in replica.under_way.values())]:
                entry.fail(EngineClosedError("the engine is closed"))
        self._places.remove()

    # --- what replicas tell

    def is_ready(self, replica: Replica, identity: dict[str, Any]) -> str:
        """It may get requests, unless its numbers are others."""
        with self._moved:
            if self.identity and (why := difference(self.identity, identity)):
                return why
            other = next((one for one in self.replicas if one is not replica and one.state == "ready"), None)
            if other is not None and other.fingerprint != replica.fingerprint:
                return f"its fingerprint is {replica.fingerprint}, that of the others {other.fingerprint}"
            self.identity = self.identity or identity
            replica.state, replica.problem = "ready", None
            replica.known.clear()
            waiting, self._waiting = self._waiting, collections.deque()
            for entry in waiting:
                self._place(entry)
            self._next_suspect()
            self._moved.notify_all()
        return ""

    def take(self, replica: Replica, events: list[dict[str, Any]]) -> None:
        """Events of its requests."""
        with self._lock:
            for fields in events:
                if not isinstance(fields, dict):
                    raise BrokenMessageError("an event is no object")
                entry = replica.under_way.get(whole_number(fields.get("id")))
                if entry is not None and entry.take(fields):
                    del replica.under_way[entry.asked.id]
                    replica.note_answer()
                    self._ended(entry)

    def take_values(self, replica: Replica, message: dict[str, Any]) -> None:
        """Vectors or scores of texts."""
        self.pools.take(replica, message)

    def take_prefill(self, replica: Replica, message: dict[str, Any]) -> None:
        """A question for blocks, or an answer to one."""
        (self._prefills.ask if message["kind"] == "ask" else self._prefills.take)(replica, message)

    def has_gone(self, replica: Replica, why: LlmiError, pid: int) -> None:
        """Its requests go on elsewhere; one that alone can be the reason that two replicas died ends."""
        with self._moved:
            self.pools.has_gone(replica, why)
            self._prefills.has_gone(replica)
            left, replica.under_way = list(replica.under_way.values()), {}
            for entry in () if replica.is_innocent else left:
                entry.note_death()
            suspects = [entry for entry in left if entry.deaths > 1]
            for entry in left:
                if entry is self._suspect:
                    self._suspect = None
                if entry.is_aborted:
                    entry.fail(None)
                elif not entry.goes_on and entry.has_begun:
                    entry.fail(
                        WorkerDiedError(
                            f"{why}, and this request's tokens depend on its drafts: it cannot go on elsewhere", replica.name, pid
                        )
                    )
                elif suspects == [entry]:
                    entry.fail(
                        WorkerDiedError(
                            f"{why}: this request ran there, as it did in {entry.deaths - 1} before that died: it is not sent on again",
                            replica.name,
                            pid,
                        )
                    )
                elif entry.deaths > 1:
                    self._suspects.append(entry)
                else:
                    self._place(entry)
            if self._local is None and (none := self._why_none()) is not None:
                for entry in [*self._waiting, *self._suspects]:
                    entry.fail(none)
                self._waiting.clear()
                self._suspects.clear()
            self._next_suspect()
            self._moved.notify_all()

    # --- inner; the lock is held

    def _place(self, entry: UnderWay, is_new: bool = False) -> bool:
        """Sends a request to a replica. Whether it is the local engine's, for a new one; one whose replica has died goes there only if no
        other is left."""
        ready = [replica for replica in self.replicas if replica.state == "ready"]
        ready = [replica for replica in ready if not replica.is_producer] or ready
        ready = [replica for replica in ready if replica.answers] or ready
        takes_local = self._local is not None and (is_new or not ready)
        loads = [(replica.num_sequences, replica.known) for replica in ready]
        if takes_local:
            loads.insert(0, (self._num_here(), self._known_here))
        if not loads:
            self._waiting.append(entry)
            return False
        if self._policy is not None and self._policy.places and not takes_local:
            try:
                place = self._ask(self._policy, entry, ready, is_new)
            except (HookError, QueueFullError) as error:
                entry.fail(error)
                return False
        else:
            place = choose(loads, entry.chain) - takes_local
        if place < 0:
            if is_new:
                return True
            assert self._answers is not None
            self._moved_here[entry.asked.id] = entry
            self._answers.begin(Asked.read(entry.message()))
            return False
        self._send(entry, ready[place])
        return False

    def _ask(self, policy: PolicyFile, entry: UnderWay, ready: Sequence[Replica], is_new: bool) -> int:
        """The place that a user's policy gives a request. Raises HookError, and QueueFullError where it is not taken."""
        asked = entry.asked
        most = int(asked.sampling_params.get("max_tokens") or 0)
        request = RoutedRequest(str(asked.id), asked.priority, entry.record.arrival_time_s, len(asked.prompt_token_ids), most)
        views = [
            ReplicaView(
                replica.num_sequences,
                sum(len(other.asked.prompt_token_ids) for other in replica.under_way.values() if not other.has_begun),
                BLOCK * replica.known.count(entry.chain),
            )
            for replica in ready
        ]
        if is_new and not policy.admit(request, views):
            raise QueueFullError(f"policy {policy.path} does not take this request now: send it again later")
        place = policy.route(request, views)
        return choose([(replica.num_sequences, replica.known) for replica in ready], entry.chain) if place is None else place

    def _send(self, entry: UnderWay, replica: Replica) -> None:
        replica.under_way[entry.asked.id] = entry
        replica.known.add(entry.chain)
        replica.send(entry.message())

    def _next_suspect(self) -> None:
        """Requests that may have killed two replicas run one at a time, and never in this process."""
        ready = [replica for replica in self.replicas if replica.state == "ready"]
        if self._suspect is None and self._suspects and ready:
            self._suspect = self._suspects.popleft()
            self._send(self._suspect, min(ready, key=lambda replica: replica.num_sequences))

    def _ended(self, entry: UnderWay) -> None:
        if entry is self._suspect:
            self._suspect = None
            self._next_suspect()

    def _num_here(self) -> int:
        return sum(count for _, count in list(self._here.values())) + sum(entry.num_sequences for entry in list(self._moved_here.values()))

    # --- threads

    def _take_here(self, events: list[dict[str, Any]]) -> None:
        """Events of requests that have moved to the local engine."""
        with self._lock:
            for fields in events:
                entry = self._moved_here.get(fields["id"])
                if entry is not None and entry.take(fields):
                    del self._moved_here[entry.asked.id]

    def _pump(self) -> None:
        """Takes the local engine's events to the channels of their readers."""
        events: list[_core.OutputEvent] = []
        is_last = False
        while not is_last:
            is_last = self.closed.is_set()  # then the engine has told all ends
            self._core_channel.wait(events, 0.0 if is_last else _WAIT_S)
            batches: dict[int, tuple[Channel, list[_core.OutputEvent]]] = {}
            with self._lock:
                for event in events:
                    channel, _ = self._here[event.request_id]
                    batches.setdefault(id(channel), (channel, []))[1].append(event)
                    if event.finished:
                        del self._here[event.request_id]
            events.clear()
            for channel, batch in batches.values():
                channel.push(batch)

    def _watch(self) -> None:
        while not self.closed.wait(_TICK_S):
            for replica in self.replicas:
                replica.tick()
