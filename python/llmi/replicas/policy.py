"""A user's policy in a file: which waiting request runs next, which replica gets a request, and whether it is taken at all."""

from __future__ import annotations

import dataclasses
import os
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmi.errors import HookError, InvalidParamsError

_NAMES = ("key", "route", "admit")


@dataclasses.dataclass(frozen=True)
class RoutedRequest:
    """What is known of a request when it comes."""

    request_id: str
    priority: int
    arrival_time_s: float
    num_prompt_tokens: int
    max_new_tokens: int


@dataclasses.dataclass(frozen=True)
class ReplicaView:
    """A replica that could take the request.

    num_sequences : under way there.
    num_queued_tokens : of the prompts there that have no token yet.
    num_known_tokens : of the request's beginning that it has computed before, as far as the router knows: whole blocks of 16.
    """

    num_sequences: int
    num_queued_tokens: int
    num_known_tokens: int


Route = Callable[[RoutedRequest, Sequence[ReplicaView]], int]
Admit = Callable[[RoutedRequest, Sequence[ReplicaView]], bool]


class PolicyFile:
    """A Python file that defines some of `key(request, now_s)`, `route(request, replicas)` and `admit(request, replicas)`.

    `key` is as in `scheduling_policy`; `route` returns the place of a replica in `replicas`; `admit` whether the request is taken. What the
    file leaves out is llmi's own. An exception of `route` or `admit` ends that request.

    Raises
    ------
    InvalidParamsError
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(Path(path).resolve())
        try:
            found = runpy.run_path(self.path)
        except OSError as error:
            raise InvalidParamsError(f"policy: {self.path} cannot be read: {error.strerror}", "policy") from None
        except BaseException as error:
            raise InvalidParamsError(f"policy: {self.path} raised {type(error).__name__}: {error}", "policy") from error
        given: dict[str, Any] = {name: found[name] for name in _NAMES if callable(found.get(name))}
        if not given:
            raise InvalidParamsError(f"policy: {self.path} defines none of the functions {', '.join(_NAMES)}", "policy")
        self.has_key = "key" in given
        if self.has_key:
            self.key = given["key"]
        self._route: Route | None = given.get("route")
        self._admit: Admit | None = given.get("admit")

    @property
    def places(self) -> bool:
        """Whether it has a say in where requests go."""
        return self._route is not None or self._admit is not None

    def route(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> int | None:
        """The replica's place; None: llmi's own rule decides. Raises HookError."""
        if self._route is None:
            return None
        place = self._ask("route", self._route, request, replicas)
        if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < len(replicas):
            raise HookError(
                f"policy {self.path}: route returned {place!r:.60} for request {request.request_id}: 0 to {len(replicas) - 1} are replicas"
            )
        return place

    def admit(self, request: RoutedRequest, replicas: Sequence[ReplicaView]) -> bool:
        """Whether the request is taken. Raises HookError."""
        if self._admit is None:
            return True
        taken = self._ask("admit", self._admit, request, replicas)
        if not isinstance(taken, bool):
            raise HookError(f"policy {self.path}: admit returned {taken!r:.60} for request {request.request_id}: True or False says it")
        return taken

    def _ask(self, name: str, function: Callable[..., Any], request: RoutedRequest, replicas: Sequence[ReplicaView]) -> object:
        try:
            return function(request, replicas)
        except Exception as error:
            raise HookError(
                f"policy {self.path}: {name} raised {type(error).__name__} for request {request.request_id}: {error}"
            ) from error
