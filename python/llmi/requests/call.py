"""Requests submitted together, the channel on which their news arrive, and how the wait for them ends."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

from llmi import _core
from llmi.errors import EngineClosedError, LlmiError, call_core, from_core
from llmi.outputs.completion import StreamChunk
from llmi.outputs.errors import GenerationInterrupted, RequestErrors
from llmi.outputs.results import Outputs, RequestOutput
from llmi.requests.results import PartialOutput, ResultBuilder
from llmi.requests.submission import Submission

_WAIT_S = 0.1  # how often Python looks for Ctrl-C while the engine works
_CANCEL_S = 60.0  # how long to wait for requests that were aborted: their hook may be blocked in C code
_END_S = 1.0  # how long an engine that ends may take to tell its requests


class Place(Protocol):
    """Where requests run. Alone is one engine; llmi.replicas.router has several."""

    def channel(self) -> _core.OutputChannel:
        """For news of requests."""
        ...

    def check(self, request: _core.Request) -> None:
        """Raises CoreError for what could never run."""
        ...

    def check_open(self) -> None:
        """Raises EngineClosedError."""
        ...

    def submit(self, submissions: Sequence[Submission], channel: _core.OutputChannel) -> None:
        """Hands requests over. Raises LlmiError."""
        ...

    def abort(self, request_ids: Sequence[int]) -> None:
        """Ends requests."""
        ...

    def interrupt_hook(self, request_ids: Sequence[int]) -> bool:
        """Ends a hook of theirs that does not return."""
        ...


class Router(Place, Protocol):
    """Several engines; llmi.replicas.router is one."""

    @property
    def num_engines(self) -> int:
        """How many there are."""
        ...

    @property
    def num_queued(self) -> int:
        """Requests that no step has begun."""
        ...

    @property
    def stalled_s(self) -> float:
        """How long they stand still."""
        ...

    def latest_stats(self) -> dict[str, Any]:
        """Their counters, added up."""
        ...

    def pool(self, parts: Sequence[dict[str, Any]]) -> list[list[bytes]]:
        """What they make of parts of texts, each an object with `inputs`: the bytes of each input's values."""
        ...

    def states(self) -> list[dict[str, Any]]:
        """Each of them: name, pid, state, load, fingerprint, starts, problem, stats."""
        ...

    def close(self) -> None:
        """Ends their processes."""
        ...


class Alone:
    """One engine."""

    def __init__(self, engine: _core.Engine) -> None:
        self.check, self.abort, self.interrupt_hook = engine.check, engine.abort, engine.interrupt_hook
        self._engine = engine

    def channel(self) -> _core.OutputChannel:
        return _core.OutputChannel()

    def check_open(self) -> None:
        call_core(self._engine.check_open)

    def submit(self, submissions: Sequence[Submission], channel: _core.OutputChannel) -> None:
        call_core(self._engine.submit, [submission.built for submission in submissions], channel)


