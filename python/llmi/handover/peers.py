"""Engines that are asked for blocks, over HTTP or through the front of replicas."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from llmi.errors import InvalidParamsError
from llmi.handover.settings import FRONT
from llmi.loadtest.fetch import UnboundedError, fetch

PATH = "/llmi/prefill"
_DELAYS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class Line(Protocol):
    """Carries one question."""

    def ask(self, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer: `num_tokens`, and of an engine far away `identity` and `engine`. Raises OSError or ValueError."""
        ...


class Http:
    """A server of llmi."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)

    def ask(self, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Asks on a connection of its own."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        try:
            found = fetch(self._address, seconds, "POST", PATH, json.dumps(body).encode(), headers)
        except (http.client.HTTPException, UnboundedError) as error:
            raise OSError(str(error)) from None
        if found.status != 200:
            raise ValueError(f"it answered with status {found.status}: {found.data[:200].decode(errors='replace')}")
        answer = json.loads(found.data)
        if not isinstance(answer, dict):
            raise ValueError("its answer is no object")
        return answer


#: How a process of `llmi serve --prefill-replicas` asks its front; none elsewhere.
front: Callable[[dict[str, Any], float], dict[str, Any]] | None = None


class _Front:
    def ask(self, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert front is not None
        return front(body, seconds)


class Peer:
    """One that may be asked. A peer that failed rests for a while, longer each time; one of another identity is asked no more."""

    def __init__(self, url: str) -> None:
        if url == FRONT and front is None:
            raise InvalidParamsError(
                f"kv_transfer_config: the peer {FRONT!r} is for the processes of `llmi serve --prefill-replicas`", "kv_transfer_config"
            )
        self.url = url
        self.line: Line = _Front() if url == FRONT else Http(url)
        self.num_asked = 0  # now
        self.is_foreign = False
        self._num_failures = 0
        self._rests_until = 0.0

    def may_be_asked(self) -> bool:
        """Whether it is not resting."""
        return not self.is_foreign and time.monotonic() >= self._rests_until

    def note(self, is_well: bool) -> None:
        """It has answered, or has not."""
        self._num_failures = 0 if is_well else self._num_failures + 1
        self._rests_until = time.monotonic() + _DELAYS_S[min(self._num_failures, len(_DELAYS_S) - 1)]


class Peers:
    """Those of one engine. Any thread may call it."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._peers = [Peer(url) for url in urls]
        self._lock = threading.Lock()

    def take(self) -> Peer | None:
        """The one that has the fewest questions now; None where all rest. Give it back."""
        with self._lock:
            found = min((peer for peer in self._peers if peer.may_be_asked()), key=lambda peer: peer.num_asked, default=None)
            if found is not None:
                found.num_asked += 1
            return found

    def give_back(self, peer: Peer, is_well: bool) -> None:
        """Its question has ended."""
        with self._lock:
            peer.num_asked -= 1
            peer.note(is_well)
