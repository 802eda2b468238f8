"""An answer that goes out as it comes: what a step of the engine has made is written where it is found, without a switch of tasks for each
token."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Protocol, cast

from starlette.types import Receive, Scope, Send

from llmi.outputs.results import RequestOutput
from llmi.server.errors import ApiError, api_error
from llmi.server.event_stream import Watched
from llmi.server.generation import Deltas, Job
from llmi.server.guard import BODY_SEND
from llmi.server.receipts import Receipts


class StreamForm(Protocol):
    """An endpoint's form of an answer as it comes."""

    @property
    def id(self) -> str:
        """The answer's id."""

    def begin(self) -> bytes:
        """The first events of a stream."""

    def news(self, index: int, output: RequestOutput) -> bytes:
        """Events for what is new of the prompt at `index`; b"" for nothing."""

    def end(self, receipt: dict[str, Any]) -> bytes:
        """The last events, when all have finished."""

    def failed(self, error: ApiError) -> bytes:
        """The last events of a stream that failed."""


def check_end(output: RequestOutput) -> None:
    """An answer that the engine was told to end is none."""
    if any(completion.finish_reason == "abort" for completion in output.outputs):
        raise ApiError(503, "the request was ended before its answer was whole: the server is shutting down", code="aborted")


class _Rest:
    """The rest of a coroutine that was begun outside of a task and waits for `first`."""

    def __init__(self, begun: Coroutine[Any, Any, None], first: object) -> None:
        self._begun = begun
        self._first = first

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._first
        while True:
            value: object = None
            thrown: BaseException | None = None
            try:
                value = yield waits_for
            except BaseException as error:
                thrown = error
            try:
                waits_for = self._begun.send(value) if thrown is None else self._begun.throw(thrown)
            except StopIteration:
                return


class AnswerStream(Watched):
    """Sends the events that `form` makes of a job's deltas, and ends the job with the stream.

    News are taken in the callback that brings them, and written at once. While a client does not read, nothing is taken: what comes
    meanwhile is one larger event.
    """

    def __init__(self, job: Job, form: StreamForm, receipts: Receipts, deltas: Deltas) -> None:
        super().__init__()
        self._job, self._form, self._receipts, self._deltas = job, form, receipts, deltas
        self._send: Send | None = None
        self._rest: asyncio.Task[None] | None = None  # of a write that waits for the client
        self._ended: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = scope.get(BODY_SEND, send)
        await super().__call__(scope, receive, send)

    async def _send_all(self, send: Send) -> None:
        self._ended = asyncio.get_running_loop().create_future()
        await self._write(self._form.begin())
        try:
            self._deltas.on_news = self._on_news
            self._on_news()
            await self._ended
            wants = self._job.wants_receipt
            outputs = self._deltas.wholes() if self._receipts.wanted(wants) else []
            last = self._form.end(await self._receipts.of(self._form.id, outputs, wants))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            last = self._form.failed(api_error(error))
        await self._write(last)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            await asyncio.gather(self._rest, return_exceptions=True)
        await self._deltas.close()

    def _on_news(self) -> None:
        """Takes what is new and writes it; leaves it where it is while a write waits."""
        ended = self._ended
        if ended is None or ended.done() or self._rest is not None:
            return
        try:
            data = self._taken()
            if data:
                self._begin_write(data)
        except Exception as error:
            ended.set_exception(error)
            return
        if self._deltas.ended and self._rest is None:
            ended.set_result(None)

    def _taken(self) -> bytes:
        data = b""
        for index, output in self._deltas.take():
            if output.finished:
                check_end(output)
            data += self._form.news(index, output)
        return data

    def _begin_write(self, data: bytes) -> None:
        """Writes; a write that must wait goes on in a task."""
        assert self._send is not None
        writing = cast("Coroutine[Any, Any, None]", self._send({"type": "http.response.body", "body": data, "more_body": True}))
        try:
            waits_for = writing.send(None)
        except StopIteration:
            self._sent_s = asyncio.get_running_loop().time()
            return
        self._is_sending = True
        self._rest = asyncio.get_running_loop().create_task(self._go_on(_Rest(writing, waits_for)))

    async def _go_on(self, rest: _Rest) -> None:
        try:
            await rest
        except Exception as error:
            if self._ended is not None and not self._ended.done():
                self._ended.set_exception(error)
            return
        self._is_sending = False
        self._sent_s = asyncio.get_running_loop().time()
        self._rest = None
        self._on_news()

    async def _write(self, data: bytes) -> None:
        assert self._send is not None
        self._is_sending = True
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._is_sending = False
        self._sent_s = asyncio.get_running_loop().time()
