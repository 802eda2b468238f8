"""From a job to its answer, whole or as it comes; the same for all endpoints, which differ in the form of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from llmi.outputs.results import RequestOutput
from llmi.server.answer import encode
from llmi.server.errors import ApiError, api_error
from llmi.server.event_stream import EventStream, unless_gone
from llmi.server.generation import Deltas, Job, finals
from llmi.server.keys import CALLER
from llmi.server.receipts import Receipts
from llmi.server.state import state_of


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
    return EventStream(_events(job, form, receipts, deltas), deltas.close)


def _check_end(output: RequestOutput) -> None:
    """An answer that the engine was told to end is none."""
    if any(completion.finish_reason == "abort" for completion in output.outputs):
        raise ApiError(503, "the request was ended before its answer was whole: the server is shutting down", code="aborted")


def _num_tokens(output: RequestOutput) -> int:
    return sum(len(completion.token_ids) for completion in output.outputs)


async def _answer(job: Job, form: Form, receipts: Receipts) -> Response:
    outputs = await finals(job)
    for output in outputs:
        _check_end(output)
    CALLER.get().spend(job.num_prompt_tokens + sum(map(_num_tokens, outputs)))
    body = form.whole(outputs, await receipts.of(form.id, outputs, job.wants_receipt))
    return json_response(body)


async def _events(job: Job, form: Form, receipts: Receipts, deltas: Deltas) -> AsyncIterator[bytes]:
    yield form.begin()
    num_tokens = job.num_prompt_tokens
    try:
        async for index, output in deltas:
            num_tokens += _num_tokens(output)
            if output.finished:
                _check_end(output)
            if data := form.news(index, output):
                yield data
        outputs = deltas.wholes() if receipts.wanted(job.wants_receipt) else []
        yield form.end(await receipts.of(form.id, outputs, job.wants_receipt))
    except asyncio.CancelledError:
        raise
    except Exception as error:
        yield form.failed(api_error(error))
    finally:
        CALLER.get().spend(num_tokens)


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(encode(value), status, headers, "application/json")
