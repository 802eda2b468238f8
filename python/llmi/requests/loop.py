"""One loop over a stream by `async for`; the stream's requests end with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from llmi.errors import LlmiError

T = TypeVar("T")


class Loop(AsyncIterator[T]):
    """Reads a stream for the task that began it. If that task is cancelled while it waits here, the request ends: nobody reads on.

    The stream may outlive that: the traceback of the exception, which a notebook keeps, holds it. A read by another task, as
    `asyncio.wait_for` makes one in Python 3.11, is a poll with a timeout, and loses nothing; so is any read of the stream itself.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], leave: Callable[[], object]) -> None:
        self._read = read
        self._leave = leave
        self._task = _current_task()
        self._is_over = False

    async def __anext__(self) -> T:
        if self._is_over:
            raise LlmiError(
                "this loop over a stream was cancelled, which has ended the request: to poll with a timeout call anext() on the stream, not"
                " on aiter() of it"
            )
        try:
            return await self._read()
        except asyncio.CancelledError:
            if self._task is not None and _current_task() is self._task:
                self._is_over = True
                self._leave()
            raise


def _current_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return None
