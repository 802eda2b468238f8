"""What a body becomes before the engine has it, by threads: a pool for each kind, so that what takes long makes its own kind wait alone.

Whoever waits stops at the request's deadline, when the client leaves and when the server ends; the work then ends too, where it waits for
another process (llmi.base.ending), and else by its own limits (SECURITY.md).
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from llmi.base.ending import ENDING, Ending
from llmi.online.request import timeout_error
from llmi.server.errors import ApiError, shutting_down
from llmi.server.event_stream import gone_client
from llmi.server.fields import Taken
from llmi.server.threads import Threads

T = TypeVar("T")
#: Threads by kind: chats with a template of their own; with tools; large bodies; vectors and scores, and prompts of other engines, which
#: wait for the engine; all others.
_POOLS = {"template": 1, "tools": 4, "large": 1, "vectors": 4, "prefills": 8, "small": 4}
_LARGE_BYTES = 256 << 10


def kind_of(taken: Taken, num_bytes: int) -> str:
    """The pool of a body."""
    if taken.own.get("chat_template") is not None:
        return "template"
    if taken.own.get("tools"):
        return "tools"
    return "large" if num_bytes > _LARGE_BYTES else "small"


class Preparing:
    """The pools of one server."""

    def __init__(self) -> None:
        self._pools = {kind: Threads(count, f"llmi {kind}") for kind, count in _POOLS.items()}
        self._waits: dict[asyncio.Future[None], Ending] = {}  # what `end` ends

    def end(self) -> None:
        """The server ends: nobody is waited for."""
        for told in self._waits:
            if not told.done():
                told.set_result(None)

    def ended(self) -> bool:
        """Whether all threads have ended, when the server has; those that still work get a moment."""
        for pool in self._pools.values():
            pool.shutdown()
        return all(pool.ended() for pool in self._pools.values())

    async def run(self, request: Request, taken: Taken, work: Callable[[], T], kind: str | None = None) -> T:
        """The result of `work`; kind: its pool, None: by the body.

        Raises its error, RequestTimeoutError at the request's deadline, ApiError when the client or the server
        goes."""
        loop = asyncio.get_running_loop()
        arrived_s, limit_s = taken.admission.arrived_s, taken.limit_s
        ending = Ending() if limit_s is None else Ending(arrived_s + limit_s)
        context = contextvars.copy_context()
        context.run(ENDING.set, ending)
        pool = self._pools[kind or kind_of(taken, len(await request.body()))]
        made = loop.run_in_executor(pool, context.run, work)
        left = asyncio.ensure_future(gone_client(request.receive))
        told: asyncio.Future[None] = loop.create_future()
        self._waits[told] = ending
        try:
            timeout = None if limit_s is None else max(0.0, ending.at_s - time.monotonic())
            waits: set[asyncio.Future[Any]] = {made, left, told}
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if made.done() and (made.exception() is None or not ending.is_over):  # an error may say that the deadline ended the work
                return made.result()
            if told.done():
                raise shutting_down()
            if left.done():
                raise ApiError(499, "the client has gone")
            assert limit_s is not None
            raise timeout_error(str(taken.own.get("request_id") or "of this body"), limit_s, time.monotonic() - arrived_s, 0, None)
        finally:
            ending.end()
            made.cancel()
            left.cancel()
            del self._waits[told]
            await asyncio.gather(left, return_exceptions=True)
