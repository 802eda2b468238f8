"""Requests that run step by step, by hand: what `enqueue`, `step` and `wait_for_completion` of LLM do."""

from __future__ import annotations

import threading
from collections.abc import Callable

from llmi import _core
from llmi.errors import EngineClosedError, call_core
from llmi.outputs.results import Outputs, RequestOutput
from llmi.requests.call import Call
from llmi.requests.results import ResultBuilder

Keep = Callable[[Outputs], None]


class Stepping:
    """The enqueued requests of one engine. `keep` gets the results when all have ended, however they did."""

    def __init__(self, engine: _core.Engine, results: ResultBuilder) -> None:
        self._engine = engine
        self._results = results
        self._call: Call | None = None
        self._lock = threading.Lock()

    def add(self, call: Call, submit: Callable[[Call, int], None]) -> None:
        """Queues the requests of `call` behind those that were added before."""
        call_core(self._engine.check_open)  # in the child of a fork the lock may never be released
        with self._lock:
            whole = self._call or Call(self._engine, self._results, [], "return")
            first = len(whole.submissions)
            try:
                whole.submissions += call.submissions
                submit(whole, first)
                self._call = whole
            except BaseException:
                whole.withdraw(first)
                raise

    def step(self, keep: Keep) -> list[RequestOutput]:
        """One iteration: the requests that have news."""
        call_core(self._engine.check_open)
        with self._lock:
            call = self._call
            if call is None:
                return []

            def end(outputs: Outputs) -> None:
                self._call = None
                keep(outputs)

            touched: set[int] = set()
            with call.ending(end):
                while not touched and not call.done:
                    self._advance(call)
                    touched = {chunk.request_index for chunk in call.chunks} | call.take_finished()
                    call.chunks.clear()
                outputs = [call.output(index) for index in sorted(touched)]
                if call.done:
                    end(call.outputs())
                return outputs

    def finish(self, keep: Keep) -> Outputs:
        """Runs all to their end. Raises EngineClosedError if the engine is closed meanwhile."""
        call_core(self._engine.check_open)
        with self._lock:
            call, self._call = self._call, None
        if call is None:
            return Outputs()
        with call.ending(keep):
            while not call.done:
                self._advance(call)
                call.chunks.clear()
        outputs = call.outputs()
        keep(outputs)
        # The engine may have been closed between two steps, and its requests have ended with that.
        if closed := next((output.error for output in outputs if isinstance(output.error, EngineClosedError)), None):
            raise closed
        return outputs

    def _advance(self, call: Call) -> None:
        call_core(self._engine.step)
        call.wait(0.0)
