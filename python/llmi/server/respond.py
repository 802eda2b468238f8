"""From a job to its answer, whole or as it comes; the same for all endpoints, which differ in the form of their answers."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from llmi.outputs.results import RequestOutput
from llmi.server.answer import encode
from llmi.server.answer_stream import AnswerStream, Form, check_end
from llmi.server.event_stream import unless_gone
from llmi.server.generation import Deltas, Job, finals
from llmi.server.receipts import Receipts
from llmi.server.state import state_of

_FEW_ENTRIES = 4_096  # tokens and log-probabilities that are written in a few milliseconds


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
