"""AsyncLLM: requests that arrive over time, from asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from llmi._errors import EngineClosedError, InvalidParamsError
from llmi._options import option
from llmi._outputs import RequestOutput
from llmi._prompts import as_list, is_single
from llmi._request import take_options

if TYPE_CHECKING:
    import os

    from llmi._call import Call
    from llmi._llm import LLM
    from llmi._params import SamplingParams

_WAIT_S = 0.1  # how often the pump looks whether it is still wanted


class _Stream:
    """One request on its way: its call, and the event that wakes its reader."""

    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.loop = loop
        self.news = asyncio.Event()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the reader's loop has gone
            self.loop.call_soon_threadsafe(self.news.set)


class AsyncLLM:
    """An LLM for asyncio: add, stream and cancel requests while it runs. An async context manager.

    A reader that stops reading holds nobody up: what comes for it meanwhile is one object that grows to at most its own
    output. Tokens are those of `LLM.generate`.

    Parameters
    ----------
    model : path or str, optional
        As for LLM, with its arguments.
    llm : LLM, optional
        Use this one, which stays open at the end.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, *, llm: LLM | None = None, **engine_args: Any) -> None:
        from llmi import _core
        from llmi._llm import LLM

        if llm is not None and (model is not None or engine_args):
            raise InvalidParamsError("give llm or a model with engine arguments, not both", "llm")
        self.llm = llm if llm is not None else LLM(model, **engine_args)
        self._owned = llm is None
        self._channel = _core.OutputChannel()
        self._streams: dict[int, _Stream] = {}  # by the core's request id
        self._by_name: dict[str, _Stream] = {}
        self._lock = threading.Lock()
        self._names = itertools.count()
        self._closed = False
        self._pump = threading.Thread(target=self._run, name="llmi-async", daemon=True)
        self._pump.start()

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams | None = None, request_id: str | None = None, **generate_args: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yields the request's output as it grows, the last time with `finished`. Leaving the loop aborts the request.

        `output_kind` in the parameters chooses what each yield holds: "cumulative" all so far, "delta" what is new,
        "final" only the end. Slow readers get fewer, larger steps.

        Raises what LLM.generate would for one prompt.
        """
        stream = self._start(prompt, sampling_params, request_id, generate_args)
        submission = stream.call.submissions[0]
        kind = submission.params.output_kind
        seen: dict[int, tuple[int, int]] = {}
        try:
            while True:
                await stream.news.wait()
                stream.news.clear()
                with self._lock:
                    done = stream.call.done
                    output = stream.call.output(0)
                if done:
                    stream.call.raise_errors()
                if kind == "delta":
                    _cut(output, seen)
                if done or kind != "final":
                    yield output
                if done:
                    return
                if self._closed:
                    raise EngineClosedError("the engine is closed")
        finally:
            self._forget(stream)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its reader gets what there is, with finish_reason "abort"."""
        stream = self._by_name.get(request_id)
        if stream is not None:
            stream.call.abort()

    async def shutdown(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """No new requests; with `drain`, those under way finish first (for at most timeout_s), else they are aborted."""
        self._closed_to_new = True
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while drain and self._streams and (deadline is None or loop.time() < deadline):
            await asyncio.sleep(0.01)
        for stream in list(self._streams.values()):
            stream.call.abort()
        while self._streams and self._pump.is_alive():
            await asyncio.sleep(0.01)
        self._closed = True
        await asyncio.to_thread(self._pump.join)
        if self._owned:
            await asyncio.to_thread(self.llm.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown(drain=exc[0] is None)

    _closed_to_new = False

    def _start(self, prompt: Any, sampling_params: Any, request_id: str | None, generate_args: dict[str, Any]) -> _Stream:
        if self._closed or self._closed_to_new:
            raise EngineClosedError("the engine is shutting down")
        options = take_options(generate_args, "priority", "speculative_config", "trace", "parse_special")
        request_id = option("request_id", request_id)
        call = self.llm._call(_one(prompt), sampling_params, generate_args, stream=True, **options)
        submission = call.submissions[0]
        if submission.error is not None:
            raise submission.error
        name = request_id if request_id is not None else f"async-{next(self._names)}"
        submission.hooks.request_id = name
        call.channel = self._channel
        stream = _Stream(call, asyncio.get_running_loop())
        with self._lock:
            if name in self._by_name:
                raise InvalidParamsError(f"request_id {name!r} is in use", "request_id")
            self._streams[submission.request.id] = stream
            self._by_name[name] = stream
            try:
                self.llm._submit(call)
                if submission.error is not None:
                    raise submission.error
            except BaseException:
                del self._streams[submission.request.id], self._by_name[name]
                raise
        return stream

    def _forget(self, stream: _Stream) -> None:
        """The reader has gone: what still runs is aborted; the pump sees it out."""
        with self._lock:
            name = stream.call.submissions[0].hooks.request_id
            if self._by_name.get(name) is stream:
                del self._by_name[name]
            if not stream.call.done:
                stream.call.abort()

    def _run(self) -> None:
        """The pump: takes events from the engine to their readers."""
        while not self._closed:
            events = self._channel.wait(_WAIT_S)
            touched: dict[int, _Stream] = {}
            with self._lock:
                for event in events:
                    stream = self._streams.get(event.request.id)
                    if stream is None:
                        continue
                    stream.call.take(event)
                    touched[event.request.id] = stream
                    if event.finished:
                        del self._streams[event.request.id]
            for stream in touched.values():
                stream.wake()
        for stream in list(self._streams.values()):
            stream.wake()


def _one(prompt: Any) -> list[Any]:
    prompts = as_list(prompt)
    if len(prompts) != 1 or not is_single(prompt):
        raise InvalidParamsError(f"AsyncLLM.generate takes one prompt, not a list of {len(prompts)}: call it for each", "prompt")
    return prompts


def _cut(output: RequestOutput, seen: dict[int, tuple[int, int]]) -> None:
    """Leaves of `output` what is new since the last call."""
    for completion in output.outputs:
        num_tokens, num_chars = seen.get(completion.index, (0, 0))
        seen[completion.index] = (len(completion.token_ids), len(completion.text))
        completion.token_ids = completion.token_ids[num_tokens:]
        completion.text = completion.text[num_chars:]
        if completion.logprobs is not None:
            completion.logprobs = completion.logprobs[num_tokens:]
