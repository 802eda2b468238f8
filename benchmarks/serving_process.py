"""Servers for benchmarks/serving.py: `llmi serve` as a process, llmi's server in this process with a record of each request, and
llama-server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from serving_client import thread_times

from llmi import LLM, AsyncLLM
from llmi.online.totals import Totals
from llmi.server.app import make_app
from llmi.server.connections import protocol_of
from llmi.server.limits import Limits

CLIENT = Path(__file__).with_name("serving_client.py")


def ask(port: int, requests: list[dict[str, Any]], pid: int = 0, marks: list[int] | None = None) -> dict[str, Any]:
    """Lets the client send these requests at once; what it saw."""
    plan = {"port": port, "requests": requests, "pid": pid, "marks": marks or []}
    done = subprocess.run([sys.executable, str(CLIENT)], input=json.dumps(plan), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the client failed: {done.stderr[-1000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


class Process:
    """A server that is a process. pid, port; seconds from its start until it was ready."""

    def __init__(self, command: list[str], port: int, ready: str) -> None:
        began = time.perf_counter()
        quiet = subprocess.DEVNULL
        if ready:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet, text=True)
            self.port = self._read_port(ready)
        else:
            self._process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
            self.port = port
            self._wait_for_health()
        self.ready_s = time.perf_counter() - began
        self.pid = self._process.pid

    def _read_port(self, ready: str) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ready):
                return int(line.rpartition(":")[2])
        raise SystemExit("the server ended before it was ready")

    def _wait_for_health(self) -> None:
        for _ in range(1200):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1) as answer:
                if answer.status == 200:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise SystemExit("the server ended, or was not ready within a minute")

    @property
    def cpu_s(self) -> float:
        """CPU time of all its threads, those included that have ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def threads(self) -> dict[str, float]:
        """CPU seconds by thread."""
        return thread_times(self.pid)

    @property
    def memory_bytes(self) -> int:
        """Its own memory, in RAM or swapped out."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(("RssAnon:", "VmSwap:")))

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.wait(60)


@contextlib.contextmanager
def llmi_server(model: str, *flags: str) -> Iterator[Process]:
    """`llmi serve` on a free port while the block runs."""
    server = Process([sys.executable, "-m", "llmi", "serve", "-m", model, "--port", "0", *flags], 0, "ready: ")
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def llama_server(program: str, model: str, port: int, slots: int) -> Iterator[Process]:
    """llama-server with a seat for each of `slots` requests, and as much context for each as 512 tokens."""
    flags = [
        "-m",
        model,
        "--port",
        str(port),
        "--host",
        "127.0.0.1",
        "-np",
        str(slots),
        "-c",
        str(512 * slots),
        "--no-webui",
        "-t",
        str(os.cpu_count()),
    ]
    server = Process([program, *flags], port, "")
    try:
        yield server
    finally:
        server.close()


class RecordedTotals(Totals):
    """Keeps, by its number of new tokens, (arrival, first token) of each request that has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[int | None, tuple[float, float]] = {}

    def add(self, request: Any, prompt_len: int, n: int, max_tokens: int | None) -> None:
        """A request has ended."""
        super().add(request, prompt_len, n, max_tokens)
        self.times[max_tokens] = (request.arrival_time_s, request.first_token_time_s)


class RecordedServer:
    """llmi's server in a thread of this process; `totals` has the engine's own times of each request."""

    def __init__(self, llm: LLM) -> None:
        self.totals = RecordedTotals()
        self.llm = llm
        with _replaced_totals(self.totals):
            self.online = AsyncLLM(llm=llm)
        app = make_app({"model": self.online})
        config = uvicorn.Config(app, http=protocol_of(Limits()), port=0, ws="none", lifespan="off", log_level="error", access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> RecordedServer:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        asyncio.run(self.online.shutdown(drain=False))


@contextlib.contextmanager
def _replaced_totals(totals: Totals) -> Iterator[None]:
    """What AsyncLLM counts in, until the block ends."""
    from llmi import async_llm

    async_llm.Totals, before = (lambda: totals), async_llm.Totals  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        async_llm.Totals = before  # type: ignore[misc]
