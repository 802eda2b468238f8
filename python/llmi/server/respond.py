"""From a job to its answer, whole or as it comes; the same for all endpoints, which differ in the form of their answers."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from llmi.outputs.results import RequestOutput
from llmi.server.answer import encode
from llmi.server.errors import ApiError, api_error
from llmi.server.event_stream import Watched, unless_gone
from llmi.server.generation import Deltas, Job, finals
from llmi.server.receipts import Receipts
from llmi.server.state import state_of

_FEW_ENTRIES = 4_096  # tokens and log-probabilities that are written in a few milliseconds


class Form(Protocol):
    """An endpoint's form of an answer to one job."""

    @property
    def id(self) -> str:
        """The answer's id."""

    def whole(self, outputs: list[RequestOutput], receipt: dict[str, Any]) -> dict[str, Any]:
        """The whole answer. receipt: what `llmi` says of it."""

    def begin(self) -> bytes:
        """The first events of a stream."""

    def news(self, index: int, output: RequestOutput) -> bytes:
        """Events for what is new of the prompt at `index`; b"" for nothing."""

    def end(self, receipt: dict[str, Any]) -> bytes:
        """The last events, when all have finished."""

    def failed(self, error: ApiError) -> bytes:
        """The last events of a stream that failed."""


async def respond(request: Request, job: Job, form: Form, stream: bool) -> Response:
    """Runs a job and answers. Raises what is wrong with it before anything is sent; a stream that fails later ends with an error event."""
    receipts = state_of(request).receipts
    if not stream:
        return await unless_gone(request.receive, _answer(job, form, receipts))
    deltas = Deltas(job)
    try:
        await deltas.start()
    except BaseException:
        await deltas.close()
        raise
    return AnswerStream(job, form, receipts, deltas)


async def _answer(job: Job, form: Form, receipts: Receipts) -> Response:
    outputs = await finals(job)
    for output in outputs:
        _check_end(output)
    receipt = await receipts.of(form.id, outputs, job.wants_receipt)

    def answered() -> Response:
        return json_response(form.whole(outputs, receipt))

    is_small = sum(map(_num_entries, outputs)) <= _FEW_ENTRIES
    return answered() if is_small else await asyncio.to_thread(answered)


def _num_entries(output: RequestOutput) -> int:
    """Tokens and log-probabilities of an output."""
    rows = [*(output.prompt_logprobs or ()), *(row for completion in output.outputs for row in completion.logprobs or ())]
    return sum(len(completion.token_ids) for completion in output.outputs) + sum(len(row) for row in rows if row is not None)


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(encode(value), status, headers, "application/json")


def _check_end(output: RequestOutput) -> None:
    """An answer that the engine was told to end is none."""
    if any(completion.finish_reason == "abort" for completion in output.outputs):
        raise ApiError(503, "the request was ended before its answer was whole: the server is shutting down", code="aborted")


class AnswerStream(Watched):
    """Sends the events that `form` makes of a job's deltas, and ends the job with the stream.

    While a client does not read, nothing is taken: what comes meanwhile is one larger event.
    """

    def __init__(self, job: Job, form: Form, receipts: Receipts, deltas: Deltas) -> None:
        super().__init__(job.admission.limits.keep_alive_s)
        self._job, self._form, self._receipts, self._deltas = job, form, receipts, deltas

    async def _send_all(self, send: Send) -> None:
        await self._write(send, self._form.begin())
        try:
            while news := await self._deltas.next():
                await self._write(send, self._events(news))
            wants = self._job.wants_receipt
            outputs = self._deltas.wholes() if self._receipts.wanted(wants) else []
            last = self._form.end(await self._receipts.of(self._form.id, outputs, wants))
        except Exception as error:
            last = self._form.failed(api_error(error))
        await self._write(send, last)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _events(self, news: list[tuple[int, RequestOutput]]) -> bytes:
        data = b""
        for index, output in news:
            if output.finished:
                _check_end(output)
            data += self._form.news(index, output)
        return data

    async def _close(self) -> None:
        await self._deltas.close()
