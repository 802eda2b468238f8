"""The unit of a server for systemd, and the word that tells it that the server is ready."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
from collections.abc import Sequence

_UNIT = """\
[Unit]
Description=llmi: an LLM server
After=network.target

[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
KillSignal=SIGTERM
TimeoutStopSec={stop_s:.0f}
Restart=on-failure
DynamicUser=yes
CacheDirectory=llmi
Environment=HOME=%C/llmi
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
NoNewPrivileges=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""


def unit(command: Sequence[str], drain_s: float) -> str:
    """A unit file that runs `command`."""
    return _UNIT.format(command=shlex.join(command).replace("%", "%%").replace("$", "$$"), stop_s=drain_s + 15)


def notify(state: str) -> None:
    """Tells systemd, if it waits for a word: "READY=1", "STOPPING=1"."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.sendall(state.encode())
