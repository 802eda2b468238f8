"""Streams: text as it comes, from synchronous and asynchronous code."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from llmi._outputs import Outputs, StreamChunk

if TYPE_CHECKING:
    from llmi._call import Call


class TextStream(Iterator[StreamChunk], AsyncIterator[StreamChunk]):
    """Chunks of text of one or several requests, in the order in which they come.

    A context manager: leaving it aborts what still runs. `outputs` holds the results, partial until all are done.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._ready: list[StreamChunk] = []
        self._closed = False

    @property
    def outputs(self) -> Outputs:
        """Results so far."""
        return self._call.outputs()

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> StreamChunk:
        while not self._ready:
            if self._call.done or self._closed:
                self._call.raise_errors()
                raise StopIteration
            try:
                self._ready += self._call.wait()
            except KeyboardInterrupt:
                self._call.interrupt()
        return self._ready.pop(0)

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> StreamChunk:
        while not self._ready:
            if self._call.done or self._closed:
                self._call.raise_errors()
                raise StopAsyncIteration
            import asyncio  # 15 ms that a program without an event loop does not pay

            self._ready += await asyncio.to_thread(self._call.wait)
        return self._ready.pop(0)

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._call.abort()

    def close(self) -> None:
        """Ends what still runs and waits until it has ended."""
        if not self._closed:
            self._closed = True
            self._call.abort_and_wait()

    def display(self) -> Outputs:
        """Shows the text growing in place (notebook), or prints it (terminal); returns the results."""
        handle = None
        texts: dict[tuple[int, int], str] = {}
        try:
            ipython = importlib.import_module("IPython")
            if ipython.get_ipython() is not None:
                handle = ipython.display.display({"text/plain": ""}, raw=True, display_id=True)
        except ImportError:
            pass
        for chunk in self:
            key = (chunk.request_index, chunk.index)
            texts[key] = texts.get(key, "") + chunk.text
            if handle is not None:
                handle.update({"text/plain": "\n\n".join(texts.values())}, raw=True)
            else:
                print(chunk.text, end="", flush=True)
        if handle is None:
            print()
        return self.outputs
