"""One model behind the server: its AsyncLLM, its name, its fingerprint, and whether its engine still lives."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from llmi.async_llm import AsyncLLM
from llmi.errors import LlmiError, call_core
from llmi.llm import LLM
from llmi.server.errors import ApiError, public_text
from llmi.server.fingerprint import fingerprint_of
from llmi.text.tokenizer import Tokenizer

#: An engine that has work and makes no step for this long is not alive.
HEARTBEAT_S = 10.0


@dataclasses.dataclass
class Served:
    """A model that is served.

    Attributes
    ----------
    name : str
        As requests name it.
    server : AsyncLLM
    fingerprint : str or None
        See llmi.server.fingerprint. None: this engine does not promise the same tokens again.
    created : int
        When it was loaded, seconds since 1970.
    instance : str
        Another one each time that a model is served.
    """

    name: str
    server: AsyncLLM
    fingerprint: str | None
    created: int
    instance: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of(cls, name: str, server: AsyncLLM) -> Served:
        """A served model with its fingerprint, for which the model's digest must be known: the files are read if it is not."""
        return cls(name, server, fingerprint_of(server.llm), int(time.time()))

    @property
    def llm(self) -> LLM:
        """The engine's own interface."""
        return self.server.llm

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.server.llm.tokenizer

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Sampling parameters by the model's generation_config.json."""
        return self.server.llm._defaults

    @property
    def max_model_len(self) -> int:
        """Longest sequence, in tokens."""
        return self.server.llm.model_info.max_model_len

    def text_of(self, token_ids: Iterable[int], skip_special_tokens: bool) -> str:
        """The text of token ids. Those behind the tokenizer's last one, by which some models' vocabularies are padded, have none."""
        tokenizer = self.tokenizer
        return tokenizer.decode_part(
            [token for token in token_ids if token < tokenizer.vocab_size], skip_special_tokens=skip_special_tokens
        )

    @property
    def heeds_priority(self) -> bool:
        """Whether the engine's policy may look at a request's priority: "priority" does, and an object of the program's own."""
        policy = self.llm._engine_args.scheduling_policy
        return policy == "priority" or not isinstance(policy, str)

    def problem(self) -> str:
        """Why it can answer nothing; "" if it can. An engine that has work and makes no step for ten seconds counts as dead."""
        return self.server.health(HEARTBEAT_S).reason

    def check(self) -> None:
        """Raises ApiError (503) if the engine has ended."""
        try:
            call_core(self.llm._engine.check_open)
        except LlmiError as error:
            raise ApiError(
                503, f"the model {self.name!r} can answer nothing more: {public_text(error)}", code="engine_unavailable"
            ) from None


class Models:
    """The models that are served, by name; the first one answers where a request need not name one."""

    def __init__(self, served: list[Served]) -> None:
        self.by_name = {model.name: model for model in served}

    def __iter__(self) -> Iterator[Served]:
        return iter(self.by_name.values())

    def find(self, name: object) -> Served:
        """The model of this name; without one, the only one there is. Raises ApiError (400, 404, 503)."""
        if name is None and len(self.by_name) == 1:
            return next(iter(self.by_name.values()))
        if not isinstance(name, str) or not name:
            raise ApiError(400, f"model must be one of {self._listed}", param="model", code="missing_model")
        model = self.named(name)
        model.check()
        return model

    def named(self, name: str) -> Served:
        """The model of this name, whether it lives or not. Raises ApiError (404)."""
        if name not in self.by_name:
            raise ApiError(404, f"there is no model {name[:80]!r}: served are {self._listed}", param="model", code="model_not_found")
        return self.by_name[name]

    @property
    def _listed(self) -> str:
        return ", ".join(map(repr, self.by_name))
