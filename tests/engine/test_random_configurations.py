"""A slice of tests/support/random_configurations.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from random_configurations import COUNTED, Configuration, Engines, check


@pytest.fixture(scope="module")
def engines(tiny_path: Callable[..., Path]) -> Iterator[Engines]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMI_EMULATE_CUDA", "1")
        made = Engines(tiny_path("gemma3"), emulated=True)
        yield made
        made.close()


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (12, 24, 36))])
def test_random_configurations(engines: Engines, first: int) -> None:
    assert check(engines, first, 12) == []


def test_each_field_is_drawn() -> None:
    drawn = {name for seed in range(500) for name in Configuration.random(seed).fields}
    assert drawn >= {*COUNTED}
