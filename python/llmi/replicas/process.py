"""Processes with an engine of their own: started anew, not forked, and gone when this one is."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from llmi import _core
from llmi.errors import WorkerDiedError
from llmi.replicas.wire import Connection

_BOOT = "from llmi.server.replica import main; main()"
_LOOK_S = 0.05
_LOOK_NS = 500_000_000  # the shortest time of which its scheduling says something
_PEER = struct.Struct("3i")  # pid, uid, gid


class Folder:
    """A folder that only this user may enter, for sockets."""

    none = "no replica can be started"

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="llmi-"))  # mode 0700

    def threads(self, num_threads: int | None, count: int) -> tuple[list[int], int]:
        """Threads of each of `count` processes, and how many of them this machine gets."""
        return divided(num_threads or _core.system_info()["num_threads"], count), count

    def start(self, name: str, is_over: Callable[[], bool]) -> Process:
        """Starts a process. Raises WorkerDiedError."""
        return Process(name, self, is_over)

    def remove(self) -> None:
        """Removes it; sockets are gone already."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


class Process:
    """One process, with the connection to it.

    Raises
    ------
    WorkerDiedError
        It could not be started, or ended before it was there.
    """

    is_orderly = False

    def __init__(self, name: str, folder: Folder, is_over: Callable[[], bool]) -> None:
        if not sys.executable:
            raise WorkerDiedError(f"replica {name}: sys.executable names no Python to start it with", name)
        self._scheduled = (time.monotonic_ns(), 0, 0)  # when its scheduling was looked at, how long it ran and waited by then
        path = folder.path / name
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            try:
                listener.listen(1)
                listener.settimeout(_LOOK_S)
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _BOOT, str(path), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=environment,
                    start_new_session=True,  # Ctrl-C of a terminal is for this process alone
                )
                try:
                    self.connection = Connection(self._accept(name, listener, is_over))
                except BaseException:
                    self.kill()
                    self.process.wait()
                    raise
            except OSError as error:
                raise WorkerDiedError(f"replica {name} cannot be started: {error}", name) from None
            finally:
                path.unlink(missing_ok=True)

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def kill(self) -> None:
        """Ends it at once, stopped or not."""
        self.process.kill()

    def why_silent(self) -> str:
        """By its first thread, which reads and answers: it is starved where it waited for a CPU for half of the time since the last call,
        or wants one and has not had it for half."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            ran_ns, waited_ns, _ = map(int, Path(f"/proc/{self.pid}/schedstat").read_text().split())
        except (OSError, ValueError):  # it has gone, or this system does not tell
            return ""
        now = (time.monotonic_ns(), ran_ns, waited_ns)
        passed, ran, waited = (new - old for new, old in zip(now, self._scheduled, strict=True))
        self._scheduled = now
        if state in "Tt":
            return "stopped"
        return "starved" if passed > _LOOK_NS and (waited > passed / 2 or (state == "R" and ran < passed / 2)) else ""

    def finish(self) -> None:
        """Waits for its end, which comes by itself when its socket has closed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        self.process.kill()
        self.process.wait()

    def how_it_ended(self) -> str:
        """In words, once it was killed or has ended."""
        code = self.process.wait()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

    def _accept(self, name: str, listener: socket.socket, is_over: Callable[[], bool]) -> socket.socket:
        while not is_over():
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                if self.process.poll() is not None:
                    raise WorkerDiedError(f"replica {name} {self.how_it_ended()} before it was there", name, self.pid) from None
                continue
            pid, uid, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if (pid, uid) == (self.pid, os.getuid()):
                sock.settimeout(None)
                return sock
            sock.close()
        raise WorkerDiedError(f"replica {name}: closed while it was started", name, self.pid)


def divided(total: int, count: int) -> list[int]:
    """Threads of each of several engines; at least one."""
    return [max(1, total // count + (index < total % count)) for index in range(count)]


def watch_parent(pid: int) -> None:
    """Ends this process when its parent has gone, whoever holds the other end of the socket."""

    def watch() -> None:
        while os.getppid() == pid:
            threading.Event().wait(1.0)
        os._exit(0)

    threading.Thread(target=watch, name="llmi-parent", daemon=True).start()
