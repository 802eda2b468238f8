"""Log-probabilities in OpenAI's forms.

Raw values are the model's own; those of the distribution after masks and filters are next to them under `llmi`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llmi.outputs.completion import Logprob
from llmi.text.tokenizer import Tokenizer

#: OpenAI's value of a token that is impossible.
LEAST = -9999.0
Position = dict[int, Logprob]


def _number(value: float) -> float:
    return value if math.isfinite(value) else LEAST


def _processed(value: float) -> float | None:
    """The processed log-probability; None of a token that it cut: JSON has no infinity."""
    return value if math.isfinite(value) else None


class LogprobForm:
    """Makes OpenAI's objects of positions.

    top : int
        How many of the likeliest tokens a position shows.
    as_ids : bool
        A token is written as "token_id:5" (vLLM's return_tokens_as_token_ids).
    also : sequence of int
        Ids that a position shows besides.
    """

    def __init__(self, tokenizer: Tokenizer, top: int, as_ids: bool = False, also: Sequence[int] = ()) -> None:
        self._bytes = tokenizer.vocab_bytes
        self._special = tokenizer.special_tokens
        self._top = top
        self._as_ids = as_ids
        self._also = frozenset(also)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; of a special one those of its name."""
        if token in self._special:
            return self._special[token].encode()
        return self._bytes[token] if token < len(self._bytes) else b""

    def _text(self, token: int, entry: Logprob) -> str:
        return f"token_id:{token}" if self._as_ids else entry.decoded_token

    def _likeliest(self, position: Position) -> list[tuple[int, Logprob]]:
        """The `top` likeliest, without the chosen token unless it is one of them, and the ids that the request names; the likeliest
        first."""
        listed = sorted(position.items(), key=lambda item: item[1].rank)
        return [*listed[: self._top], *(item for item in listed[self._top :] if item[0] in self._also)]

    def _entry(self, token: int, entry: Logprob) -> dict[str, Any]:
        return {
            "token": self._text(token, entry),
            "logprob": _number(entry.logprob),
            "bytes": list(self.bytes_of(token)),
            "llmi": {"token_id": token, "processed_logprob": _processed(entry.processed_logprob), "rank": entry.rank},
        }

    def chat(self, positions: list[Position]) -> dict[str, Any]:
        """`logprobs` of a choice of /v1/chat/completions."""
        content = []
        for position in positions:
            token, entry = next(iter(position.items()))
            content.append({**self._entry(token, entry), "top_logprobs": [self._entry(*other) for other in self._likeliest(position)]})
        return {"content": content, "refusal": None}

    def _key(self, token: int, entry: Logprob) -> str:
        """A token as a key: bytes that are no text are written out, so that no two tokens have one key."""
        if self._as_ids:
            return f"token_id:{token}"
        if "�" not in entry.decoded_token:
            return entry.decoded_token
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.bytes_of(token))

    def completion(self, token_ids: Sequence[int], positions: Sequence[Position | None], offsets: Sequence[int | None]) -> dict[str, Any]:
        """`logprobs` of a choice of /v1/completions. offsets: see llmi.server.text_offsets.

        None: a position without a distribution, the first of a prompt.
        """
        result: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [*offsets]}
        processed: list[float | None] = []
        for token, position in zip(token_ids, positions, strict=True):
            entry = Logprob(math.nan, math.nan, 0, self._decoded(token)) if position is None else position[token]
            result["tokens"].append(self._key(token, entry))
            result["token_logprobs"].append(None if position is None else _number(entry.logprob))
            processed.append(None if position is None else _processed(entry.processed_logprob))
            top: dict[str, float] = {}
            for other, its in () if position is None else self._likeliest(position):
                top.setdefault(self._key(other, its), _number(its.logprob))
            if position is not None and self._top:
                top.setdefault(self._key(token, entry), _number(entry.logprob))
            result["top_logprobs"].append(top or None)
        result["llmi"] = {"processed_logprobs": processed}
        return result

    def _decoded(self, token: int) -> str:
        return self.bytes_of(token).decode("utf-8", "replace")


def prompt_logprobs(positions: list[Position | None]) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: each position's tokens by id."""
    return [
        (
            None
            if position is None
            else {
                str(token): {"logprob": _number(entry.logprob), "rank": entry.rank, "decoded_token": entry.decoded_token}
                for token, entry in position.items()
            }
        )
        for position in positions
    ]
