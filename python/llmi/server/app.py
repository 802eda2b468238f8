"""The application: routes, and errors in one form."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmi.async_llm import AsyncLLM
from llmi.server.chat import chat_completions
from llmi.server.completions import completions
from llmi.server.errors import ApiError, api_error
from llmi.server.events import Watch, events, page
from llmi.server.guard import Door, Guard, Origins
from llmi.server.keys import Keys
from llmi.server.listing import health, list_models, metrics, one_model, ready, replicas
from llmi.server.messages import count_tokens, messages
from llmi.server.native import engine, generate
from llmi.server.openapi import openapi
from llmi.server.prefill import prefill
from llmi.server.preparing import Preparing
from llmi.server.receipts import Receipts
from llmi.server.respond import json_response
from llmi.server.responses import responses
from llmi.server.served import Models, Served
from llmi.server.settings import ServerSettings
from llmi.server.state import ServerState
from llmi.server.tokens import detokenize, tokenize, tokenizer_info
from llmi.server.vectors import embeddings, rerank, score

Handler = Callable[[Request], Awaitable[Response]]
#: (method, path, handler) of every route.
ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/v1/models", list_models),
    ("GET", "/v1/models/{name:path}", one_model),
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("POST", "/v1/responses", responses),
    ("POST", "/v1/messages", messages),
    ("POST", "/v1/messages/count_tokens", count_tokens),
    ("POST", "/v1/embeddings", embeddings),
    ("POST", "/v1/rerank", rerank),
    ("POST", "/v1/score", score),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
    ("GET", "/tokenizer_info", tokenizer_info),
    ("GET", "/openapi.json", openapi),
    ("GET", "/health", health),
    ("GET", "/ready", ready),
    ("GET", "/llmi/events", events),
    ("GET", "/llmi/replicas", replicas),
    ("POST", "/llmi/prefill", prefill),
    ("GET", "/llmi/engine", engine),
    ("POST", "/llmi/generate", generate),
    ("GET", "/", page),
    ("GET", "/metrics", metrics),
]


def make_app(models: Mapping[str, AsyncLLM], settings: ServerSettings | None = None) -> Starlette:
    """The ASGI application that serves these models, by their names.

    Blocks until the models' digests are known. The models stay the caller's: it shuts them down.

    Examples
    --------
    >>> app = make_app({"smollm2": AsyncLLM("smollm2-135m-instruct")})
    """
    settings = settings if settings is not None else ServerSettings()
    keys = None if settings.keys is None else Keys(settings.keys)
    door = Door(settings.limits, Origins((settings.host, *settings.allowed_hosts), settings.allowed_origins), keys)
    app = Starlette(
        middleware=[Middleware(Guard, door=door)],
        routes=[Route(path, _answering(handler), methods=[method]) for method, path, handler in ROUTES],
        exception_handlers={HTTPException: _http_error},
    )
    app.router.redirect_slashes = (
        False  # a path with one slash more is no route: a redirect's answer is empty, and names http behind a proxy of TLS
    )
    served = [Served.of(name, server) for name, server in models.items()]
    app.state.watch = Watch()
    app.state.llmi = ServerState(Models(served), settings, Receipts(settings.receipts), door, Preparing())
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: f"there is no route {request.url.path[:80]!r}", 405: f"{request.method[:20]!r} is not allowed here"}
    known = ApiError(error.status_code, words.get(error.status_code, error.detail), headers=dict(error.headers or {}))
    return _answer(known)


def _answering(handler: Handler) -> Handler:
    """The handler, whose errors are answers."""

    @functools.wraps(handler)
    async def answering(request: Request) -> Response:
        try:
            return await handler(request)
        except HTTPException:
            raise
        except Exception as error:
            return _answer(api_error(error))

    return answering


def _answer(error: ApiError) -> Response:
    return json_response(error.body(), error.status, error.headers)
