"""The front of `llmi route`: vocabulary, template and forms of a model, whose engines are servers that run already."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmi.errors import InvalidParamsError
from llmi.models.files import OpenModel
from llmi.replicas.identity import ALIKE
from llmi.replicas.router import Router
from llmi.replicas.servers import Servers
from llmi.server.fingerprint import fingerprint_of
from llmi.server.front import Front


class Routed(Front):
    """An LLM for a server, whose tokens come from other servers. model: None for the file that the first one names.

    Raises WorkerDiedError for a server that cannot be one of them, InvalidParamsError where MODEL is another one than theirs.
    """

    def __init__(self, servers: Servers, model: str | None) -> None:
        self._servers = servers
        try:
            first = servers.first()
            arguments = {name: value for name, value in first["arguments"].items() if name in ALIKE}
            overrides = json.loads(arguments.get("hf_overrides") or "{}") or None
            super().__init__(model or first["path"], **{**arguments, "hf_overrides": overrides})
            self._check_model()
        except BaseException:
            servers.remove()
            raise

    def _routed(self, given: Mapping[str, Any], files: OpenModel) -> Router:
        return Router({name: {} for name in self._servers.addresses}, self._servers)

    def _check_model(self) -> None:
        own, replica = fingerprint_of(self), self._front_router.replicas[0]
        if own != replica.fingerprint:
            self.close()
            raise InvalidParamsError(
                f"{self.model_info.path}: with its vocabulary and template the fingerprint is {own}, and that of {replica.name} is"
                f" {replica.fingerprint}: give the model that the servers serve, by the same versions of llmi and its packages",
                "model",
            )
