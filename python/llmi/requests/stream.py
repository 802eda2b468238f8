"""Streams: text as it comes, from synchronous and asynchronous code."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from llmi.base.travel import StaysHere
from llmi.errors import LlmiError
from llmi.outputs.completion import StreamChunk
from llmi.outputs.results import Outputs
from llmi.requests.call import Call

if TYPE_CHECKING:
    import asyncio

    from llmi.session import Session


class TextStream(StaysHere, Iterator[StreamChunk], AsyncIterator[StreamChunk]):
    """Chunks of text of one or several requests, in the order in which they come. `LLM.stream` makes it.

    A context manager: leaving it aborts what still runs. The stream keeps its LLM until it is read to the end or closed. A read that a
    timeout cancels (`asyncio.wait_for` around `anext`) loses no text: the next read gets it. Where the task of an `async for` is cancelled,
    the requests end.

    Attributes
    ----------
    outputs : Outputs
        The results, partial until all are done.

    Examples
    --------
    >>> with llm.stream("The sea is", max_tokens=8, seed=1) as stream:
    ...     text = "".join(chunk.text for chunk in stream)
    >>> text == stream.outputs[0].text
    True
    """

    _call: Call | None = None  # before __init__

    def __init__(self, call: Call, llm: Session) -> None:
        self._call = call
        self._llm: Session | None = llm
        self._closed = False
        self._pull: asyncio.Future[Exception | None] | None = None  # the thread that waits for news, where asyncio reads

    @property
    def outputs(self) -> Outputs:
        """Results so far."""
        return self._calls.outputs()

    @property
    def _refused(self) -> LlmiError | None:
        """The error of the first prompt, where it was refused before it ran; `outputs` would tell too, but takes 0.1 s at its first use."""
        return self._calls.submissions[0].error

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> StreamChunk:
        call = self._calls
        while (chunk := self._poll(StopIteration)) is None:
            with call.ending(self._keep):
                call.wait()
        return chunk

    def __aiter__(self) -> AsyncIterator[StreamChunk]:
        from llmi.requests.loop import Loop  # noqa: PLC0415 (which loads asyncio)

        return Loop(self.__anext__, self._calls.abort)

    async def __anext__(self) -> StreamChunk:
        while (chunk := self._poll(StopAsyncIteration)) is None:
            await self._news()
        return chunk

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._call is not None:
            self._call.abort()

    def close(self) -> None:
        """Ends what still runs and waits until it has ended."""
        if not self._closed:
            self._closed = True
            call = self._calls
            with call.ending(self._keep):
                call.abort_and_wait()
            self._llm = None

    def display(self) -> Outputs:
        """Shows the text growing in place (notebook), or prints it (terminal); returns the results.

        Ctrl-C raises GenerationInterrupted, which holds what there was.
        """
        with self._calls.ending(self._keep):
            self._show()
        return self.outputs

    def _show(self) -> None:
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

    @property
    def _calls(self) -> Call:
        assert self._call is not None
        return self._call

    def _poll(self, over: type[StopIteration | StopAsyncIteration]) -> StreamChunk | None:
        """The next chunk that has come, None while there may be more; raises `over`, or the request's error, behind the last."""
        is_over = self._closed or self._calls.done  # read before the chunks: a chunk may come in between, and must not be lost
        try:
            return self._calls.chunks.popleft()
        except IndexError:
            pass
        if not is_over:
            return None
        self._llm = None
        self._calls.raise_errors()
        raise over

    def _keep(self, outputs: Outputs) -> None:
        if self._llm is not None:
            self._llm.last_outputs = outputs

    async def _news(self) -> None:
        """Returns when there may be news. One thread waits at a time, and goes on if this read is cancelled: what it gets is in the
        call."""
        import asyncio  # noqa: PLC0415 (15 ms that a program without an event loop does not pay)

        loop = asyncio.get_running_loop()
        if self._pull is None or self._pull.done() or self._pull.get_loop() is not loop:
            self._pull = loop.run_in_executor(None, _wait, self._calls)
        error = await asyncio.shield(self._pull)
        if error is not None:
            raise error


def _wait(call: Call) -> Exception | None:
    try:
        call.wait()
    except Exception as error:
        return error
    return None
