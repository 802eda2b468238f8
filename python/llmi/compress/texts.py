"""Texts as callers give them, and the text that models are judged on."""

from __future__ import annotations

from pathlib import Path

from llmi.base.kinds import TOKEN_IDS, Listed, Text, parse

_TEXT = Path(__file__).with_name("judged.txt")


def judged_text() -> str:
    """Pages of Python's documentation (its licence: PSF-2.0)."""
    return _TEXT.read_text(encoding="utf-8")


def given_texts(texts: object) -> tuple[list[str | list[int]], str]:
    """The texts, and what a table calls them. [] is llmi's own."""
    if texts is None:
        return [], "llmi's text"
    if isinstance(texts, str):
        return [parse(Text(), "texts", texts)], "the given text"
    entries = parse(Listed(_TextOrIds(), "a text, or a list of texts or of lists of token ids", 1 << 20, min_len=1), "texts", texts)
    return entries, f"{len(entries)} given texts"


class _TextOrIds:
    """A string or a list of token ids."""

    def parse(self, name: str, value: object) -> str | list[int]:
        return parse(Text(), name, value) if isinstance(value, str) else list(parse(TOKEN_IDS, name, value))
