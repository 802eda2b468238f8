"""The text that models are judged on."""

from __future__ import annotations

from pathlib import Path

_TEXT = Path(__file__).with_name("judged.txt")


def judged_text() -> str:
    """Pages of Python's documentation (its licence: PSF-2.0)."""
    return _TEXT.read_text(encoding="utf-8")
