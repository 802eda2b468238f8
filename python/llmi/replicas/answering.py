"""Answers requests that have travelled here, with the engine of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.errors import call_core
from llmi.replicas.asked import Asked
from llmi.replicas.records import end_as_json, error_as_json, event_as_json
from llmi.requests.submission import Submission

if TYPE_CHECKING:
    from llmi.session import Session

_WAIT_S = 0.1
_NUM_THREADS = 4  # that prepare requests: one may wait for a grammar


class Answers:
    """session: the LLM, None when it has gone. send: gets events, each an object of llmi.replicas.records, in order; called by several
    threads."""

    def __init__(self, session: Callable[[], Session | None], send: Callable[[list[dict[str, Any]]], None]) -> None:
        self._session = session
        self._send = send
        self._channel = _core.OutputChannel()
        self._lock = threading.Lock()
        self._running: dict[int, tuple[Asked, Submission]] = {}  # by the engine's number
        self._number_of: dict[int, int | None] = {}  # by the request's number; None: being prepared
        self._aborted: set[int] = set()  # before they were submitted
        self._closed = False
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "llmi prepare")
        threading.Thread(target=self._pump, name="llmi-answers", daemon=True).start()

    def begin(self, asked: Asked) -> None:
        """Takes a request on."""
        with self._lock:
            self._number_of[asked.id] = None
        self._threads.submit(self._begin, asked)

    def abort(self, request_ids: list[int]) -> None:
        """Ends requests; those that are not here are not meant."""
        with self._lock:
            numbers = [self._number_of[request_id] for request_id in request_ids if request_id in self._number_of]
            self._aborted.update(request_id for request_id in request_ids if self._number_of.get(request_id, 0) is None)
        llm = self._session()
        if llm is not None:
            llm._engine.abort([number for number in numbers if number is not None])

    def close(self) -> None:
        """Ends its threads."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, asked: Asked) -> None:
        try:
            llm = self._session()
            if llm is None:
                return
            submission = asked.call(llm).submissions[0]
            if submission.error is not None:
                raise submission.error
            request = submission.built
            call_core(llm._engine.check, request)
            with self._lock:
                self._running[request.id] = (asked, submission)
                self._number_of[asked.id] = request.id
            call_core(llm._engine.submit, [request], self._channel)
            with self._lock:
                is_aborted = asked.id in self._aborted
                self._aborted.discard(asked.id)
            if is_aborted:
                llm._engine.abort([request.id])
        except Exception as error:
            with self._lock:
                number = self._number_of.pop(asked.id, None)
                self._running.pop(-1 if number is None else number, None)
            self._send([{"id": asked.id, "refused": error_as_json(error)}])

    def _pump(self) -> None:
        events: list[_core.OutputEvent] = []
        while not self._closed:
            self._channel.wait(events, _WAIT_S)
            if events:
                found = [told for event in events if (told := self._told(event)) is not None]
                events.clear()
                self._send(found)

    def _told(self, event: _core.OutputEvent) -> dict[str, Any] | None:
        asked, submission = self._running[event.request_id]
        if not event.finished:
            return event_as_json(asked.id, event)
        with self._lock:
            del self._running[event.request_id], self._number_of[asked.id]
        submission.hooks.end()
        llm = self._session()
        if llm is None:
            return None
        whole = not asked.tells or submission.beams is not None
        return end_as_json(asked.id, event.request, llm._results.error(submission), whole)
