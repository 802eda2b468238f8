"""Server-sent events: an answer that goes out as it comes, with comments while nothing does, and an end when the client has gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_COMMENT = b": keep-alive\n\n"


class Watched(Response):
    """A stream of events. Headers go out at once; a client that has gone ends `_send_all`; `_close` is called at the end in any case.

    keep_alive_s: after so long without an event a comment is sent.
    """

    media_type = "text/event-stream"

    def __init__(self, keep_alive_s: float) -> None:
        super().__init__(None, 200, _HEADERS)
        self._keep_alive_s = keep_alive_s
        del self.headers["content-length"]
        self._sent_s = 0.0  # when the last event or comment went out
        self._is_sending = False

    async def _send_all(self, send: Send) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    async def _write(self, send: Send, data: bytes) -> None:
        if not data:
            return
        self._is_sending = True
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._is_sending = False
        self._sent_s = asyncio.get_running_loop().time()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._sent_s = loop.time()
        work = asyncio.create_task(self._send_all(send))
        watch = asyncio.create_task(self._watch(receive, send, work))
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await work
        finally:
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
            await self._close()

    async def _watch(self, receive: Receive, send: Send, work: asyncio.Task[None]) -> None:
        """Ends the work when the client has gone, and sends comments while nothing else is sent.

        A client that is there and reads nothing is the connection's to cut (llmi.server.connections): then it has gone.
        """
        loop, keep_alive_s = asyncio.get_running_loop(), self._keep_alive_s
        gone = asyncio.create_task(gone_client(receive))
        try:
            while True:
                silent_s = 0.0 if self._is_sending else loop.time() - self._sent_s
                await asyncio.wait({gone}, timeout=max(0.0, keep_alive_s - silent_s))
                if gone.done() or work.done():
                    work.cancel()
                    return
                if not self._is_sending and loop.time() - self._sent_s >= keep_alive_s:
                    await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
                    self._sent_s = loop.time()
        finally:
            gone.cancel()


class EventStream(Watched):
    """Sends what `events` gives."""

    def __init__(self, events: AsyncIterator[bytes], keep_alive_s: float) -> None:
        super().__init__(keep_alive_s)
        self._events = events

    async def _send_all(self, send: Send) -> None:
        async for data in self._events:
            await self._write(send, data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _close(self) -> None:
        pass


async def gone_client(receive: Receive) -> None:
    """Returns when the client has gone."""
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


async def unless_gone(receive: Receive, work: Awaitable[Response]) -> Response:
    """The work's result; if the client goes first, the work is cancelled, and the answer is for nobody."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(gone_client(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return Response(status_code=499)
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
