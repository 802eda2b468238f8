"""Servers that run already, as replicas: /llmi/generate carries what a socket carries between processes of one machine."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from llmi.errors import (
    EngineClosedError,
    EngineError,
    InvalidParamsError,
    LlmiError,
    QueueFullError,
    UnsupportedModelError,
    WorkerDiedError,
)
from llmi.replicas.http import BROKEN, Address, HttpAnswer, UnreachedError, request
from llmi.replicas.records import error_as_json, error_of, moved
from llmi.replicas.wire import BrokenMessageError, decode, read_json

_PATIENCE_S = 5.0  # for a server to say what it is
_LOOK_S = 0.1
#: What a server says of an engine; its fingerprint is a text, or None.
_KINDS: dict[str, type] = {"model": str, "instance": str, "arguments": dict, "path": str, "info": dict, "stats": dict}
T = TypeVar("T")


class Servers:
    """A fixed list of servers of one model.

    model : the name that they serve it under, where they serve several. key: what they want to be sent.

    Raises InvalidParamsError for what is no URL, and a server that is named twice.
    """

    none = "no server answers"

    def __init__(self, urls: Sequence[str], model: str | None, key: str | None) -> None:
        given = [str(Address.of(url)) for url in urls]
        if double := next((name for name in given if given.count(name) > 1), None):
            raise InvalidParamsError(f"{double} is named twice: name each server once", "url")
        self.addresses = {name: Address.of(name) for name in given}
        self.model, self.key = model, key
        runner, self._over = asyncio.Runner(), asyncio.Event()
        self.loop = runner.get_loop()
        self._instances: dict[str, str] = {}  # of the servers, by their names
        self._thread = threading.Thread(target=self._run, args=(runner,), name="llmi-servers", daemon=True)
        self._thread.start()

    def start(self, name: str, is_over: Callable[[], bool]) -> Server:
        """Asks a server what it is. Raises WorkerDiedError where it does not answer, or may not be one of these."""
        server = Server(name, self)
        found = self._wait(server.engine(), name, is_over)
        same = [other for other, instance in self._instances.items() if other != name and instance == found["instance"]]
        if same:
            raise WorkerDiedError(f"server {name} is {same[0]} by another name: name it once", name)
        self._instances[name] = found["instance"]
        server.begin(found)
        return server

    def _wait(self, work: Coroutine[Any, Any, T], name: str, is_over: Callable[[], bool]) -> T:
        future, deadline_s = asyncio.run_coroutine_threadsafe(work, self.loop), time.monotonic() + _PATIENCE_S
        while not is_over():
            try:
                return future.result(_LOOK_S)
            except concurrent.futures.TimeoutError:
                if time.monotonic() > deadline_s:
                    future.cancel()
                    raise WorkerDiedError(f"server {name} does not answer: it said nothing for {_PATIENCE_S:g} s", name) from None
            except (*BROKEN, BrokenMessageError) as error:
                raise WorkerDiedError(f"server {name} does not answer: {error or type(error).__name__}", name) from None
        future.cancel()
        raise WorkerDiedError(f"server {name}: closed while it was asked", name)

    def first(self) -> dict[str, Any]:
        """What the first server's engine is. Raises WorkerDiedError."""
        name = next(iter(self.addresses))
        found = self._wait(Server(name, self).engine(), name, lambda: False)
        self.model = self.model or found["model"]
        return found

    def remove(self) -> None:
        """Ends the thread; the servers go on."""
        self.soon(self._over.set)
        self._thread.join()

    def soon(self, function: Callable[..., None], *arguments: object) -> None:
        """Calls it in the thread, unless that has ended."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *arguments)

    def _run(self, runner: asyncio.Runner) -> None:
        with runner:
            runner.run(self._over.wait())


class Server:
    """One life of a server: from its answer to the end of what connects to it. It has the calls of a Process."""

    pid = 0  # it is no process of this program

    def __init__(self, name: str, servers: Servers) -> None:
        self._name, self._servers = name, servers
        self._address = servers.addresses[name]
        self._received: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by request
        self._ping: asyncio.Task[None] | None = None
        self._model = self._instance = ""
        self._why = ""  # it has gone
        self.is_orderly = False
        self.connection = self

    def begin(self, found: dict[str, Any]) -> None:
        """It is one of the replicas, as far as it is known here."""
        self._model, self._instance = found["model"], found["instance"]
        known = {name: found[name] for name in ("info", "stats", "fingerprint")}
        self._received.put({"kind": "ready", "identity": {"fingerprint": found["fingerprint"]}, **known})

    async def engine(self) -> dict[str, Any]:
        """What its engine is. Raises WorkerDiedError, or one of BROKEN."""
        async with request(self._address, "GET", "/llmi/engine", self._servers.key) as answer:
            if answer.status != 200:
                raise WorkerDiedError(f"server {self._name} {await self._refusal(answer)}", self._name)
            models = read_json((await answer.whole()).decode())
        models = models.get("data") if isinstance(models, dict) else None
        if not isinstance(models, list) or not models or not all(map(_is_known, models)):
            raise ValueError("what it says of its engines has no known form")
        names = [entry["model"] for entry in models]
        named = models if len(models) == 1 else [entry for entry in models if entry["model"] == self._servers.model]
        found: dict[str, Any] | None = next(iter(named), None)
        if found is None:
            raise WorkerDiedError(f"server {self._name} serves {', '.join(names)}: give one of them, as in -m {names[0]}=MODEL", self._name)
        if not isinstance(found.get("fingerprint"), str):
            raise WorkerDiedError(
                f"server {self._name} has no fingerprint: its tokens depend on more than the request, so no other server can go on for it",
                self._name,
            )
        return found

    async def _refusal(self, answer: HttpAnswer) -> str:
        if answer.status == 401:
            return "wants a key: give --api-key-file" if self._servers.key is None else "does not know the key of --api-key-file"
        if answer.status == 404:
            return "has no route /llmi/engine: it is no `llmi serve`, or one of an earlier version"
        return f"answers {answer.status}: {_message(await answer.whole())}"

    # --- a replica's process

    def kill(self) -> None:
        """Ends what connects to it: it is told nothing more."""
        self._servers.soon(self._end, "said nothing for too long")

    def why_silent(self) -> str:
        """Nobody here knows."""
        return ""

    def finish(self) -> None:
        """It runs on."""

    def how_it_ended(self) -> str:
        """In words."""
        return self._why

    # --- its messages

    def send(self, data: bytes) -> None:
        """Sends an encoded message."""
        self._servers.soon(self._take, decode(data[4:]))

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where it has gone."""
        return self._received.get()

    def close(self) -> None:
        """Ends what connects to it."""
        self._servers.soon(self._end, "was left")

    # --- in the loop

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if self._why:
            return
        if kind == "generate":
            self._tasks[message["id"]] = self._servers.loop.create_task(self._generate(message))
        elif kind == "abort":
            for number in message["ids"]:
                if (task := self._tasks.pop(number, None)) is not None:
                    task.cancel()
                    self._tell(number, {"aborted": True})
        elif kind == "ping" and (self._ping is None or self._ping.done()):
            self._ping = self._servers.loop.create_task(self._ask())
        elif kind == "pool":
            error = UnsupportedModelError("llmi route passes on requests for tokens: ask a server for vectors and scores")
            self._received.put({"kind": "pooled", "id": message["id"], "error": error_as_json(error)})

    def _tell(self, number: int, fields: dict[str, Any]) -> None:
        self._received.put({"kind": "events", "events": [{**fields, "id": number}]})

    async def _ask(self) -> None:
        try:
            found = await self.engine()
            if found["instance"] != self._instance:
                self._end("was started again")
            self._received.put({"kind": "pong", "stats": found["stats"]})
        except WorkerDiedError as error:
            self.is_orderly = not self._why
            self._end(str(error).removeprefix(f"server {self._name} "))
        except BROKEN as error:
            self._end(f"does not answer any more: {error or type(error).__name__}")

    async def _generate(self, message: dict[str, Any]) -> None:
        """One request. Whatever comes instead of its whole answer means that the server has gone."""
        number, begun_s = message["id"], time.monotonic()
        body = {name: value for name, value in message.items() if name not in ("kind", "id", "tells")}
        body |= {"stream": message["tells"], "model": self._model}
        try:
            async with request(self._address, "POST", "/llmi/generate", self._servers.key, json.dumps(body).encode()) as answer:
                if answer.status != 200:
                    await self._note_refusal(number, answer)
                    return
                if not message["tells"]:
                    self._note(number, read_json((await answer.whole()).decode()), begun_s)
                    return
                async for data in answer.events():
                    if self._note(number, read_json(data.decode()), begun_s):
                        return
            raise EOFError("an answer ended before its end")
        except BROKEN as error:
            if isinstance(error, UnreachedError):
                self._tell(number, {"unsent": True})
            self._end(f"has gone: {error or type(error).__name__}")

    def _note(self, number: int, fields: dict[str, Any], begun_s: float) -> bool:
        """Passes an event on; returns whether it is the last."""
        if "sample" not in fields:
            self._tasks.pop(number, None)
        if "sample" in fields or "samples" in fields:
            self._tell(number, moved(fields, begun_s))
        else:
            self._refuse(number, error_of(fields.get("error")))
        return "sample" not in fields

    async def _note_refusal(self, number: int, answer: HttpAnswer) -> None:
        data = await answer.whole()
        self._tasks.pop(number, None)
        own = read_json(data.decode()).get("llmi")
        if own is not None:
            self._refuse(number, error_of(own))
        elif answer.status == 429:
            retry_s = answer.headers.get("retry-after", "1")
            self._refuse(number, QueueFullError(_message(data), retry_after_s=float(retry_s) if retry_s.isdigit() else 1.0))
        elif answer.status in (401, 403, 404, 503):
            self.is_orderly = not self._why
            self._end(f"answers {answer.status}: {_message(data)}")
        else:
            self._refuse(number, LlmiError(f"server {self._name} answers {answer.status}: {_message(data)}"))

    def _refuse(self, number: int, error: LlmiError) -> None:
        """What a request ended with; an engine that has ended takes all of them along."""
        if isinstance(error, EngineClosedError) or type(error) is EngineError:
            self._end(f"can answer nothing more: {error}")
        else:
            self._tell(number, {"refused": error_as_json(error)})

    def _end(self, why: str) -> None:
        if self._why:
            return
        self._why = why
        for task in (*self._tasks.values(), *([] if self._ping is None else [self._ping])):
            if task is not asyncio.current_task():
                task.cancel()
        self._received.put(None)


def _is_known(entry: object) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in _KINDS.items())


def _message(data: bytes) -> str:
    """What an error of a server says."""
    try:
        return str(read_json(data.decode())["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return repr(data[:80])
