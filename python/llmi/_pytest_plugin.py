"""Fixtures for tests of decoding code: `tiny_llm`, `tiny_llm_factory`, `random_drafter`. llmi is imported when one is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny_llm_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Makes LLMs with tiny random weights: `tiny_llm_factory("gemma3", vocab_size=64, max_model_len=256)`.

    Arguments of `llmi.testing_model`; all others go to LLM. Equal arguments give the same LLM; all are closed at the end.
    """
    import llmi  # noqa: PLC0415 (names of the package are loaded when they are read)
    from llmi.testing import tiny_model  # noqa: PLC0415 (a test session needs it)

    made: dict[str, Any] = {}
    model_args = ("vocab_size", "num_layers", "hidden_size", "seed")

    # Any: tiny_model and LLM check their own arguments.
    def make(architecture: str = "llama", **kwargs: Any) -> Any:
        key = f"{architecture} {sorted(kwargs.items())}"
        if key not in made:
            shape = {name: kwargs.pop(name) for name in model_args if name in kwargs}
            path = tiny_model(architecture, path=tmp_path_factory.mktemp("llmi"), **shape)
            made[key] = llmi.LLM(path, **{"kv_cache_memory_bytes": 1 << 24, **kwargs})
        return made[key]

    yield make
    for llm in made.values():
        llm.close()


@pytest.fixture
def tiny_llm(tiny_llm_factory: Callable[..., Any]) -> Any:
    """An LLM with tiny random weights and a byte vocabulary."""
    return tiny_llm_factory()


@pytest.fixture
def random_drafter() -> Any:
    """`random_drafter(quality, seed=0)`: a drafter whose tokens are accepted with about that probability."""
    from llmi.testing import random_drafter  # noqa: PLC0415 (a test session needs it)

    return random_drafter
