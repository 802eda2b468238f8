"""Runs a server: the models are loaded, then the port opens, then a line says where it listens."""

from __future__ import annotations

import contextlib
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from llmi.async_llm import AsyncLLM
from llmi.errors import InvalidParamsError, call_core
from llmi.server.app import make_app
from llmi.server.connections import protocol_of
from llmi.server.drain import DrainingServer
from llmi.server.guard import is_loopback
from llmi.server.served import Served
from llmi.server.settings import ServerSettings
from llmi.server.systemd import notify

_BACKLOG = 2048


def check_reach(settings: ServerSettings, insecure: bool = False) -> None:
    """Without keys only this machine is served. Raises InvalidParamsError for another address, unless the caller knows (`insecure`)."""
    if settings.keys is None and settings.uds is None and not insecure and not is_loopback(settings.host):
        raise InvalidParamsError(
            f"--host {settings.host} can be reached from other machines, and no key would be needed: give --keys FILE, or --insecure-no-keys",
            "host",
        )


def bind(settings: ServerSettings) -> socket.socket:
    """A socket that has its address and does not listen yet. Raises InvalidParamsError where it cannot be had."""
    if settings.uds is not None:
        return _bind_unix(settings.uds)
    sock = None
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(found[0], found[1])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(found[4])
    except OSError as error:
        if sock is not None:
            sock.close()
        raise InvalidParamsError(
            f"{settings.host}:{settings.port} cannot be had: {error.strerror or error}; give another --port or --host", "port"
        ) from None
    return sock


def _bind_unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
                if probe.connect_ex(str(path)) == 0:
                    sock.close()
                    raise InvalidParamsError(f"{path}: another server listens there", "uds")
            path.unlink()  # of a server that has ended
        sock.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        sock.close()
        raise InvalidParamsError(f"{path} cannot be had: {error.strerror or error}", "uds") from None
    return sock


def url_of(settings: ServerSettings, sock: socket.socket) -> str:
    """Where a client finds the server."""
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def memory_plan(model: Served) -> str:
    """What a model holds: weights and KV cache, in MB."""
    pages = call_core(model.llm._engine.stats)["num_pages"]
    cache = pages * model.llm._page_bytes
    return f"weights {model.llm.model_info.weight_bytes / 1e6:,.0f} MB, KV cache {cache / 1e6:,.0f} MB, {model.max_model_len:,} tokens of context"


def serve(models: Mapping[str, AsyncLLM], settings: ServerSettings, sock: socket.socket, say: Callable[[str], None]) -> None:
    """Serves until the process is told to end; `say` gets the lines that say where, with each model's fingerprint and memory."""
    make_server(models, settings, sock, say).run(sockets=[sock])
    if settings.uds is not None:
        with contextlib.suppress(OSError):
            settings.uds.unlink()


def make_server(
    models: Mapping[str, AsyncLLM], settings: ServerSettings, sock: socket.socket, say: Callable[[str], None]
) -> DrainingServer:
    """The server that `serve` runs; its `should_exit` ends it as a signal does."""
    app = make_app(models, settings)
    door = app.state.llmi.door
    config = uvicorn.Config(
        app,
        http=protocol_of(settings.limits),
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
