"""The guard before the application: who may call, from where, how much and how often. Pure ASGI."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import re
import socket
import time
from collections.abc import Iterable

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llmi.server.admission import Admission
from llmi.server.errors import ApiError, shutting_down
from llmi.server.keys import Caller, Keys, TooManyError
from llmi.server.limits import Limits

log = logging.getLogger("llmi.access")
#: Routes that need no key: they tell whether the server lives, and the page's file.
OPEN = frozenset({"/health", "/ready", "/"})
#: Routes that tell of all callers.
WATCHED = ("/metrics", "/llmi/events", "/llmi/replicas", "/llmi/engine")
_LOCAL_NAMES = frozenset({"localhost", "testserver"})
#: Names of this machine's own address, which a page may mix: the one that it came from and the one that it asks.
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
#: What a header's name consists of, and the comma between two.
_HEADER_NAMES = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,4096}")


class Origins:
    """Which `Host` and `Origin` are ours.

    A page of another site may not use the server: its browser names that site as `Origin`, or, if the site's name was made to lead here, as
    `Host`. That trick needs a name, so addresses are taken as they are. hosts, origins: further ones; origins as "http://site:port", or
    "null".
    """

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = {host.lower() for host in hosts} | _LOCAL_NAMES | {socket.gethostname().lower()}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    def check(self, headers: dict[bytes, list[bytes]]) -> str | None:
        """The origin that is to be named in the answer, if another site's is allowed. Raises ApiError."""
        hosts = headers.get(b"host", [])
        if len(hosts) != 1:
            raise ApiError(400, f"a request has one Host header, not {len(hosts)}", code="bad_host")
        host = hosts[0].decode("latin-1").lower()
        if not self._is_ours(host):
            raise ApiError(403, f"Host {host[:80]!r} is not this server's: start it with --allow-host {host[:80]}", code="host_refused")
        origins = headers.get(b"origin", [])
        if not origins:
            return None
        origin = origins[0].decode("latin-1").lower().rstrip("/")
        if origin in self._origins and len(origins) == 1:
            return origin
        if len(origins) == 1 and origin in (f"http://{host}", f"https://{host}"):
            return None
        if len(origins) == 1 and _is_same_loopback(origin, host):
            return origin
        raise ApiError(
            403, f"Origin {origin[:80]!r} may not use this server: start it with --allow-origin {origin[:80]}", code="origin_refused"
        )

    def _is_ours(self, host: str) -> bool:
        name = host
        if host.startswith("["):
            name = host.partition("]")[0].strip("[")
        elif ":" in host:
            name = host.rpartition(":")[0]
        if name in self._hosts or host in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _is_same_loopback(origin: str, host: str) -> bool:
    """Whether an origin and a `Host` are one port of this machine, by two of its names."""
    scheme, _, site = origin.partition("://")
    names, ports = zip(*(_split_port(each) for each in (site, host)), strict=True)
    return scheme in ("http", "https") and _LOOPBACK.issuperset(names) and ports[0] == ports[1]


def _split_port(host: str) -> tuple[str, str]:
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and not port.endswith("]") else (host, "")


