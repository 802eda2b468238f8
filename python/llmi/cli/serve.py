"""`llmi serve`: an HTTP server of one or several models."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi.cli.console import show
from llmi.cli.engine_flags import add_engine_flags, given_engine_options, reader
from llmi.cli.named_models import named_models
from llmi.engine.options import ENGINE
from llmi.errors import InvalidParamsError, import_extra
from llmi.server.settings import ServerSettings

if TYPE_CHECKING:
    from llmi.async_llm import AsyncLLM


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmi serve`."""
    unset: dict[str, Any] = {"default": argparse.SUPPRESS}
    add_engine_options(parser, "serve")
    parser.add_argument(
        "--replicas",
        "--data-parallel-size",
        metavar="N",
        type=reader(ENGINE["data_parallel_size"]),
        help="processes that hold each model, besides one without weights that answers; one that dies costs no answer",
        **unset,
    )
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help="with --replicas: a Python file with key, route or admit, as `llmi simulate --policy` takes",
        **unset,
    )
    parser.add_argument(
        "--prefill-replicas",
        metavar="N",
        type=int,
        help="of --replicas, those that compute prompts for the others, which take their blocks out of shared memory (docs/tiers.md)",
        **unset,
    )
    add_front_options(parser)


def add_front_options(parser: argparse.ArgumentParser) -> None:
    """The flags of what answers HTTP."""
    unset: dict[str, Any] = {"default": argparse.SUPPRESS}
    where = parser.add_argument_group("where it listens")
    where.add_argument("--host", default="127.0.0.1", help="an address of this machine")
    where.add_argument("--port", type=int, default=8000, help="0: one that is free")
    where.add_argument("--uds", metavar="FILE", help="a Unix socket instead", **unset)
    parser.add_argument("--no-access-log", action="store_true", help="no line on standard error for each request")
    parser.add_argument("--receipts", metavar="DIR", help="write a receipt of each answer into this folder", **unset)
    safety = parser.add_argument_group("who may call")
    safety.add_argument("--keys", metavar="FILE", help="a TOML file of keys; every route but /health and /ready then needs one", **unset)
    safety.add_argument("--insecure-no-keys", action="store_true", help="serve other machines without keys")
    safety.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a further value of the header Host that is taken"
    )
    safety.add_argument("--allow-origin", action="append", default=[], metavar="ORIGIN", help="a site whose pages may use the server")
    safety.add_argument("--max-queue", type=int, default=1024, help="most requests that wait; one more gets 429")
    safety.add_argument("--max-body-bytes", type=int, default=4 << 20, help="largest body")
    safety.add_argument("--deadline-s", type=float, help="longest a request may take, the queue included (default: no limit)", **unset)
    safety.add_argument("--idle-s", type=float, default=120.0, help="how long a connection is kept without a request")
    safety.add_argument("--drain-s", type=float, default=30.0, help="how long requests may take when the server is told to end")
    safety.add_argument("--systemd", action="store_true", help="print a unit for systemd that runs this command, and exit")


def add_engine_options(parser: argparse.ArgumentParser, command: str) -> None:
    """The flags that name models and say how their engines run."""
    unset: dict[str, Any] = {"default": argparse.SUPPRESS}
    parser.add_argument(
        "-m",
        "--model",
        action="append",
        metavar="[NAME=]MODEL",
        help="a model, under a name of its own; may be given several times",
        **unset,
    )
    engine = parser.add_argument_group("engines (of all models)")
    # By priority, and among equals first come, first served: a request's or a key's priority is never without effect.
    add_engine_flags(engine, command, scheduling_policy="priority")
    engine.add_argument(
        "--num-threads",
        metavar="N[,N]",
        help="threads, divided among the models, or one number for each (default: the CPUs that this process may use)",
        **unset,
    )


def threads_of(given: str | None, num_models: int) -> list[int]:
    """Threads of each model's engine. Raises InvalidParamsError."""
    if given is None:
        return _divided(len(os.sched_getaffinity(0)), num_models)
    parts = given.split(",")
    if not all(part.isascii() and part.isdecimal() and 1 <= int(part) <= 4096 for part in parts) or len(parts) not in (1, num_models):
        raise InvalidParamsError(
            f"--num-threads must be a number in [1, 4096], or one for each of the {num_models} models, as in 2,1; not {given[:40]!r}",
            "num_threads",
        )
    return [int(part) for part in parts] if len(parts) == num_models else _divided(int(parts[0]), num_models)


