"""What a replica's process runs: it loads the model that it is told, and answers requests until the socket closes."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llmi.base.travel import strict_json
from llmi.errors import LlmiError
from llmi.handover import peers
from llmi.llm import LLM
from llmi.pooling import running
from llmi.replicas.answering import Answers
from llmi.replicas.asked import Asked
from llmi.replicas.identity import identity_of
from llmi.replicas.opening import takes_too_much
from llmi.replicas.policy import PolicyFile
from llmi.replicas.process import watch_parent
from llmi.replicas.questions import Questions
from llmi.replicas.records import error_as_json, token_ids, whole_number
from llmi.replicas.wire import BrokenMessageError, Connection, encode
from llmi.server.fingerprint import fingerprint_of

_MOST_PREFILLS = 16  # at a time, for others


def open_share(arguments: dict[str, Any], most_kv_bytes: int) -> LLM:
    """An LLM whose cache is no larger than its share of the free memory."""
    llm = LLM(**arguments)
    if takes_too_much(arguments, llm._engine, most_kv_bytes):
        llm.close()
        llm = LLM(**{**arguments, "kv_cache_memory_bytes": most_kv_bytes})
    return llm


def stats_of(llm: LLM) -> dict[str, Any]:
    """The counters of its engine, as JSON has them."""
    stats: dict[str, Any] = strict_json(llm._engine.latest_stats() | {"stalled_s": llm._engine.stalled_s})
    return stats


class Replica:
    """One process's engine."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._llm: LLM | None = None
        self._answers: Answers | None = None
        self._pools = ThreadPoolExecutor(2, "llmi vectors")
        self._prefills = ThreadPoolExecutor(_MOST_PREFILLS, "llmi prefills")
        self._questions = Questions(self.send)
        peers.front = self._questions.ask

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message; ends the process where nobody reads."""
        try:
            data = encode(message)
        except BrokenMessageError as error:
            if message["kind"] != "events":
                raise
            parts = [{"id": event["id"], "refused": error_as_json(LlmiError(str(error)))} for event in message["events"]]
            data = encode({"kind": "events", "events": parts})
        try:
            self._connection.send(data)
        except OSError:
            os._exit(0)

    def run(self) -> None:
        """Answers until the other side has gone."""
        while (message := self._connection.receive()) is not None:
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "ping":
            self._pong()
        elif kind == "open" and self._llm is None:
            threading.Thread(target=self._open, args=(message,), name="llmi-open", daemon=True).start()
        elif kind == "generate" and self._answers is not None:
            self._answers.begin(Asked.read(message))
        elif kind == "abort" and self._answers is not None:
            self._answers.abort(token_ids(message.get("ids")))
        elif kind == "pool" and self._llm is not None:
            self._pools.submit(self._pool, self._llm, whole_number(message.get("id")), message)
        elif kind == "prefill" and self._llm is not None and isinstance(message.get("body"), dict):
            self._prefills.submit(self._prefill, self._llm, whole_number(message.get("id")), message["body"])
        elif kind == "answer":
            self._questions.take(message)
        else:
            raise BrokenMessageError(f"{kind[:40]!r} may not come now")

    def _open(self, message: dict[str, Any]) -> None:
        try:
            arguments, most = message["arguments"], message["most_kv_bytes"]
            if message["policy_file"] is not None:
                arguments["scheduling_policy"] = PolicyFile(message["policy_file"])
            llm = open_share(arguments, most)
            ready = {
                "kind": "ready",
                "identity": identity_of(llm),
                "info": strict_json(llm._engine.info()),
                "stats": stats_of(llm),
                "fingerprint": fingerprint_of(llm) if message["fingerprint"] else None,
            }
        except BaseException as error:
            self.send({"kind": "failed", "error": error_as_json(error)})
            return
        self._answers = Answers(lambda: llm, lambda events: self.send({"kind": "events", "events": events}))
        self._llm = llm
        self.send(ready)

    def _pool(self, llm: LLM, number: int, message: dict[str, Any]) -> None:
        try:
            told: dict[str, Any] = {"values": running.answer(llm, message)}
        except Exception as error:
            told = {"error": error_as_json(error)}
        self.send({"kind": "pooled", "id": number, **told})

    def _prefill(self, llm: LLM, number: int, body: dict[str, Any]) -> None:
        try:
            assert llm._handover is not None
            told: dict[str, Any] = {"told": llm._handover.answer(llm, body)}
        except Exception as error:
            told = {"problem": str(error)}
        self.send({"kind": "prefilled", "id": number, **told})

    def _pong(self) -> None:
        self.send({"kind": "pong", "stats": None if self._llm is None else stats_of(self._llm)})


def main() -> None:
    """Runs a replica: argv has the socket, and the process that listens there."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a service's stop reaches the front, which lets requests end
        signal.signal(number, signal.SIG_IGN)
    path, parent = sys.argv[1:3]
    watch_parent(int(parent))
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    try:
        Replica(Connection(sock)).run()
    finally:
        sys.stderr.flush()
        os._exit(0)  # threads that work are not waited for
