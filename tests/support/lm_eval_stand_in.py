"""The part of lm-evaluation-harness that a model of its own touches, for machines without it. tests/support/lm_eval_parity.py runs the real one."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any


class CacheHook:
    """Keeps what models report to the harness' cache."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any, Any]] = []

    def add_partial(self, kind: str, request: Any, answer: Any) -> None:
        self.entries.append((kind, request, answer))


class TemplateLM:
    """Encodes pairs of texts by the harness' rule and hands ids on."""

    def __init__(self) -> None:
        self.cache_hook = CacheHook()

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        encoded = []
        for context, continuation in [request.args for request in requests]:
            key = (context, continuation)
            if context == "":
                ids = self.tok_encode(continuation, add_special_tokens=False)
                pair = ([self.prefix_token_id], ids) if self.prefix_token_id != ids[0] else (ids[:1], ids[1:])
            else:
                text = context.rstrip()
                behind = context[len(text) :] + continuation
                num_context = len(self.tok_encode(text))
                ids = self.tok_encode(text + behind)
                pair = (self.tok_encode(text), ids[num_context:])
            encoded.append((key, *pair))
        return self._loglikelihood_tokens(encoded)


def install() -> Callable[[], None]:
    """Registers it under the package's name; returns a function that takes it out."""
    names: dict[str, dict[str, Any]] = {
        "lm_eval": {},
        "lm_eval.models": {},
        "lm_eval.api": {},
        "lm_eval.api.model": {"TemplateLM": TemplateLM},
        "lm_eval.api.registry": {"register_model": lambda name: lambda kind: kind},
    }
    for name, members in names.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        sys.modules[name] = module

    def remove() -> None:
        for name in [*names, "llmi.integrations.lm_eval"]:
            sys.modules.pop(name, None)

    return remove
