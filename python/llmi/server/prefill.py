"""/llmi/prefill: computes the blocks of a prompt for another engine (kv_transfer_config)."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.handover.engine import Handover
from llmi.handover.settings import answers
from llmi.server.admission import admission_of
from llmi.server.body import read_fields
from llmi.server.errors import ApiError
from llmi.server.fields import PREFILL
from llmi.server.respond import json_response
from llmi.server.served import Served
from llmi.server.state import prepare, state_of


async def prefill(request: Request) -> Response:
    """How many tokens of a prompt have blocks now, which engine it is, and what its blocks are of."""
    taken = PREFILL.take(await read_fields(await request.body()), admission_of(request))
    found = [(model, handover) for model in state_of(request).models if (handover := _producer(model)) is not None]
    if not found:
        raise ApiError(404, "no model here is a producer (--kv-transfer-config)", code="no_producer")
    asked = taken.own.get("identity")
    model, handover = next((each for each in found if each[1].identity == asked), found[0])
    model.check()
    told: dict[str, Any] = await prepare(request, taken, lambda: handover.answer(model.llm, taken.own), "prefills")
    return json_response(told)


def _producer(model: Served) -> Handover | None:
    handover = model.llm._handover
    return handover if handover is not None and answers(handover.transfer) else None
