"""Questions of a replica to its front, over the socket between them."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

from llmi.replicas.records import whole_number


class Questions:
    """Those under way. send: takes a message to the front."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}

    def ask(self, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Waits for the answer. Raises OSError, ValueError."""
        answer: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = answer
        try:
            self._send({"kind": "ask", "id": number, "body": body})
            message = answer.get(timeout=seconds)
        except queue.Empty:
            raise OSError(f"no answer within {seconds:.3g} s") from None
        finally:
            with self._lock:
                del self._waiting[number]
        told = message.get("told")
        if not isinstance(told, dict):
            raise ValueError(str(message.get("problem"))[:200])
        return told

    def take(self, message: dict[str, Any]) -> None:
        """An answer of the front. Raises BrokenMessageError."""
        with self._lock:
            waiting = self._waiting.get(whole_number(message.get("id")))
        if waiting is not None:
            waiting.put(message)
