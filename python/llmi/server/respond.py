"""From a job to its answer, whole or as it comes; the same for all endpoints, which differ in the form of their answers."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from llmi.outputs.results import RequestOutput
from llmi.server.answer import encode
from llmi.server.answer_stream import AnswerStream, StreamForm, check_end
from llmi.server.event_stream import unless_gone
from llmi.server.generation import Deltas, Job, finals
from llmi.server.receipts import Receipts
from llmi.server.state import state_of


class Form(StreamForm, Protocol):
    """An endpoint's form of an answer to one job."""

    def whole(self, outputs: list[RequestOutput], receipt: dict[str, Any]) -> dict[str, Any]:
        """The whole answer. receipt: what `llmi` says of it."""


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
        check_end(output)
    body = form.whole(outputs, await receipts.of(form.id, outputs, job.wants_receipt))
    return json_response(body)


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(encode(value), status, headers, "application/json")