class Door:
    """Who may pass, and how many did. keys: None where everybody may call. is_draining: while it is true, requests are turned away.

    bodies: the waits for bodies that are on their way.
    """

    def __init__(self, limits: Limits, origins: Origins, keys: Keys | None = None) -> None:
        self.limits = limits
        self.origins = origins
        self.keys = keys
        self.is_draining = False
        self.num_active = 0
        self.num_refused: dict[int, int] = {}  # by status
        self.nobody = Caller(None)
        self.bodies: set[asyncio.Timeout] = set()

    def end(self) -> None:
        """The drain is over: bodies that are on their way are not waited for."""
        self.is_draining = True
        for wait in self.bodies:
            if not wait.expired():
                wait.reschedule(0.0)

    def caller(self, path: str, headers: dict[bytes, list[bytes]]) -> Caller:
        """Whose key a request has. Raises ApiError: all routes but OPEN need one."""
        if self.keys is None or path in OPEN:
            return self.nobody
        given = [value.decode("latin-1") for value in headers.get(b"authorization", [])]
        given += [f"Bearer {value.decode('latin-1')}" for value in headers.get(b"x-api-key", [])]
        kind, _, text = given[0].partition(" ") if len(set(given)) == 1 else ("", "", "")
        found = self.keys.find(text.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise ApiError(
                401,
                "no valid key: send one, as in Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if path.startswith(WATCHED) and not found.may_see_metrics:
            raise ApiError(403, f"key {found.name!r} may not see this: it tells of other keys' requests", code="metrics_refused")
        return found


class Guard:
    """The application behind it gets only what may pass, with the whole body; `admission` in the scope's state tells it of whom."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app = app
        self.door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await _Visit(self, scope, receive, send).run()
        else:
            await send({"type": "websocket.close", "code": 1008})


class _Visit:
    """One request on its way through the guard."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self._door = guard.door
        self._app = guard.app
        self._scope = scope
        self._receive = receive
        self._send = send
        self._status = 0
        self._begun_s = time.monotonic()
        self._more_headers: list[tuple[bytes, bytes]] = []
        self._caller = guard.door.nobody

    async def run(self) -> None:
        """Checks the request and passes it on, or answers with what is wrong."""
        self._door.num_active += 1
        try:
            await self._pass()
        except TooManyError as error:
            self._more_headers += self._caller.headers()
            await self._refuse(
                ApiError(429, str(error), code="rate_limit_exceeded", headers={"retry-after": str(math.ceil(error.retry_after_s))})
            )
        except ApiError as error:
            await self._refuse(error)
        finally:
            self._door.num_active -= 1
            log.info(
                "%s %s %d %.0f ms key %s",
                self._scope["method"][:20],
                self._scope["path"][:80].encode("ascii", "backslashreplace").decode(),
                self._status,
                (time.monotonic() - self._begun_s) * 1000,
                self._caller.name,
            )

    async def _pass(self) -> None:
        door, scope = self._door, self._scope
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        if door.is_draining and scope["path"] != "/health":
            raise shutting_down()
        size = (
            sum(len(name) + len(value) + 4 for name, value in scope["headers"])
            + len(scope.get("raw_path", b""))
            + len(scope.get("query_string", b""))
        )
        if size > door.limits.header_bytes:
            raise ApiError(
                431, f"the request's headers have {size:,} bytes, more than {door.limits.header_bytes:,}", headers={"connection": "close"}
            )
        origin = door.origins.check(headers)
        if origin is not None:
            self._more_headers += [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", b"*"),
                (b"vary", b"Origin"),
            ]
            if scope["method"] == "OPTIONS":
                await self._answer_preflight(headers)
                return
        self._caller = door.caller(scope["path"], headers)
        scope.setdefault("state", {})["admission"] = Admission(self._caller, door.limits, self._begun_s)
        counts = self._caller.key is not None and scope["method"] == "POST"
        if not counts:
            await self._run_app(headers)
            return
        with self._caller.admitted():
            self._more_headers += self._caller.headers()
            await self._run_app(headers)

    async def _run_app(self, headers: dict[bytes, list[bytes]]) -> None:
        body = await self._body(headers)
        if body is None:  # the client has gone
            return
        given = False

        async def receive() -> Message:
            nonlocal given
            if given:
                return await self._receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(self._scope, receive, self._counted)

    async def _body(self, headers: dict[bytes, list[bytes]]) -> bytes | None:
        """The whole body, within the limits; None if the client has gone. Raises ApiError."""
        limits = self._door.limits
        if any(value.strip().lower() not in (b"", b"identity") for value in headers.get(b"content-encoding", [])):
            raise ApiError(
                415, "Content-Encoding is not taken: send the body as it is", code="unsupported_encoding", headers={"connection": "close"}
            )
        length = headers.get(b"content-length", [b"0"])[0]
        too_large = ApiError(
            413,
            f"the body has more than {limits.body_bytes:,} bytes" + (f": {int(length):,}" if length.isdigit() and len(length) < 16 else ""),
            code="body_too_large",
            headers={"connection": "close"},
        )
        if length.isdigit() and (len(length) > 15 or int(length) > limits.body_bytes):
            raise too_large
        wait = asyncio.timeout(limits.body_s)
        self._door.bodies.add(wait)
        try:
            async with wait:
                return await self._whole_body(too_large)
        except TimeoutError:
            if self._door.is_draining and time.monotonic() - self._begun_s < limits.body_s:
                raise shutting_down() from None
            raise ApiError(
                408, f"the body did not come within {limits.body_s:g} s", code="body_timeout", headers={"connection": "close"}
            ) from None
        finally:
            self._door.bodies.discard(wait)

    async def _whole_body(self, too_large: ApiError) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > self._door.limits.body_bytes:
                raise too_large
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _counted(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if self._more_headers:
                message["headers"] = [*message.get("headers", []), *self._more_headers]
        await self._send(message)

    async def _refuse(self, error: ApiError) -> None:
        refused = self._door.num_refused
        refused[error.status] = refused.get(error.status, 0) + 1
        body = msgspec.json.encode(error.body())
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.encode(), value.encode("latin-1", "replace")) for name, value in error.headers.items()]
        await self._counted({"type": "http.response.start", "status": error.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _answer_preflight(self, asked: dict[bytes, list[bytes]]) -> None:
        """The origin is one that is let in: it may send whatever headers it wants to, as clients' libraries add their own."""
        names = b", ".join(asked.get(b"access-control-request-headers", []))
        headers = [(b"access-control-allow-methods", b"GET, POST"), (b"content-length", b"0")]
        if _HEADER_NAMES.fullmatch(names):
            headers.append((b"access-control-allow-headers", names))
        await self._counted({"type": "http.response.start", "status": 204, "headers": headers})
        await self._send({"type": "http.response.body", "body": b""})