def _divided(total: int, count: int) -> list[int]:
    return [max(1, total // count + (index < total % count)) for index in range(count)]


def settings_of(arguments: argparse.Namespace) -> ServerSettings:
    """What the flags of `add_front_options` say. Raises InvalidParamsError."""
    from llmi.server.keys import read_keys
    from llmi.server.limits import Limits
    from llmi.server.listen import check_reach

    if not 0 <= arguments.port < 65536:
        raise InvalidParamsError(f"--port must lie in [0, 65535], not {arguments.port}", "port")
    receipts = Path(arguments.receipts) if hasattr(arguments, "receipts") else None
    if receipts is not None and not arguments.systemd and not (receipts.is_dir() and os.access(receipts, os.W_OK)):
        raise InvalidParamsError(f"--receipts: {receipts} is no folder that can be written to", "receipts")
    uds = Path(arguments.uds) if hasattr(arguments, "uds") else None
    limits = Limits(
        queue=arguments.max_queue,
        body_bytes=arguments.max_body_bytes,
        deadline_s=getattr(arguments, "deadline_s", None),
        idle_s=arguments.idle_s,
    )
    if not 0 <= arguments.drain_s <= 86_400:
        raise InvalidParamsError(f"--drain-s must lie in [0, 86,400], not {arguments.drain_s:g}", "drain_s")
    settings = ServerSettings(
        host=arguments.host,
        port=arguments.port,
        uds=uds,
        receipts=receipts,
        limits=limits,
        drain_s=arguments.drain_s,
        keys=Path(arguments.keys) if hasattr(arguments, "keys") else None,
        allowed_hosts=tuple(arguments.allow_host),
        allowed_origins=tuple(arguments.allow_origin),
    )
    check_reach(settings, arguments.insecure_no_keys)
    if settings.keys is not None:
        keys = read_keys(settings.keys)  # an error in the file comes before a model is loaded
        policy = getattr(arguments, "scheduling_policy", "priority")  # of a router's servers, each has its own
        if policy != "priority" and (unheard := next((key for key in keys if key.priority), None)):
            raise InvalidParamsError(
                f"key {unheard.name!r} has priority = {unheard.priority}, which --scheduling-policy {policy} does not look at", "priority"
            )
    return settings


def run_serve(arguments: argparse.Namespace) -> int:
    """Loads the models and serves them until the process is told to end."""
    names = named_models(getattr(arguments, "model", None))
    threads = threads_of(getattr(arguments, "num_threads", None), len(names))
    backend = getattr(arguments, "distributed_executor_backend", "local")
    if backend == "ray":
        raise InvalidParamsError("a server on Ray is llmi.integrations.ray.app, which Ray Serve runs", "distributed_executor_backend")
    if backend == "mpi":
        from llmi.ranks.mpi_world import launched_rank

        if launched_rank() > 0:  # it listens nowhere, and comes no further
            load(arguments, next(iter(names.values())), threads[0], None)

    def loads(settings: ServerSettings) -> Iterator[tuple[str, AsyncLLM]]:
        for (name, path), num_threads in zip(names.items(), threads, strict=True):
            yield name, load(arguments, path, num_threads, settings.limits.queue)

    return run_front(arguments, loads)


def run_front(arguments: argparse.Namespace, loads: Callable[[ServerSettings], Iterable[tuple[str, AsyncLLM]]]) -> int:
    """Serves what `loads` gives, by names, until the process is told to end."""
    for module in ("starlette", "uvicorn", "msgspec"):
        if importlib.util.find_spec(module) is None:
            import_extra(module, "server")
    from llmi.chat.process import renderer
    from llmi.server.listen import bind

    settings = settings_of(arguments)
    if arguments.systemd:
        from llmi.cli.unit_words import absolute_words
        from llmi.server.systemd import unit

        words = absolute_words([word for word in sys.argv[1:] if word != "--systemd"])
        show(unit([sys.executable, "-m", "llmi", *words], settings))
        return 0
    logging.getLogger("llmi.access").setLevel(logging.WARNING if arguments.no_access_log else logging.INFO)
    sock = bind(settings)
    renderer.prestart()
    import llmi.async_llm  # noqa: F401 (before the thread, which imports what comes after it)

    # What the server needs is imported while the core loads the models, without Python.
    imports = threading.Thread(target=importlib.import_module, args=("llmi.server.run",), daemon=True)
    imports.start()
    models: dict[str, AsyncLLM] = {}
    try:
        for name, server in loads(settings):
            models[name] = server
        imports.join()
        from llmi.server import run

        is_quiet = run.serve(models, settings, sock, show)
    finally:
        sock.close()
        for server in models.values():
            server.llm.close()
    if not is_quiet:  # Python would wait for threads that prepare requests of clients that have gone
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def load(arguments: argparse.Namespace, path: str, num_threads: int, max_queue: int | None) -> AsyncLLM:
    """One model's engine."""
    from llmi.async_llm import AsyncLLM

    options = {"on_worker_failure": "restart", **given_engine_options(arguments), "num_threads": num_threads}
    num_producers, count = getattr(arguments, "prefill_replicas", 0), getattr(arguments, "replicas", 1)
    if hasattr(arguments, "prefill_replicas") and not 1 <= num_producers < count:
        raise InvalidParamsError(
            f"--prefill-replicas {num_producers}: some of the {count} replicas compute prompts for the others: give a number in"
            f" [1, {count - 1}]"
            if count > 1
            else "--prefill-replicas needs --replicas 2 or more: some compute prompts for the others",
            "prefill_replicas",
        )
    if not hasattr(arguments, "replicas"):
        if hasattr(arguments, "policy"):
            raise InvalidParamsError("--policy says where requests go: give --replicas N", "policy")
        return AsyncLLM(path, max_queue=max_queue, **options)
    from llmi.replicas.policy import PolicyFile
    from llmi.server.front import Front

    policy = PolicyFile(arguments.policy) if hasattr(arguments, "policy") else None
    if policy is not None and policy.has_key:
        options["scheduling_policy"] = policy
    return AsyncLLM(
        llm=Front(path, policy=policy, num_producers=num_producers, **{**options, "data_parallel_size": arguments.replicas}),
        max_queue=max_queue,
    )
