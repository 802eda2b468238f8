"""Runs a server: the models are loaded, then the port opens, then a line says where it listens."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping

import uvicorn
from starlette.applications import Starlette

from llmi.async_llm import AsyncLLM
from llmi.errors import call_core
from llmi.server.app import make_app
from llmi.server.connections import protocol_of
from llmi.server.drain import DrainingServer
from llmi.server.listen import bind as bind
from llmi.server.listen import url_of
from llmi.server.preparing import Preparing
from llmi.server.served import Served
from llmi.server.settings import ServerSettings
from llmi.server.systemd import notify

_BACKLOG = 2048


def memory_plan(model: Served) -> str:
    """What a model holds: weights and KV cache, in MB."""
    pages = call_core(model.llm._engine.stats)["num_pages"]
    cache = pages * model.llm._page_bytes
    unused = f" ({model.llm._kv_wasted_share:.1%} unused: pages hold whole layers)" if model.llm._kv_wasted_share else ""
    return (
        f"weights {model.llm.model_info.weight_bytes / 1e6:,.0f} MB, KV cache {cache / 1e6:,.0f} MB{unused}, {model.max_model_len:,} tokens"
        " of context"
    )


def serve(models: Mapping[str, AsyncLLM], settings: ServerSettings, sock: socket.socket, say: Callable[[str], None]) -> bool:
    """Serves until the process is told to end; `say` gets the lines that say where, with each model's fingerprint and memory.

    Whether all threads that prepared requests have ended; if not, the process must not wait for them.
    """
    server = make_server(models, settings, sock, say)
    server.run(sockets=[sock])
    if settings.uds is not None:
        with contextlib.suppress(OSError):
            settings.uds.unlink()
    preparing: Preparing = server.config.app.state.llmi.preparing  # type: ignore[union-attr]
    return preparing.ended() and server.threads.ended()


def make_server(
    models: Mapping[str, AsyncLLM], settings: ServerSettings, sock: socket.socket, say: Callable[[str], None]
) -> DrainingServer:
    """The server that `serve` runs; its `should_exit` ends it as a signal does."""
    app = make_app(models, settings)
    door = app.state.llmi.door
    config = uvicorn.Config(
        app,
        http=protocol_of(settings.limits, num_refused=door.num_refused),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
    )

    def ready() -> None:
        ready_lines(app, url_of(settings, sock), say)
        notify("READY=1")

    def drain() -> None:
        door.is_draining = True
        notify("STOPPING=1")

    def end() -> None:
        door.end()
        app.state.llmi.preparing.end()
        for server in models.values():
            server.abort_all()

    def hangup() -> None:
        if door.keys is not None:
            door.keys.reload()

    return DrainingServer(config, settings.drain_s, on_ready=ready, on_drain=drain, on_deadline=end, on_hangup=hangup)


def ready_lines(app: Starlette, url: str, say: Callable[[str], None]) -> None:
    """One line with the URL, and one for each model."""
    served = list(app.state.llmi.models)
    for model in served:
        say(f"model {model.name}: {model.fingerprint or 'no fingerprint: the same request may get other tokens'}; {memory_plan(model)}")
    say(f"ready: {url}")
