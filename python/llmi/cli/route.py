"""`llmi route`: one server in front of others that run already."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from llmi.cli.bench_serve import add_key_option, key_of
from llmi.cli.named_models import named_models
from llmi.cli.serve import add_front_options, run_front
from llmi.server.settings import ServerSettings

if TYPE_CHECKING:
    from llmi.async_llm import AsyncLLM


def add_route_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi route`."""
    parser.add_argument("url", nargs="+", metavar="URL", help="http://HOST:PORT of a server, each of the same model")
    parser.add_argument(
        "-m",
        "--model",
        metavar="[NAME=]MODEL",
        help="the model that the servers serve, under their name for it; its vocabulary is read, no weights (default: the file that the"
        " first server names)",
        default=argparse.SUPPRESS,
    )
    add_key_option(parser)
    add_front_options(parser)


def run_route(arguments: argparse.Namespace) -> int:
    """Serves until the process is told to end."""
    given: str | None = getattr(arguments, "model", None)
    name, path = (None, None) if given is None else next(iter(named_models([given]).items()))

    def loads(settings: ServerSettings) -> Iterator[tuple[str, AsyncLLM]]:
        from llmi.async_llm import AsyncLLM
        from llmi.replicas.servers import Servers
        from llmi.server.routed import Routed

        servers = Servers(arguments.url, name, key_of(arguments))
        llm = Routed(servers, path)
        yield servers.model or "", AsyncLLM(llm=llm, max_queue=settings.limits.queue)

    return run_front(arguments, loads)
