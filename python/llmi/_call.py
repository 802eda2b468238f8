"""Requests submitted together, and the channel on which their news arrive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi._errors import GenerationInterrupted, RequestErrors, call_core, from_core
from llmi._outputs import Outputs, RequestOutput, StreamChunk
from llmi._request import PartialOutput

if TYPE_CHECKING:
    from llmi._request import ResultBuilder, Submission

_WAIT_S = 0.1  # how often Python looks for Ctrl-C while the engine works


class Call:
    """One call's requests on their way through the engine."""

    def __init__(self, engine: Any, results: ResultBuilder, submissions: list[Submission], on_error: str) -> None:
        self.engine = engine
        self.results = results
        self.submissions = submissions
        self.on_error = on_error
        self.channel = _core.OutputChannel()
        self.index_of: dict[int, int] = {}
        self.pending: set[int] = set()
        self._finished: set[int] = set()
        self._partial: dict[int, dict[int, PartialOutput]] = {}

    @property
    def done(self) -> bool:
        """Whether every request has ended."""
        return not self.pending

    def submit(self, first: int = 0) -> None:
        """Hands the requests to the engine, all at once; one that it refuses keeps its error."""
        accepted = []
        for index, submission in enumerate(self.submissions[first:], start=first):
            if submission.error is None:
                try:
                    self.engine.check(submission.request)
                except _core.CoreError as error:
                    submission.error = from_core(error.args)
                    if error.args[0] == "closed":
                        raise submission.error from None
            if submission.error is not None:
                self._finished.add(index)
                continue
            self.index_of[submission.request.id] = index
            accepted.append(submission.request)
        call_core(self.engine.submit, accepted, self.channel)
        self.pending.update(request.id for request in accepted)

    def wait(self, timeout_s: float = _WAIT_S) -> list[StreamChunk]:
        """News that have come within the timeout."""
        chunks = [self.take(event) for event in self.channel.wait(timeout_s)]
        return [chunk for chunk in chunks if chunk is not None]

    def take(self, event: Any) -> StreamChunk | None:
        """Takes in one event; returns its text, or None at a request's end."""
        index = self.index_of[event.request.id]
        if event.finished:
            self.pending.discard(event.request.id)
            self._finished.add(index)
            self._partial.pop(index, None)
            self.results.finished(event.request)
            self.submissions[index].hooks.end()
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
        # While the engine works on a request, its record is not looked at: only what has arrived here is.
        return self.results.output(submission, partial=self._partial.get(index, {}) if running else None)

    def outputs(self) -> Outputs:
        """All results."""
        return Outputs(self.output(index) for index in range(len(self.submissions)))

    def abort(self) -> None:
        """Asks the engine to end what still runs."""
        if self.pending:
            self.engine.abort(sorted(self.pending))

    def abort_and_wait(self) -> None:
        """Ends what still runs; the engine answers between two steps."""
        self.abort()
        deadline = time.monotonic() + 60
        while self.pending and time.monotonic() < deadline:
            self.wait()

    def cancel(self) -> Outputs:
        """Ends everything and returns what there is; a second Ctrl-C meanwhile does not tear it."""
        while True:
            try:
                self.abort_and_wait()
                return self.outputs()
            except KeyboardInterrupt:
                continue

    def interrupt(self) -> None:
        """Ctrl-C in a stream."""
        raise GenerationInterrupted(self.cancel()) from None

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
