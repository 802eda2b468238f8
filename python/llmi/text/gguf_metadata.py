"""The keys of a GGUF file that describe its tokenizer, read with their types."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from llmi.errors import TokenizerError

# GGUF token types; 0 is undefined.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

GGML = "tokenizer.ggml."
TOKENS, MERGES = GGML + "tokens", GGML + "merges"


class Metadata:
    """Typed access to the file's metadata, with the key in every error."""

    def __init__(self, metadata: dict[str, Any], path: Path) -> None:
        self.metadata = metadata
        self.path = path

    def fail(self, key: str, problem: str) -> TokenizerError:
        return TokenizerError(f"{self.path}: {key}: {problem}", self.path, key)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.metadata.get(key, default)
        if isinstance(value, str):
            return value
        raise self.fail(key, "missing, or not a string")

    def flag(self, key: str) -> bool | None:
        value = self.metadata.get(key)
        if value is None or isinstance(value, bool):
            return value
        raise self.fail(key, f"{value!r:.40} is neither true nor false")

    def strings(self, key: str) -> list[str]:
        value = self.metadata.get(key)
        if not isinstance(value, list) or not isinstance(value[0] if value else "", str):  # a GGUF list has one type
            raise self.fail(key, "missing, or not a list of strings")
        return value

    def numbers(self, key: str, *types: type) -> list[Any] | None:
        """A list of numbers of one of these types; None if it is missing."""
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or (value and type(value[0]) not in types):
            raise self.fail(key, f"not a list of numbers ({' or '.join(kind.__name__ for kind in types)})")
        return value

    def scores(self, count: int) -> list[float]:
        """`count` scores, one for each token."""
        key = GGML + "scores"
        scores = self.numbers(key, float, int)
        if scores is None or len(scores) != count:
            raise self.fail(key, "missing, or not one for each token")
        if any(map(math.isnan, scores)):
            raise self.fail(key, "a score is no number (NaN)")
        return scores

    def token_id(self, key: str, vocab_size: int) -> int | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
            raise self.fail(key, f"{value!r:.40} is no token id (a whole number in [0, {vocab_size:,}))")
        return value

    def token_ids(self, key: str, vocab_size: int) -> list[int]:
        ids: list[int] = self.numbers(key, int) or []
        for value in ids:
            if not 0 <= value < vocab_size:
                raise self.fail(key, f"{value!r} is no token id (a whole number in [0, {vocab_size:,}))")
        return ids
