"""Rounds of a soak: a server over engines that stay, a crowd of clients, an end under load, and an audit at the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from llmi.async_llm import AsyncLLM
from llmi.llm import LLM
from llmi.server import run
from llmi.server.drain import DrainingServer
from llmi.server.settings import ServerSettings
from soak import faults
from soak.cases import Case
from soak.faults import AGAIN, COMPARED, FAULTS, Outcome, Visit
from soak.wire import CutError

_READY_S = 300.0
_IDLE_S = 300.0  # in which an engine that nobody asks must come to rest
_ANSWER_S = 300.0
_MOST_PROBLEMS = 20


@dataclasses.dataclass
class Tally:
    """What a soak has seen. faults: of each kind how often; compared: whole answers, of each kind; problems: what must not be."""

    num_requests: int = 0
    faults: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(("no_fault", *FAULTS, *faults.SURROUNDINGS), 0))
    compared: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(("no_fault", *FAULTS), 0))
    num_problems: int = 0
    problems: list[str] = dataclasses.field(default_factory=list)
    num_lost_blocks: int = 0
    num_audits: int = 0
    num_deaths: int = 0

    def note(self, kind: str, outcome: Outcome) -> None:
        """Counts one request that has ended."""
        self.num_requests += 1
        self.faults[kind] += 1
        self.compared[kind] += outcome.what == COMPARED
        if outcome.problem:
            self.wrong(f"{kind}: {outcome.problem}")

    def wrong(self, problem: str) -> None:
        """Counts something that must not be."""
        self.num_problems += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(problem)


class Running:
    """A server in a thread of its own, over engines of the caller's."""

    def __init__(self, models: dict[str, AsyncLLM], settings: ServerSettings) -> None:
        self.models = models
        self.is_ending = False
        sock = run.bind(settings)
        self.port: int = sock.getsockname()[1]
        ready = threading.Event()
        self.server: DrainingServer = run.make_server(
            models, settings, sock, lambda line: ready.set() if line.startswith("ready") else None
        )
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [sock]}, name="soak-server")
        self.thread.start()
        if not ready.wait(_READY_S):
            raise RuntimeError("the server does not get ready")

    def tell_to_end(self) -> None:
        """As SIGTERM does."""
        self.is_ending = True
        self.server.should_exit = True

    def join(self) -> None:
        """Waits for the end."""
        self.thread.join(_READY_S)
        if self.thread.is_alive():
            raise RuntimeError("the server does not end")


@dataclasses.dataclass(kw_only=True)
class Soak:
    """Settings of a soak. other: the model whose engine dies in each round; until_s: when it ends, however many requests there were."""

    main: LLM
    other: Path | str
    cases: list[Case]
    rng: random.Random
    num_clients: int = 64
    max_queue: int = 1
    share_of_faults: float = 0.66
    other_bytes: int = 1 << 22
    engine_args: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the other engine
    kinds: tuple[str, ...] = tuple(FAULTS)
    until_s: float = float("inf")
    tally: Tally = dataclasses.field(default_factory=Tally)

    def round(self, num_requests: int) -> None:
        """One server from its start to its end. At the end all must be as it was before."""
        before = self.main.get_metrics()
        with self._engines() as models:
            server = Running(models, ServerSettings(port=0, drain_s=_IDLE_S))
            try:
                asyncio.run(self._clients(server, num_requests))
            finally:
                server.tell_to_end()
                server.join()
        self._audit(before)

    @contextlib.contextmanager
    def _engines(self) -> Iterator[dict[str, AsyncLLM]]:
        with LLM(self.other, kv_cache_memory_bytes=self.other_bytes, max_model_len=512, **self.engine_args) as other:
            models = {"main": AsyncLLM(llm=self.main, max_queue=self.max_queue), "other": AsyncLLM(llm=other, max_queue=self.max_queue)}
            yield models
            asyncio.run(_shut_down(models))

    async def _clients(self, server: Running, num_requests: int) -> None:
        """`num_requests` requests by the clients, the last ones while the server ends. In the middle the other engine ends."""
        left = iter(range(num_requests))
        tasks = [asyncio.create_task(self._client(server, left)) for _ in range(self.num_clients)]
        begun = self.tally.num_requests
        while not all(task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=0.01)
            done = self.tally.num_requests - begun
            if "other" in server.models and not _has_ended(server.models["other"]) and done > num_requests // 2:
                self.tally.num_deaths += 1
                await asyncio.to_thread(server.models["other"].llm.close)
            if not server.is_ending and (done > num_requests - self.num_clients // 2 or time.monotonic() > self.until_s):
                self.tally.faults["drain"] += self.num_clients
                server.tell_to_end()
        for task in tasks:
            task.result()

    async def _client(self, server: Running, left: Iterator[int]) -> None:
        for _ in left:
            if time.monotonic() > self.until_s:
                return
            kind = self.rng.choice(self.kinds) if self.rng.random() < self.share_of_faults else "no_fault"
            outcome = Outcome(AGAIN)
            while outcome.what == AGAIN:
                if server.is_ending and not server.thread.is_alive():
                    return
                outcome = await self._visit(server, kind)
                if outcome.what == AGAIN:
                    if server.is_ending:
                        return
                    self.tally.faults["queue_full"] += 1
                    await asyncio.sleep(0.005 + self.rng.random() * 0.02)
            self.tally.note(kind, outcome)

    async def _visit(self, server: Running, kind: str) -> Outcome:
        visit = Visit(
            server.port,
            self.rng.choice(self.cases),
            random.Random(self.rng.getrandbits(64)),
            self.rng.random() < 0.5,
            lambda: server.is_ending,
            lambda: _has_ended(server.models["other"]),
        )
        fault: Callable[[Visit], Awaitable[Outcome]] = FAULTS.get(kind, faults.no_fault)
        try:
            return await asyncio.wait_for(fault(visit), _ANSWER_S)
        except TimeoutError:
            return Outcome("", f"no answer within {_ANSWER_S:g} s")
        except CutError as error:
            if server.is_ending and error.num_bytes == 0:
                return Outcome(AGAIN)
            return Outcome("", f"{visit.case.path}: {error}")
        except OSError as error:
            return Outcome(AGAIN) if server.is_ending else Outcome("", f"{type(error).__name__}: {error}")

    def _audit(self, before: dict[str, Any]) -> None:
        """Counts what the round has left behind: blocks, sequences, and what the engine's own audit finds."""
        end = time.monotonic() + _IDLE_S
        while (stats := self.main.get_metrics())["num_running"] or stats["num_waiting"] or stats["num_queued"]:
            if time.monotonic() > end:
                self.tally.wrong(f"{stats['num_running']} sequences run and {stats['num_waiting']} wait for nobody")
                break
            time.sleep(0.01)
        self.tally.faults["preemption"] += stats["num_preemptions"] - before["num_preemptions"]
        self.tally.faults["prefix_eviction"] += stats["num_prefix_evictions"] - before["num_prefix_evictions"]
        self.main.reset_prefix_cache()
        stats = self.main.get_metrics()
        self.tally.num_audits += 1
        lost = stats["num_pages"] - stats["num_free_pages"]
        self.tally.num_lost_blocks += lost
        if lost or stats["audit"] or stats["num_cached_pages"]:
            self.tally.wrong(f"{lost} blocks lost, {stats['num_cached_pages']} cached; audit: {stats['audit'] or 'nothing'}")


def _has_ended(server: AsyncLLM) -> bool:
    return not server.health().alive


async def _shut_down(models: dict[str, AsyncLLM]) -> None:
    for server in models.values():
        await server.shutdown(drain=False)
