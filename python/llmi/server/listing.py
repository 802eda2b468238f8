"""/v1/models, /health and /ready."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.server.errors import ApiError
from llmi.server.metrics import render
from llmi.server.respond import json_response
from llmi.server.served import Served
from llmi.server.state import state_of


def _model(model: Served) -> dict[str, Any]:
    """In OpenAI's form, with vLLM's max_model_len and the names of Anthropic's clients."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "llmi",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
        "system_fingerprint": model.fingerprint,
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.datetime.fromtimestamp(model.created, datetime.UTC).isoformat().replace("+00:00", "Z"),
    }


async def list_models(request: Request) -> Response:
    """All models that are served."""
    entries = [_model(model) for model in state_of(request).models]
    ends = {"has_more": False, "first_id": entries[0]["id"] if entries else None, "last_id": entries[-1]["id"] if entries else None}
    return json_response({"object": "list", "data": entries, **ends})


async def one_model(request: Request) -> Response:
    """One model, by its name."""
    return json_response(_model(state_of(request).models.named(request.path_params["name"])))


async def health(request: Request) -> Response:
    """200 while every engine makes steps when it has work; 503 with the reason of each that does not."""
    problems = {model.name: problem for model in state_of(request).models if (problem := model.problem())}
    if problems:
        raise ApiError(503, "; ".join(f"{name}: {problem}" for name, problem in problems.items()), code="engine_unavailable")
    return json_response({"status": "ok"})


async def ready(request: Request) -> Response:
    """200 when requests are taken; 503 while the server shuts down."""
    return json_response({"status": "ready", "models": [model.name for model in state_of(request).models]})


async def metrics(request: Request) -> Response:
    """Counters of engines and server, for Prometheus."""
    state = state_of(request)
    ceilings = {
        model.name: await asyncio.to_thread(model.llm._rates.ceilings) for model in state.models
    }  # the first time they may be measured
    text = render(state.models, ceilings, state.door.num_refused, state.door.num_active, state.receipts.num_failed)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
