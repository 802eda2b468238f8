"""/openapi.json, made from the lists of fields."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from llmi.base.kinds import Choice, Flag, Kind, Listed, Maybe, Neutral, Real, Text, Whole
from llmi.params.beams import BEAMS
from llmi.params.sampling import SAMPLING
from llmi.server.fields import ENDPOINTS, Endpoint
from llmi.server.respond import json_response

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
#: Required fields of the bodies.
_REQUIRED = {
    "/v1/chat/completions": ["messages"],
    "/v1/completions": ["prompt"],
    "/v1/messages": ["messages", "max_tokens"],
    "/v1/messages/count_tokens": ["messages"],
    "/v1/responses": ["input"],
    "/detokenize": ["tokens"],
    "/v1/embeddings": ["input"],
    "/v1/rerank": ["query", "documents"],
    "/llmi/prefill": ["identity", "prompt_token_ids", "cache_salt"],
}


def schema_of(kind: Kind) -> dict[str, Any]:
    """A JSON schema that holds for every value of a kind; {} where it says less than the kind does."""
    while isinstance(kind, Maybe | Neutral):
        kind = kind.kind
    if isinstance(kind, Flag):
        return {"type": ["boolean", "null"]}
    if isinstance(kind, Whole):
        return {"type": ["integer", "null"], "minimum": kind.low, "maximum": kind.high}
    if isinstance(kind, Real):
        return {"type": ["number", "null"]}
    if isinstance(kind, Text):
        return {"type": ["string", "null"]}
    if isinstance(kind, Choice):
        return {"enum": [*kind.words, *kind.spellings, None]}
    if isinstance(kind, Listed) and not kind.single:
        return {"type": ["array", "null"]}
    return {}


def _body_of(endpoint: Endpoint) -> dict[str, Any]:
    properties: dict[str, Any] = {name: {} for name in sorted(endpoint.own)}
    if not endpoint.is_strict:
        for options in (BEAMS, SAMPLING):
            properties |= {
                name: {**schema_of(option.kind), "description": option.doc}
                for name, option in options.items()
                if name not in endpoint.own and name not in endpoint.foreign
            }
    for name, entry in endpoint.foreign.items():
        properties[name] = {"description": ("No effect: " if entry.inert is not None else "Not offered: ") + entry.why}
    return {"type": "object", "properties": properties, "required": _REQUIRED.get(endpoint.name, [])}


def description(routes: list[tuple[str, str]]) -> dict[str, Any]:
    """The OpenAPI document of these (method, path) pairs."""
    import llmi  # noqa: PLC0415 (names of the package are loaded when they are read)

    bodies = {endpoint.name: endpoint for endpoint in ENDPOINTS}
    failure = {"description": "An error", "content": {"application/json": {"schema": _ERROR}}}
    paths: dict[str, Any] = {}
    for method, path in routes:
        operation: dict[str, Any] = {"responses": {"200": {"description": "The answer"}, "default": failure}}
        if "{" in path:
            path = path.replace(":path", "")
            operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
        if path in bodies:
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _body_of(bodies[path])}}}
        paths.setdefault(path, {})[method.lower()] = operation
    return {"openapi": "3.1.0", "info": {"title": "llmi", "version": llmi.__version__}, "paths": paths}


async def openapi(request: Request) -> Response:
    """The document of this server."""
    routes = [(method, route.path) for route in request.app.routes for method in sorted((route.methods or set()) - {"HEAD"})]
    return json_response(description(routes))
