"""The unit of a server for systemd, and the word that tells it that the server is ready."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from llmi.errors import InvalidParamsError
from llmi.server.settings import ServerSettings

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
{access}
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
# Folders that systemd makes for the service, and gives to its user.
_OWN = {Path("/run/llmi"): "RuntimeDirectory", Path("/var/lib/llmi"): "StateDirectory"}
# Folders of which a service with PrivateTmp=yes has its own.
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))


def unit(command: Sequence[str], settings: ServerSettings) -> str:
    """A unit file that runs `command`, whose paths are absolute, and that lets it read and write what it names.

    The service has a user of its own for the time that it runs. /run/llmi and /var/lib/llmi, and folders in them, are made for it; where it
    writes to another folder, it runs as that folder's owner. Raises InvalidParamsError for one that is not there, and for root's.
    """
    shown = " ".join(quoted(word).replace("$", "$$") for word in command)
    return _UNIT.format(command=shown, stop_s=settings.drain_s + 15, access="\n".join(_access(command, settings)))


def quoted(word: str) -> str:
    """A word of a unit's setting: systemd knows quotes around a whole word, with the escapes of C, and % stands for itself when doubled."""
    text = word.replace("%", "%%")
    if re.fullmatch(r"[\w@+=:,./%$-]+", text):
        return text
    return '"' + "".join(letter if letter not in '\\"\n' else {"\n": "\\n"}.get(letter, "\\" + letter) for letter in text) + '"'


def _access(command: Sequence[str], settings: ServerSettings) -> list[str]:
    """The lines that say as whom the service runs, and which of the named paths it sees and writes."""
    lines: list[str] = []
    owners: dict[int, Path] = {}
    written = [path.absolute() for path in (settings.receipts, settings.uds and settings.uds.parent) if path is not None]
    for folder in dict.fromkeys(written):
        own = next((root for root in _OWN if folder.is_relative_to(root)), None)
        if own is not None:
            lines.append(f"{_OWN[own]}={quoted(str(folder.relative_to(own.parent)))}")
            continue
        if not folder.is_dir():
            raise InvalidParamsError(f"--systemd: there is no folder {folder}", "systemd")
        lines.append(f"BindPaths={_bound(folder)}" if _is_temporary(folder) else f"ReadWritePaths={quoted(str(folder))}")
        status = folder.stat()
        if not status.st_mode & 0o002:
            owners[status.st_uid] = folder
    if len(owners) > 1 or 0 in owners:
        listed = ", ".join(f"{folder} (user {uid})" for uid, folder in owners.items())
        raise InvalidParamsError(
            f"--systemd: the service would run as the owner of {listed}: give folders of one user who is not root, or --uds in /run/llmi"
            " and --receipts in /var/lib/llmi, which systemd makes for it",
            "systemd",
        )
    for word in command:
        path = Path(word[word.find("=/") + 1 :])  # of NAME=/PATH, or the word itself
        if _is_temporary(path) and path.exists() and not any(path.is_relative_to(folder) for folder in written):
            lines.append(f"BindReadOnlyPaths={_bound(path)}")
    return [f"User={_user(next(iter(owners)))}" if owners else "DynamicUser=yes", *lines]


def _bound(path: Path) -> str:
    return quoted(str(path).replace(":", "\\:"))  # a colon would name another place for it


def _is_temporary(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in _TEMPORARY)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def notify(state: str) -> None:
    """Tells systemd, if it waits for a word: "READY=1", "STOPPING=1"."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + address[1:] if address.startswith("@") else address)
        sock.sendall(state.encode())
