"""The processes that render chat templates: each started at its first chat, kept for the next, ended when a template exceeds its limits.

There is one for each kind of chat (`ask`), so that what takes long makes its own kind wait alone.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from llmi.base.ending import ENDING, Ending
from llmi.errors import ChatTemplateError

MAX_WALL_S = 20.0  # the process itself ends after 2 s of processor time
MAX_REQUEST_BYTES = 32 << 20
LARGE_BYTES = 256 << 10  # of a chat: a model's own template may take long for it
_LOOK_S = 0.05  # how often a wait looks whether it is over

# Packages without what their __init__ does, and with the modules that the worker imports: the engine stays out of the process.
_BOOT = """
import importlib, sys, types
root, worker = sys.argv[1:3]
for name in ("llmi", worker.rpartition(".")[0]):
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = ["/".join([root, *name.split(".")[1:]])]
sys.path += sys.argv[3:]
importlib.import_module(worker).main()
"""
_KEPT_ENVIRONMENT = ("PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PATH")


class Ended(Exception):
    """The process ended before it answered; `signal` is what ended it, or None."""

    def __init__(self, signal_number: int | None) -> None:
        super().__init__()
        self.signal = signal_number


def _start(worker: str) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise ChatTemplateError(
            "chat templates are rendered in a process of their own, and sys.executable names no Python to start it with"
        )
    # A prompt is a function of its messages: the order of sets is, too. The parent's settings of Python have no effect.
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ} | {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
    paths = [str(path) for path in sys.path if path]
    command = [sys.executable, "-s", "-S", "-P", "-c", _BOOT, str(Path(__file__).parent.parent), worker, *paths]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise ChatTemplateError(f"the process that renders chat templates cannot be started: {sys.executable}: {error.strerror}") from None


def encoded(request: dict[str, Any]) -> bytes:
    """A request as the process reads it. Raises ChatTemplateError if it is too large."""
    data = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(data) > MAX_REQUEST_BYTES:
        raise ChatTemplateError(f"the chat has {len(data):,} bytes as JSON (at most {MAX_REQUEST_BYTES:,})")
    return data


class Renderer:
    """One process, asked by one thread at a time. Owns the process; safe to use after a fork, in which the child starts its own.

    worker: the module whose `main` the process runs.
    """

    def __init__(self, worker: str = "llmi.chat.worker") -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def prestart(self) -> None:
        """Starts the process, without waiting for it."""
        with self._lock:
            self._running()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises Ended if the process ends, TimeoutError if it does not answer or nobody waits for it (ENDING),
        ChatTemplateError if it cannot be started.
        """
        return self.answer(encoded(request))

    def answer(self, data: bytes) -> dict[str, Any]:
        """As `ask`, of an encoded request."""
        ending = ENDING.get() or Ending()
        while not self._lock.acquire(timeout=_LOOK_S):
            if ending.is_over:
                raise TimeoutError
        try:
            process = self._running()
            try:
                answer = _exchange(process, data, time.monotonic() + MAX_WALL_S, ending)
            except BaseException:  # an exchange that is half done leaves a process that nobody can ask
                self._end()
                raise
            result: dict[str, Any] = json.loads(answer.decode("utf-8", "surrogatepass"))
            if result.get("error") == "memory":
                self._end()
            return result
        finally:
            self._lock.release()

    def close(self) -> None:
        """Ends the process; a later chat starts another."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """In the child of a fork: the process is the parent's, and so is whoever held the lock."""
        process, self._process = self._process, None
        self._lock = threading.Lock()
        if process is not None:
            process.returncode = 0  # which is not ours to wait for
            _close_pipes(process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._process = _start(self._worker)
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            _close_pipes(process)
            process.wait()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _exchange(process: subprocess.Popen[bytes], data: bytes, deadline: float, ending: Ending) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    source, sink = process.stdout.fileno(), process.stdin.fileno()
    os.set_blocking(sink, False)
    left = memoryview(len(data).to_bytes(8, "little") + data)
    while left:
        _wait(sink, select.POLLOUT, deadline, ending)
        try:
            left = left[os.write(sink, left) :]
        except BlockingIOError:
            continue
        except BrokenPipeError:
            raise _ended(process) from None
    size = int.from_bytes(_read(process, source, 8, deadline, ending), "little")
    return _read(process, source, size, deadline, ending)


def _read(process: subprocess.Popen[bytes], source: int, size: int, deadline: float, ending: Ending) -> bytes:
    parts = []
    while size:
        _wait(source, select.POLLIN, deadline, ending)
        part = os.read(source, min(size, 1 << 20))
        if not part:
            raise _ended(process)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _wait(descriptor: int, event: int, deadline: float, ending: Ending) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    while not poll.poll(min(max(deadline - time.monotonic(), 0), _LOOK_S) * 1000):
        if ending.is_over or time.monotonic() >= deadline:
            raise TimeoutError


def _ended(process: subprocess.Popen[bytes]) -> Ended:
    code = process.wait()
    return Ended(-code if code < 0 else None)


def why(ended: Ended) -> str:
    """The reason why the process ended, in words."""
    if ended.signal == signal.SIGPROF:
        return "it takes more than 2 s of processor time"
    if ended.signal is None:
        return f"the process that renders it could not go on (is {sys.executable} the Python that llmi runs in?)"
    return f"the process that renders it was ended by {signal.Signals(ended.signal).name}"


def kept(process: Renderer) -> Renderer:
    """The process as one of the program: a fork has its own, and the program's end ends it."""
    os.register_at_fork(after_in_child=process.forget)
    atexit.register(process.close)
    return process


renderer = kept(Renderer())  # of chats by the model's own templates
_large, _given = kept(Renderer()), kept(Renderer())


def ask(request: dict[str, Any], is_own: bool) -> dict[str, Any]:
    """As Renderer.ask, by the process of its kind: one is for templates that come with a request, one for large chats, one for all others.

    is_own: the template is the model's.
    """
    data = encoded(request)
    return (_given if not is_own else _large if len(data) > LARGE_BYTES else renderer).answer(data)
