"""Tests wait for what happens, never for a time to pass; HANG_S only ends a wait for what never comes."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Ten times what any wait of the suite took on a busy machine, and half of pytest's own limit for a test (`timeout` in pyproject.toml).
HANG_S = 300.0


def wait_until(condition: Callable[[], object], what: str = "what the test waits for") -> None:
    """Returns as soon as the condition holds. Raises AssertionError if it never does."""
    end_s = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end_s, f"{what} did not come in {HANG_S:g} s"
        time.sleep(0.005)