class Call:
    """One call's requests on their way through the engine. place: where they run; None: there."""

    pending: set[int]

    def __init__(
        self, engine: _core.Engine, results: ResultBuilder, submissions: list[Submission], on_error: str, place: Place | None = None
    ) -> None:
        self.place: Place = Alone(engine) if place is None else place
        self.results = results
        self.submissions = submissions
        self.on_error = on_error
        self.channel = self.place.channel()
        self.index_of: dict[int, int] = {}
        self.pending = set()
        self.chunks: collections.deque[StreamChunk] = collections.deque()  # of streams, for their reader
        self._events: list[_core.OutputEvent] = []  # the core appends: an exception that comes while it does loses nothing
        self.lock = threading.Lock()  # held by the thread that takes events in
        self._finished: set[int] = set()
        self._partial: dict[int, dict[int, PartialOutput]] = {}

    def __del__(self) -> None:
        if getattr(self, "pending", None):  # the rest can no longer be taken
            self.abort()

    @property
    def done(self) -> bool:
        """Whether every request has ended."""
        return not self.pending

    @property
    def begun(self) -> bool:
        """Whether the engine has got a request."""
        return any(self._is_submitted(index) for index in self.index_of.values())

    def submit(self, first: int = 0) -> None:
        """Hands the requests to the engine, all at once; one that it refuses keeps its error."""
        accepted = []
        for index, submission in enumerate(self.submissions[first:], start=first):
            if submission.error is None:
                try:
                    self.place.check(submission.built)
                except _core.CoreError as error:
                    refused = from_core(error)
                    if error.kind == "closed":
                        raise refused from None
                    submission.refuse(refused)
            if submission.error is not None:
                self._finished.add(index)
                continue
            self.index_of[submission.built.id] = index
            accepted.append(submission)
        ids = [submission.built.id for submission in accepted]
        self.pending.update(ids)  # set before the engine has the requests: see _forget_unsubmitted
        try:
            self.place.submit(accepted, self.channel)
        except LlmiError:
            self.pending.difference_update(ids)
            raise

    def withdraw(self, first: int) -> None:
        """Ends the requests from `first` on and forgets them."""
        ids = [request_id for request_id, index in self.index_of.items() if index >= first]
        self.place.abort(ids)
        for request_id in ids:
            self.pending.discard(request_id)
            del self.index_of[request_id]
        del self.submissions[first:]

    def wait(self, timeout_s: float = _WAIT_S) -> None:
        """Takes in news that come within the timeout. Raises EngineClosedError if none will ever come."""
        self.channel.wait(self._events, timeout_s)
        if not self._events and self.pending:
            try:
                self.place.check_open()
            except EngineClosedError:  # an engine that ends tells its requests, which may come just now
                self.channel.wait(self._events, _END_S)
                if not self._events:
                    raise
        with self.lock:
            while self._events:
                event = self._events[0]
                if event.finished:  # again, if an exception tears it
                    self.take(event)
                    del self._events[0]
                else:
                    del self._events[0]
                    chunk = self.take(event)
                    if chunk is not None:
                        self.chunks.append(chunk)

    def take(self, event: _core.OutputEvent) -> StreamChunk | None:
        """Takes in one event; returns its text, or None at a request's end."""
        index = self.index_of.get(event.request.id)
        if index is None:  # withdrawn
            return None
        if event.finished:
            self.submissions[index].hooks.end()
            self.results.finished(self.submissions[index])
            self._partial.pop(index, None)
            self._finished.add(index)
            self.pending.discard(event.request.id)
            return None
        self._partial.setdefault(index, {}).setdefault(event.sample_index, PartialOutput()).add(event)
        return StreamChunk(index, event.sample_index, event.text, event.token_ids, event.finish_reason)

    def take_finished(self) -> set[int]:
        """Indices that finished since the last call."""
        finished, self._finished = self._finished, set()
        return finished

    def output(self, index: int) -> RequestOutput:
        """The result at `index`, partial if it runs still."""
        submission = self.submissions[index]
        running = submission.request is not None and submission.request.id in self.pending
        # While the engine works on a request, its record is not read: only the events that have arrived are.
        return self.results.output(submission, partial=self._partial.get(index, {}) if running else None)

    def outputs(self) -> Outputs:
        """All results."""
        return Outputs(self.output(index) for index in range(len(self.submissions)))

    def abort(self) -> None:
        """Asks the engine to end what still runs."""
        if self.pending:
            self.place.abort(sorted(self.pending))

    def abort_and_wait(self) -> None:
        """Ends what still runs; the engine answers between two steps. A hook that does not return gets KeyboardInterrupt."""
        start = time.monotonic()
        self._forget_unsubmitted()
        self.abort()
        while self.pending and (waited := time.monotonic() - start) < _CANCEL_S:
            if waited > _WAIT_S:
                self.place.interrupt_hook(sorted(self.pending))
            try:
                self.wait()
            except LlmiError:  # the engine is closed, and no more events come
                return

    def ending(self, keep: Callable[[Outputs], None] | None = None) -> Ending:
        """The context manager for all code that waits for these requests; see Ending."""
        return Ending(self, keep)

    def raise_errors(self) -> None:
        """RequestErrors if a request failed and the caller wants to know."""
        if self.on_error != "raise":
            return
        outputs = self.outputs()
        errors = {index: output.error for index, output in enumerate(outputs) if output.error is not None}
        if len(self.submissions) == 1 and errors:
            raise errors[0]
        if errors:
            raise RequestErrors(errors, outputs)

    def _is_submitted(self, index: int) -> bool:
        request = self.submissions[index].request
        return request is not None and request.arrival_time_s > 0

    def _forget_unsubmitted(self) -> None:
        """An exception may have come between the note that they are pending and their submission."""
        self.pending.difference_update([id for id in self.pending if not self._is_submitted(self.index_of[id])])


class Ending:
    """The one place that says how a wait ends early: whatever exception ends it (Ctrl-C, a signal handler's, a progress bar's,
    SystemExit, MemoryError) ends the call's requests: their caller has given up.

    Ctrl-C leaves as GenerationInterrupted with the partial results; any other exception as it is. `keep` gets the results. A second
    exception ends the wait for the engine's answer: the results are those that had come.
    """

    def __init__(self, call: Call, keep: Callable[[Outputs], None] | None) -> None:
        self._call = call
        self._keep = keep

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None or isinstance(error, GenerationInterrupted):
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        try:
            self._call.abort_and_wait()
        finally:
            # A second Ctrl-C has ended the wait: hooks that do not return are still interrupted. First of all: a third one may come.
            if self._call.pending:
                threading.Thread(target=self._call.abort_and_wait, name="llmi-ending", daemon=True).start()
            with self._call.lock:
                outputs = self._call.outputs() if interrupted or self._call.begun else None
            if outputs is not None and self._keep is not None:
                self._keep(outputs)
            if interrupted and outputs is not None:
                raise GenerationInterrupted(outputs) from None
