"""AsyncLLM: requests that arrive over time, from asyncio."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.kinds import show
from llmi.base.travel import StaysHere
from llmi.errors import EngineClosedError, EngineError, InvalidParamsError, call_core
from llmi.llm import LLM
from llmi.online.live import EngineHealth, LiveRequest, LiveState
from llmi.online.pump import Pump
from llmi.online.queue import EndRate, Queue
from llmi.online.reader import Arrival, RequestStream
from llmi.online.request import OnlineRequest, num_prompt_tokens
from llmi.online.totals import Totals
from llmi.outputs.pooling import EmbeddingRequestOutput, ScoringRequestOutput
from llmi.params.beams import BeamSearchParams
from llmi.params.options import option
from llmi.params.sampling import SamplingParams
from llmi.pooling.calls import Asked, embed, score
from llmi.requests.call import Call, Router
from llmi.requests.chats import ChatOptions, chat_call
from llmi.requests.prepare import CallOptions
from llmi.requests.resolve import take_options
from llmi.text.chats import is_chat
from llmi.text.prompts import PromptList, as_list, is_single

if TYPE_CHECKING:
    import os

#: Requests with a grammar are prepared by threads of their own: a thread waits for the grammar, and the loop's threads are few.
_NUM_GRAMMAR_THREADS = 32
_LONG_CHARS = 2_000  # a text that takes the tokenizer about a millisecond
_MANY_ENTRIES = 64  # of a parameter, which are read in about a millisecond
_OPTIONS = ("priority", "speculative_config", "trace", "parse_special")


class AsyncLLM(StaysHere):
    """An LLM for asyncio: add, stream and cancel requests while it runs. An async context manager.

    A reader that stops reading holds nobody up: what comes for it meanwhile is one object that grows to at most its own
    output. Tokens are those of `LLM.generate`. One that is not shut down ends with its last reference, or with the program.

    Under the engine's `seed`, requests without one of their own get seeds derived from it and from their number in the order of arrival, so
    that no two share one. The seed of each is in its outputs.

    Parameters
    ----------
    model : path or str, optional
        As for LLM, with its arguments.
    llm : LLM, optional
        Use this one, which stays open at the end.
    max_queue : int, optional
        Most requests that wait in addition to those that the batch has free places for. One more raises QueueFullError, whose
        `retry_after_s` comes of the rate at which requests end. None: no bound.

    Attributes
    ----------
    totals : Totals
        Times and sizes of the requests that have ended, in histograms.

    Examples
    --------
    >>> import asyncio
    >>> async def ask():
    ...     async with AsyncLLM(llm=llm) as engine:
    ...         async for output in engine.generate("The sea is", max_tokens=8, seed=1):
    ...             pass
    ...     return output.text
    >>> asyncio.run(ask()) == llm.generate("The sea is", max_tokens=8, seed=1)[0].text
    True
    """

    _pump: Pump | None = None  # before __init__

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        llm: LLM | None = None,
        max_queue: int | None = None,
        **engine_args: Any,  # Any: LLM checks its own arguments
    ) -> None:
        if llm is not None and (model is not None or engine_args):
            raise InvalidParamsError("give llm or a model with engine arguments, not both", "llm")
        if llm is not None and not isinstance(llm, LLM):
            raise InvalidParamsError(f"llm must be None or an LLM, not {show(llm)}", "llm")
        max_queue = option("max_queue", max_queue)
        self.llm = llm if llm is not None else LLM(model, **engine_args)
        self._owned = llm is None
        self._numbers = itertools.count()
        self._closed_to_new = False
        self._by_name: dict[str, Arrival | OnlineRequest] = {}
        self._grammar_threads = ThreadPoolExecutor(_NUM_GRAMMAR_THREADS, "llmi grammar")
        seats = self.llm._engine_args.passed_on["max_num_seqs"]
        assert isinstance(seats, int)
        self._queue = Queue(self._engines, max_queue, seats * (1 if self.llm._router is None else self.llm._router.num_engines))
        self.totals = Totals()
        channel = _core.OutputChannel() if self.llm._router is None else self.llm._router.channel()
        self._pump = Pump(functools.partial(_note_end, self.totals, self._queue.rate), channel)

    def __del__(self) -> None:
        if self._pump is not None:
            self._pump.closed = True

    def generate(
        self,
        prompt: object,
        sampling_params: SamplingParams | BeamSearchParams | None = None,
        request_id: str | None = None,
        *,
        deadline_s: float | None = None,
        **generate_args: object,
    ) -> RequestStream:
        """Gives the request's output as it grows, the last time with `finished`. Leaving the loop aborts the request, by an interrupt too.

        `output_kind` in the parameters chooses what each step holds: "cumulative" all so far; "delta" what is new; "final" only the end.
        The prompt's log-probabilities are in the first delta alone. A beam search has nothing before its end. Slow readers get fewer,
        larger steps. `num_cached_tokens` and `metrics.time_to_first_token_s` are known from the first output on. A step that a timeout
        cancels (`asyncio.wait_for` around `anext`) loses nothing: the next one goes on there.

        Long texts and grammars are prepared in a thread, so that the event loop goes on.

        Parameters
        ----------
        deadline_s : float, optional
            Seconds from this call to the request's end, the time in the queue included. Then it is aborted, and the next step raises
            RequestTimeoutError. None: no limit.

        Raises
        ------
        QueueFullError, RequestTimeoutError, and what LLM.generate would raise for one prompt
        """
        grammar = _has_grammar(sampling_params, generate_args)
        options = take_options(generate_args, *_OPTIONS)
        number = next(self._numbers)

        def make(queued_s: float) -> Call:
            kind = CallOptions(stream=True, arrival=number, queued_s=queued_s, **options)
            return _checked(self.llm._call(_one(prompt), sampling_params, generate_args, kind))

        arrival = self._arrival(make, number, request_id, deadline_s, grammar)
        arrival.slow = grammar or _is_long(prompt) or _are_many(generate_args)
        return RequestStream(self, arrival)

    def chat(
        self,
        messages: str | list[dict[str, Any]],
        sampling_params: SamplingParams | BeamSearchParams | None = None,
        request_id: str | None = None,
        *,
        deadline_s: float | None = None,
        **chat_args: object,
    ) -> RequestStream:
        """Answers one chat: as `generate`, with the arguments of LLM.chat and `cache_salt`. `max_tokens` runs to the end of the context
        unless given.

        The template and the tokenizer work in a thread. Calls and reasoning are read in the answer's whole text: of deltas, in
        `stream.whole()`.
        """
        chat = ChatOptions(**take_options(chat_args, *(field.name for field in dataclasses.fields(ChatOptions))))
        number = next(self._numbers)

        def make(queued_s: float) -> Call:
            if not isinstance(messages, str) and not is_chat(messages):
                raise InvalidParamsError(
                    f"messages must be a text or one chat, a list of dicts with 'role', not {show(messages)}", "messages"
                )
            kind = CallOptions(stream=True, arrival=number, queued_s=queued_s)
            return _checked(chat_call(self.llm, messages, sampling_params, chat_args, chat, kind))

        grammar = chat.tools is not None or _has_grammar(sampling_params, chat_args)
        return RequestStream(self, self._arrival(make, number, request_id, deadline_s, grammar))

    async def embed(
        self,
        prompts: object,
        *,
        prompt_name: str | None = None,
        dimensions: int | None = None,
        truncate_prompt_tokens: int | None = None,
        parse_special: bool = False,
    ) -> list[EmbeddingRequestOutput]:
        """Vectors of texts: LLM.embed, in a thread. They run between the steps of requests, as many at once as a step takes."""
        asked = Asked(truncate_prompt_tokens, parse_special)
        return await asyncio.to_thread(embed, self.llm, prompts, asked, prompt_name, dimensions)

    async def score(
        self,
        queries: str | list[str],
        documents: str | list[str],
        *,
        instruction: str | None = None,
        truncate_prompt_tokens: int | None = None,
        parse_special: bool = False,
    ) -> list[ScoringRequestOutput]:
        """Scores of documents: LLM.score, in a thread."""
        return await asyncio.to_thread(score, self.llm, queries, documents, Asked(truncate_prompt_tokens, parse_special), instruction)

    async def abort(self, request_id: str) -> None:
        """Ends a request; its reader gets what there is, with finish_reason "abort"."""
        if option("request_id", request_id) is None:
            raise InvalidParamsError("request_id must be a string, not None", "request_id")
        found = self._by_name.get(request_id)
        if isinstance(found, Arrival):
            found.aborted = True
        elif found is not None:
            found.call.abort()

    def abort_all(self) -> None:
        """Ends all requests; the reader of each gets what there is, with finish_reason "abort"."""
        for found in list(self._by_name.values()):
            if isinstance(found, Arrival):
                found.aborted = True
            else:
                found.call.abort()

    def health(self, limit_s: float = 10.0) -> EngineHealth:
        """Whether the engine's steps go on. It does not wait for the engine. limit_s: how long a step may take."""
        try:
            call_core(self._engines.check_open)
            stalled = self._engines.stalled_s
        except EngineError as error:
            return EngineHealth(False, 0.0, str(error))
        if stalled <= limit_s:
            return EngineHealth(True, stalled, "")
        return EngineHealth(False, stalled, f"no step has ended for {stalled:.1f} s, more than {limit_s:g} s, while work waits")

    def live(self) -> LiveState:
        """The state after the last step, for dashboards. It does not wait for the engine. Raises EngineClosedError."""
        engine, now = self._engines, time.monotonic()
        stats = call_core(engine.latest_stats)
        requests = [_live(request, now) for request in list(self._running.requests.values())]
        return LiveState(self._queue.num_waiting, stats, requests)

    async def shutdown(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """No new requests; with `drain`, those under way finish first (for at most timeout_s), else they are aborted."""
        drain, timeout_s = option("drain", drain), option("timeout_s", timeout_s)
        self._closed_to_new = True
        pump = self._running
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while drain and (pump.requests or self._queue.num_preparing) and (deadline is None or loop.time() < deadline):
            await asyncio.sleep(0.01)
        for request in list(pump.requests.values()):
            request.call.abort()
        while pump.requests and pump.thread.is_alive():
            await asyncio.sleep(0.01)
        pump.closed = True
        self._grammar_threads.shutdown(wait=False)
        await asyncio.to_thread(pump.thread.join)
        if self._owned:
            await asyncio.to_thread(self.llm.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown(drain=exc[0] is None)

    @property
    def _engines(self) -> _core.Engine | Router:
        return self.llm._router or self.llm._engine

    @property
    def _running(self) -> Pump:
        assert self._pump is not None
        return self._pump

    def _told(
        self, make: Callable[[float], Call], tell: Callable[[_core.OutputEvent], None], request_id: str | None, deadline_s: float | None
    ) -> RequestStream:
        """The reader of a request that `make` makes on a thread; `tell` gets its events, too, as the engine gives them."""
        arrival = self._arrival(make, next(self._numbers), request_id, deadline_s, grammar=False)
        arrival.tell = tell
        return RequestStream(self, arrival)

    def _arrival(
        self, make: Callable[[float], Call], number: int, request_id: str | None, deadline_s: float | None, grammar: bool
    ) -> Arrival:
        name = option("request_id", request_id)
        threads = self._grammar_threads if grammar else None
        return Arrival(name if name is not None else f"async-{number}", make, option("deadline_s", deadline_s), threads)

    def _admit(self, arrival: Arrival) -> None:
        if self._running.closed or self._closed_to_new:
            raise EngineClosedError("the engine is shutting down")
        if arrival.name in self._by_name:
            raise InvalidParamsError(f"request_id {arrival.name!r} is in use", "request_id")
        self._queue.check(len(self._running.requests))
        self._by_name[arrival.name] = arrival
        self._queue.num_preparing += 1

    def _withdraw(self, arrival: Arrival) -> None:
        self._queue.num_preparing -= 1
        if self._by_name.get(arrival.name) is arrival:
            del self._by_name[arrival.name]

    def _submit(self, arrival: Arrival, call: Call) -> OnlineRequest:
        pump, submission = self._running, call.submissions[0]
        loop = asyncio.get_running_loop()
        submission.hooks.request_id = arrival.name
        call.channel = pump.channel
        try:
            arrival.check_deadline()
            if arrival.payer is not None:
                arrival.payer.check_context(num_prompt_tokens(call) + (submission.params.max_tokens or 0))
            if pump.closed:
                raise EngineClosedError("the engine is closed")
            arrived = loop.time() - (time.monotonic() - arrival.arrived_s)
            request = OnlineRequest(arrival.name, call, loop, arrived, arrival.deadline_s)
            request.max_unread, request.payer, request.tell = arrival.max_unread, arrival.payer, arrival.tell
            submission.built.stepped = arrival.aborted  # then nobody steps: it waits for the abort below
            with pump.lock:
                pump.requests[submission.built.id] = request
                try:
                    self.llm._submit(call)
                    if submission.error is not None:
                        raise submission.error
                except BaseException:
                    del pump.requests[submission.built.id]
                    request.leave()
                    raise
        finally:
            self._withdraw(arrival)
        self._by_name[arrival.name] = request
        if arrival.aborted:
            call.abort()
        return request

    def _forget(self, request: OnlineRequest) -> None:
        request.leave()
        if self._by_name.get(request.name) is request:
            del self._by_name[request.name]
        with self._running.lock:  # the pump may take its end in
            request.call.abort()


def _note_end(totals: Totals, rate: EndRate, request: OnlineRequest) -> None:
    rate.note_end()
    totals.add(request.call.submissions[0])


def _checked(call: Call) -> Call:
    """The call of one request. Raises what is wrong with it."""
    error = call.submissions[0].error
    if error is not None:
        raise error
    return call


def _live(request: OnlineRequest, now: float) -> LiveRequest:
    submission, progress = request.call.submissions[0], request.progress
    drafts = progress.drafts
    age = now - request.arrived_s
    return LiveRequest(
        request.name,
        submission.built.id,
        "running" if progress.num_tokens else "waiting",
        age,
        len(submission.prompt_token_ids),
        progress.num_cached_tokens,
        progress.num_tokens,
        sum(drafted for drafted, _ in drafts.values()),
        sum(accepted for _, accepted in drafts.values()),
        drafts,
    )


def _has_grammar(sampling_params: object, given: Mapping[str, object]) -> bool:
    return "structured_outputs" in given or getattr(sampling_params, "structured_outputs", None) is not None


def _is_long(prompt: object) -> bool:
    """Whether tokenizing the prompt would hold up the event loop."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return isinstance(text, str) and len(text) > _LONG_CHARS


def _are_many(given: Mapping[str, object]) -> bool:
    """Whether reading a parameter would hold up the event loop."""
    return any(isinstance(value, list | tuple | Mapping) and len(value) > _MANY_ENTRIES for value in given.values())


def _one(prompt: object) -> PromptList:
    prompts = as_list(prompt)
    if len(prompts) != 1 or not is_single(prompt):
        raise InvalidParamsError(f"AsyncLLM.generate takes one prompt, not a list of {len(prompts)}: call it for each", "prompt")
    return prompts
