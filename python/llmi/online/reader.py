"""The reader of one request: what `async for` goes over."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from typing import Protocol

from llmi import _core
from llmi.base.ending import ENDING, Ending
from llmi.base.travel import StaysHere
from llmi.errors import EngineClosedError, LlmiError, SlowReaderError, UnsupportedCombinationError
from llmi.online.request import OnlineRequest, Payer, timeout_error
from llmi.outputs.results import RequestOutput
from llmi.requests.call import Call
from llmi.requests.loop import Loop


@dataclasses.dataclass(slots=True)
class Arrival:
    """A request before the engine has it.

    make : makes its call, given since when it waits to be made (by time.monotonic()).
    threads : call `make`; None: the loop's.
    slow : `make` may take long, for a long text, a template or a grammar, and is called off the loop.
    arrived_s : by time.monotonic().
    max_unread : most tokens that may wait for the reader; None: as many as there are.
    payer : pays for it; None: nobody does.
    tell : gets its events, in the loop of its reader, as the engine gives them; None: outputs say all.
    ending : when `make` should end, though it has no result.
    """

    name: str
    make: Callable[[float], Call]
    deadline_s: float | None
    threads: Executor | None = None
    slow: bool = True
    arrived_s: float = dataclasses.field(default_factory=time.monotonic)
    aborted: bool = False
    max_unread: int | None = None
    payer: Payer | None = None
    tell: Callable[[_core.OutputEvent], None] | None = None
    ending: Ending = dataclasses.field(default_factory=Ending)

    def check_deadline(self) -> None:
        """Raises RequestTimeoutError if the deadline has passed already."""
        now_s = time.monotonic()
        if self.deadline_s is not None and now_s >= self.arrived_s + self.deadline_s:
            raise timeout_error(self.name, self.deadline_s, now_s - self.arrived_s, 0, None)


class Host(Protocol):
    """What a reader uses of its AsyncLLM."""

    def _admit(self, arrival: Arrival) -> None:
        """Gives a request its name and its place in the queue. Raises if there is none."""
        ...

    def _submit(self, arrival: Arrival, call: Call) -> OnlineRequest:
        """Hands an admitted request to the engine. If it raises, the request is withdrawn."""
        ...

    def _withdraw(self, arrival: Arrival) -> None:
        """An admitted request will not be submitted."""
        ...

    def _forget(self, request: OnlineRequest) -> None:
        """The reader has gone: what still runs is aborted; the pump sees it out."""
        ...


def _attempt(make: Callable[[float], Call], queued_s: float) -> Call | Exception:
    try:
        return make(queued_s)
    except Exception as error:
        return error


class RequestStream(StaysHere, AsyncIterator[RequestOutput]):
    """The outputs of one request, as they grow. Leaving it aborts the request: by `aclose`, with its last reference, or where the task that
    goes over it by `async for` is cancelled.

    A step by `anext` that a timeout cancels loses nothing: the next one goes on there. It is no generator: a generator would end then.
    """

    _request: OnlineRequest | None = None
    _arrival: Arrival | None = None  # until the request is submitted
    _host: Host | None = None

    def __init__(self, host: Host, arrival: Arrival) -> None:
        self._host = host
        self._arrival = arrival
        self._made: asyncio.Future[Call | Exception] | None = None  # while a thread makes the call
        self._admitted = False
        self._ended: OnlineRequest | None = None

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return Loop(self.__anext__, self._leave)

    def bounded(self, arrived_s: float, max_unread: int, payer: Payer | None = None) -> RequestStream:
        """This stream, before its first step, with an earlier arrival, a bound on what waits for its reader, and who pays.

        arrived_s: by time.monotonic(); deadlines count from it. max_unread: tokens; with more of them unread the request ends, and the next
        step raises SlowReaderError.
        """
        if self._arrival is not None:
            self._arrival.arrived_s, self._arrival.max_unread, self._arrival.payer = arrived_s, max_unread, payer
        return self

    async def __anext__(self) -> RequestOutput:
        if self._arrival is not None:
            await self._begin(self._arrival)
        request = self._request
        if request is None:
            raise StopAsyncIteration
        while not self._has_news(request):
            await request.news()
        if request.progress.finished and request.progress.is_large:
            await asyncio.to_thread(request.progress.make_whole)
        output = self.take()
        if output is None:  # it was closed meanwhile
            raise StopAsyncIteration
        return output

    async def start(self, on_news: Callable[[], None]) -> None:
        """Submits the request, for a reader without a task: on_news is called in the event loop when `take` may find something. It may not
        raise.

        Raises what is wrong with the request.
        """
        if self._arrival is not None:
            await self._begin(self._arrival)
        if self._request is not None:
            self._request.listener = on_news
            if self._has_news(self._request):
                on_news()

    def take(self) -> RequestOutput | None:
        """The next output, if there is one now. Raises as a step does; None after the end, too."""
        request = self._request
        if request is None or not self._has_news(request):
            return None
        try:
            output = self._next(request)
        except BaseException:
            self._leave()
            raise
        if output.finished:
            self._ended = request
            self._leave()
        return output

    @staticmethod
    def _has_news(request: OnlineRequest) -> bool:
        return request.progress.has_news or request.closed or request.expired

    def whole(self) -> RequestOutput:
        """All of the request, once it has ended, whatever its output_kind: what a receipt is made of.

        Raises
        ------
        UnsupportedCombinationError
            The request has not ended.
        """
        if self._ended is None:
            raise UnsupportedCombinationError(
                "whole(): the request has not ended: read the stream to its last output first", "whole", "stream"
            )
        return self._ended.progress.whole()

    async def aclose(self) -> None:
        """Ends the request."""
        self._leave()

    def __del__(self) -> None:
        self._leave()

    async def _begin(self, arrival: Arrival) -> None:
        """Makes the call and submits it."""
        host = self._host
        assert host is not None
        try:
            if not self._admitted:
                host._admit(arrival)
                self._admitted = True
            made = _attempt(arrival.make, time.monotonic()) if not arrival.slow else await self._make(arrival)
            if isinstance(made, Exception):
                raise made
            self._admitted, self._arrival = False, None  # _submit withdraws it if it raises
            self._request = host._submit(arrival, made)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._leave()
            raise

    async def _make(self, arrival: Arrival) -> Call | Exception:
        """The call, made by a thread, which goes on if this step is cancelled."""
        if self._made is None:
            if arrival.deadline_s is not None:
                arrival.ending.at_s = arrival.arrived_s + arrival.deadline_s
            context = contextvars.copy_context()
            context.run(ENDING.set, arrival.ending)
            self._made = asyncio.get_running_loop().run_in_executor(arrival.threads, context.run, _attempt, arrival.make, time.monotonic())
        left = None if arrival.deadline_s is None else max(0.0, arrival.arrived_s + arrival.deadline_s - time.monotonic())
        done, _ = await asyncio.wait([self._made], timeout=left)
        if not done or isinstance(self._made.result(), Exception):  # which may say that it was ended at the deadline
            arrival.check_deadline()
        return await self._made

    def _next(self, request: OnlineRequest) -> RequestOutput:
        """The output that there is, or the error that the request ended with."""
        if request.progress.finished:
            if request.failure is not None:
                raise request.failure
            if request.overrun:
                raise SlowReaderError(
                    f"request {request.name!r} was ended: more than {request.max_unread:,} of its tokens waited for a reader that is too"
                    " slow"
                )
            error: LlmiError | None = request.call.results.error(request.call.submissions[0])
            if error is not None:
                raise error
        elif request.expired:
            raise request.timeout()
        elif request.closed:
            raise EngineClosedError("the engine is closed")
        return request.progress.output()

    def _leave(self) -> None:
        host = self._host
        arrival, self._arrival = self._arrival, None
        request, self._request = self._request, None
        if host is None:
            return
        if arrival is not None:
            arrival.ending.end()
        if arrival is not None and self._admitted:
            self._admitted = False
            host._withdraw(arrival)
        if request is not None:
            request.listener = None
            host._forget(request)
