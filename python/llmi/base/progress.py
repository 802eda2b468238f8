"""What a person sees on stderr while they wait: a line, or a bar where somebody watches. Silent without a stderr."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Protocol


def say(text: str) -> None:
    """One line on stderr; nothing where there is none."""
    if sys.stderr is not None:  # print(file=None) would write to stdout
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)


def interactive() -> bool:
    """Whether a person watches: a terminal or a notebook."""
    if "ipykernel" in sys.modules:
        return True
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (OSError, ValueError):  # a closed stream
        return False


class Bar(Protocol):
    """Shows how far something is."""

    def update(self, count: float) -> object:
        """Moves the bar on by `count`."""


class _NoBar:
    """Replaces a bar that would not be seen."""

    def update(self, count: float) -> None:
        """Does nothing."""

    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *exc: object) -> None:
        """Does nothing."""


def progress(total: int, description: str, unit: str = "it", enabled: bool | None = None) -> contextlib.AbstractContextManager[Bar]:
    """A tqdm bar on stderr. enabled=None: only if a person watches."""
    if not (interactive() if enabled is None else enabled) or sys.stderr is None:
        return _NoBar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm.auto warns where ipywidgets is missing, and falls back by itself
        from tqdm.auto import tqdm
    bar: contextlib.AbstractContextManager[Bar] = tqdm(total=total, desc=description, unit=unit, unit_scale=unit == "B", leave=False)
    return bar
