"""How a server ends: it takes no more, finishes what it has, tells those that it cannot finish, and exits with 0."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from llmi.server.connections import quiet_accepts
from llmi.server.threads import Threads

log = logging.getLogger("llmi.server")
#: After the deadline streams get their error event; this long they may take to read it.
_LAST_S = 5.0
#: Requests that come so soon after the signal are told that the server ends; later ones find no server. A client may have sent them before
#: it.
_TELL_S = 0.1


class DrainingServer(uvicorn.Server):
    """A uvicorn server that ends in order.

    on_ready : called when it listens.
    on_drain : called at the first SIGTERM or SIGINT; from then on the application turns requests away.
    on_deadline : called `drain_s` later, or at a second signal, if something still runs: it ends that.
    on_hangup : called at SIGHUP.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain_s: float,
        *,
        on_ready: Callable[[], None],
        on_drain: Callable[[], None],
        on_deadline: Callable[[], None],
        on_hangup: Callable[[], None],
    ) -> None:
        config.timeout_graceful_shutdown = int(drain_s + _LAST_S + 2)  # never reached: connections are cut before it
        super().__init__(config)
        self._drain_s = drain_s
        self._on_ready = on_ready
        self._on_drain = on_drain
        self._on_deadline = on_deadline
        self._on_hangup = on_hangup
        self.threads = Threads(thread_name_prefix="llmi request")
        self._loop: asyncio.AbstractEventLoop | None = None  # while it serves
        self._timer: asyncio.TimerHandle | None = None  # of the next step of the end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen."""
        self._loop = asyncio.get_running_loop()
        quiet_accepts(self._loop)
        self._loop.set_default_executor(self.threads)
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            with contextlib.suppress(NotImplementedError):
                self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no more connections, and waits for the requests under way; a second signal ends the wait."""
        self._on_drain()
        self._timer = asyncio.get_running_loop().call_later(self._drain_s, self._end)
        try:
            await asyncio.sleep(_TELL_S)
            await super().shutdown(sockets)
        finally:
            self._timer.cancel()
            self._loop = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The handler of SIGTERM and SIGINT."""
        self._captured_signals.append(sig)
        if self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end)
        self.should_exit = True

    def _end(self) -> None:
        """The wait is over: what still runs is told so."""
        if self._timer is not None:
            self._timer.cancel()
        self._on_deadline()
        self._timer = asyncio.get_running_loop().call_later(_LAST_S, self._cut)

    def _cut(self) -> None:
        """Clients that have not read their last words by now have no connection any more."""
        connections = list(self.server_state.connections)
        log.warning("%d connections were cut: their clients did not read the end of their answers within %g s", len(connections), _LAST_S)
        for connection in connections:
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end the server, not the process: uvicorn would raise them again, and the exit code would not be 0."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()
