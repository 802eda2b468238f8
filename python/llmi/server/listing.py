"""/v1/models, /llmi/replicas, /health, /ready and /metrics."""

from __future__ import annotations

import asyncio
import datetime
import os
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


def states_of(model: Served) -> list[dict[str, Any]]:
    """The engines of a model, as Router.states gives them; the one of a model without replicas is "0"."""
    if model.llm._router is not None:
        return model.llm._router.states()
    alive = model.server.health().alive
    stats = model.llm._engine.latest_stats() if alive else {}
    load = stats.get("num_running", 0) + stats.get("num_waiting", 0)
    entry = {"name": "0", "pid": os.getpid(), "state": "ready" if alive else "gone", "load": load}
    return [{**entry, "fingerprint": model.fingerprint, "starts": 1, "problem": None, "stats": stats}]


async def replicas(request: Request) -> Response:
    """The engines of each model: name, pid, state, load, fingerprint."""
    entries = []
    for model in state_of(request).models:
        for entry in states_of(model):
            del entry["stats"]
            entries.append({"model": model.name, **entry, "fingerprint": entry["fingerprint"] or model.fingerprint})
    return json_response({"object": "list", "data": entries})


async def metrics(request: Request) -> Response:
    """Counters of engines and server, for Prometheus."""
    state = state_of(request)
    ceilings = {
        model.name: await asyncio.to_thread(model.llm._rates.ceilings) for model in state.models
    }  # the first time they may be measured
    text = render(state.models, ceilings, state.door.num_refused, state.door.num_active, state.receipts.num_failed)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
