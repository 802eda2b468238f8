"""A server on a free port of this machine that serves while a block runs."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class LoopbackServer(ThreadingHTTPServer):
    """Serves in a thread until the block is left. `active` requests are under way."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.active = 0
        self._lock = threading.Lock()

    def leave(self) -> None:
        """A request has its answer."""
        with self._lock:
            self.active -= 1

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
