"""Where a server listens. Light to import: the address is taken before models are loaded and before the server's own packages are there."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import stat
from pathlib import Path

from llmi.errors import InvalidParamsError
from llmi.server.settings import ServerSettings

#: The kernel's buffer of a connection, which would grow to megabytes for a client that does not read.
_SEND_BUFFER_BYTES = 256 << 10


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_reach(settings: ServerSettings, insecure: bool = False) -> None:
    """Without keys only this machine is served. Raises InvalidParamsError for another address, unless the caller knows (`insecure`)."""
    if settings.keys is None and settings.uds is None and not insecure and not is_loopback(settings.host):
        raise InvalidParamsError(
            f"--host {settings.host} can be reached from other machines, and no key would be needed: give --keys FILE, or"
            " --insecure-no-keys",
            "host",
        )


def bind(settings: ServerSettings) -> socket.socket:
    """A socket that has its address and does not listen yet. Raises InvalidParamsError where it cannot be had."""
    if settings.uds is not None:
        return _bind_unix(settings.uds)
    sock: socket.socket | None = None
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(found[0], found[1])
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)  # its connections have it from it
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
