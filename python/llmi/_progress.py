"""Progress bars: tqdm, loaded when first needed; silent where nobody looks."""

from __future__ import annotations

import sys
import warnings
from typing import Any


def interactive() -> bool:
    """Whether a person watches: a terminal or a notebook."""
    return "ipykernel" in sys.modules or sys.stderr.isatty()


def progress(total: int, description: str, unit: str = "it", enabled: bool | None = None) -> Any:
    """A tqdm bar on stderr. enabled=None: only if a person watches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm.auto warns where ipywidgets is missing, and falls back by itself
        from tqdm.auto import tqdm
    shown = interactive() if enabled is None else enabled
    return tqdm(total=total, desc=description, unit=unit, unit_scale=unit == "B", disable=not shown, leave=False)
