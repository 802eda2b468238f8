"""AsyncLLM: requests that arrive over time, from asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.kinds import show
from llmi.base.travel import StaysHere
from llmi.errors import EngineClosedError, InvalidParamsError
from llmi.llm import LLM
from llmi.outputs.results import RequestOutput
from llmi.params.beams import BeamSearchParams
from llmi.params.options import option
from llmi.params.sampling import SamplingParams
from llmi.requests.call import Call
from llmi.requests.prepare import CallOptions
from llmi.requests.resolve import take_options
from llmi.text.prompts import PromptList, as_list, is_single

if TYPE_CHECKING:
    import os

_WAIT_S = 0.1  # how often the pump looks whether it is still wanted


class _Request:
    """One request on its way: its call, and the event that wakes its reader."""

    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        self.call = call
        self.loop = loop
        self.news = asyncio.Event()
        self.failure: BaseException | None = None  # of the pump, at this request's news

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the reader's loop has gone
            self.loop.call_soon_threadsafe(self.news.set)


class _Pump:
    """The thread that takes events from the engine to their readers. It knows no LLM: an AsyncLLM that nobody holds goes, and ends it."""

    def __init__(self) -> None:
        self.channel = _core.OutputChannel()
        self.requests: dict[int, _Request] = {}  # by the core's request id
        self.by_name: dict[str, _Request] = {}
        self.lock = threading.Lock()
        self.closed = False
        self._events: list[_core.OutputEvent] = []
        self.thread = threading.Thread(target=self._run, name="llmi-async", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.closed:
            self.channel.wait(self._events, _WAIT_S)
            touched: dict[int, _Request] = {}
            with self.lock:
                events, self._events = self._events, []
                for event in events:
                    request = self.requests.get(event.request.id)
                    if request is None:
                        continue
                    try:
                        request.call.take(event)
                    except BaseException as error:
                        request.failure = error
                    touched[event.request.id] = request
                    if event.finished:
                        del self.requests[event.request.id]
            for request in touched.values():
                request.wake()
            events, request = [], None
        for request in list(self.requests.values()):
            request.wake()


class AsyncLLM(StaysHere):
    """An LLM for asyncio: add, stream and cancel requests while it runs. An async context manager.

    A reader that stops reading holds nobody up: what comes for it meanwhile is one object that grows to at most its own
    output. Tokens are those of `LLM.generate`. One that is not shut down ends with its last reference, or with the program.

    Parameters
    ----------
    model : path or str, optional
        As for LLM, with its arguments.
    llm : LLM, optional
        Use this one, which stays open at the end.
    """

    _pump: _Pump | None = None  # before __init__

    # Any: LLM checks its own arguments.
    def __init__(self, model: str | os.PathLike[str] | None = None, *, llm: LLM | None = None, **engine_args: Any) -> None:
        if llm is not None and (model is not None or engine_args):
            raise InvalidParamsError("give llm or a model with engine arguments, not both", "llm")
        if llm is not None and not isinstance(llm, LLM):
            raise InvalidParamsError(f"llm must be None or an LLM, not {show(llm)}", "llm")
        self.llm = llm if llm is not None else LLM(model, **engine_args)
        self._owned = llm is None
        self._names = itertools.count()
        self._pump = _Pump()

    def __del__(self) -> None:
        if self._pump is not None:
            self._pump.closed = True

    def generate(
        self,
        prompt: object,
        sampling_params: SamplingParams | BeamSearchParams | None = None,
        request_id: str | None = None,
        **generate_args: object,
    ) -> AsyncIterator[RequestOutput]:
        """Gives the request's output as it grows, the last time with `finished`. Leaving the loop aborts the request.

        `output_kind` in the parameters chooses what each step holds: "cumulative" all so far, "delta" what is new,
        "final" only the end. A beam search has nothing before its end. Slow readers get fewer, larger steps. A step that a timeout cancels (`asyncio.wait_for` around
        `anext`) loses nothing: the next one goes on there.

        Raises what LLM.generate would for one prompt.
        """
        return _Reader(self, prompt, sampling_params, request_id, generate_args)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its reader gets what there is, with finish_reason "abort"."""
        if option("request_id", request_id) is None:
            raise InvalidParamsError("request_id must be a string, not None", "request_id")
        request = self._running.by_name.get(request_id)
        if request is not None:
            request.call.abort()

    async def shutdown(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """No new requests; with `drain`, those under way finish first (for at most timeout_s), else they are aborted."""
        drain, timeout_s = option("drain", drain), option("timeout_s", timeout_s)
        self._closed_to_new = True
        pump = self._running
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while drain and pump.requests and (deadline is None or loop.time() < deadline):
            await asyncio.sleep(0.01)
        for request in list(pump.requests.values()):
            request.call.abort()
        while pump.requests and pump.thread.is_alive():
            await asyncio.sleep(0.01)
        pump.closed = True
        await asyncio.to_thread(pump.thread.join)
        if self._owned:
            await asyncio.to_thread(self.llm.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown(drain=exc[0] is None)

    _closed_to_new = False

    @property
    def _running(self) -> _Pump:
        assert self._pump is not None
        return self._pump

    def _start(self, prompt: object, sampling_params: object, request_id: str | None, generate_args: dict[str, object]) -> _Request:
        pump = self._running
        if pump.closed or self._closed_to_new:
            raise EngineClosedError("the engine is shutting down")
        options = take_options(generate_args, "priority", "speculative_config", "trace", "parse_special")
        request_id = option("request_id", request_id)
        call = self.llm._call(_one(prompt), sampling_params, generate_args, CallOptions(stream=True, **options))
        submission = call.submissions[0]
        if submission.error is not None:
            raise submission.error
        name = request_id if request_id is not None else f"async-{next(self._names)}"
        submission.hooks.request_id = name
        call.channel = pump.channel
        request = _Request(call, asyncio.get_running_loop())
        with pump.lock:
            if name in pump.by_name:
                raise InvalidParamsError(f"request_id {name!r} is in use", "request_id")
            pump.requests[submission.built.id] = request
            pump.by_name[name] = request
            try:
                self.llm._submit(call)
                if submission.error is not None:
                    raise submission.error
            except BaseException:
                del pump.requests[submission.built.id], pump.by_name[name]
                raise
        return request

    def _forget(self, request: _Request) -> None:
        """The reader has gone: what still runs is aborted; the pump sees it out."""
        pump = self._running
        with pump.lock:
            name = request.call.submissions[0].hooks.request_id
            if pump.by_name.get(name) is request:
                del pump.by_name[name]
            request.call.abort()


class _Reader(StaysHere, AsyncIterator[RequestOutput]):
    """The outputs of one request, as they grow. Not a generator: a generator ends when one of its steps is cancelled."""

    _request: _Request | None = None

    def __init__(
        self, server: AsyncLLM, prompt: object, sampling_params: object, request_id: str | None, generate_args: dict[str, object]
    ) -> None:
        self._server = server
        arguments = (prompt, sampling_params, request_id, generate_args)
        self._arguments: tuple[object, object, str | None, dict[str, object]] | None = arguments  # until the first step
        self._seen: dict[int, tuple[int, int]] = {}

    def __aiter__(self) -> _Reader:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._arguments is not None:
            arguments, self._arguments = self._arguments, None
            self._request = self._server._start(*arguments)
        if self._request is None:
            raise StopAsyncIteration
        request, pump = self._request, self._server._running
        kind = request.call.submissions[0].params.output_kind
        while True:
            await request.news.wait()
            request.news.clear()
            try:
                with pump.lock:
                    done = request.call.done
                    output = request.call.output(0)
                if request.failure is not None:
                    raise request.failure
                if done:
                    request.call.raise_errors()
                elif pump.closed:
                    raise EngineClosedError("the engine is closed")
            except BaseException:
                self._leave()
                raise
            if kind == "delta":
                _cut(output, self._seen)
            if done:
                self._leave()
            if done or kind != "final":
                return output

    async def aclose(self) -> None:
        """Ends the request."""
        self._leave()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        self._arguments = None
        request, self._request = self._request, None
        if request is not None:
            self._server._forget(request)


def _one(prompt: object) -> PromptList:
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
