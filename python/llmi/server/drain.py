"""How a server ends: it takes no more, finishes what it has, tells those that it cannot finish, and exits with 0."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn

from llmi.server.connections import quiet_accepts

log = logging.getLogger("llmi.server")
#: After the deadline streams get their error event; this long they may take to read it.
_LAST_S = 5.0
#: Requests that come so soon after the signal are told that the server ends; later ones find no server. A client may have sent them before it.
_TELL_S = 0.1


class DrainingServer(uvicorn.Server):
    """A uvicorn server that ends in order.

    on_ready : called when it listens.
    on_drain : called at the first SIGTERM or SIGINT; from then on the application turns requests away.
    on_deadline : called `drain_s` later, if something still runs: it ends that.
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
        config.timeout_graceful_shutdown = int(drain_s + _LAST_S + 1)
        super().__init__(config)
        self._drain_s = drain_s
        self._on_ready = on_ready
        self._on_drain = on_drain
        self._on_deadline = on_deadline
        self._on_hangup = on_hangup

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen."""
        quiet_accepts(asyncio.get_running_loop())
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no more connections, and waits for the requests under way; a second signal ends the wait."""
        self._on_drain()
        timer = asyncio.get_running_loop().call_later(self._drain_s, self._on_deadline)
        try:
            await asyncio.sleep(_TELL_S)
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end the server, not the process: uvicorn would raise them again, and the exit code would not be 0."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()
