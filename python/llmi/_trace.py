"""The decode trace of one continuation: every token that was tried, and what became of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmi._errors import InvalidParamsError, import_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from llmi._tokenizer import Tokenizer

COLUMNS = (
    "step", "position", "depth", "token_id", "raw_logprob", "processed_logprob", "rank", "num_kept", "noise", "draft_prob", "accepted", "time_s",
)  # fmt: skip


class DecodeTrace:
    """One row a token tried, in the order of decoding.

    Columns: `step` of the engine; `position` in prompt and output; `depth` in its step (1 follows the last committed
    token); `token_id`, `token`; `raw_logprob` of the model, `processed_logprob` of the law drawn from (-inf where cut);
    `rank` by raw logit; `num_kept` tokens that the filters left; `noise`, log E of the exponential race that draws (NaN at
    temperature 0): the token with the least noise - logit / temperature wins; `drafted`; `draft_prob`; `accepted` (1, 0,
    or NaN for a token that was drawn and not drafted); `time_s` on a steady clock.
    """

    def __init__(self, columns: dict[str, NDArray[Any]], tokens: list[str]) -> None:
        self._columns = columns
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self._columns["step"])

    def to_dict(self) -> dict[str, NDArray[Any]]:
        """Columns by name."""
        accepted = self._columns["accepted"].astype(np.float64)
        accepted[accepted < 0] = np.nan
        drafted = self._columns["accepted"] >= 0
        return {**self._columns, "token": np.asarray(self.tokens, dtype=object), "drafted": drafted, "accepted": accepted}

    def to_pandas(self) -> Any:
        """A DataFrame (needs pandas)."""
        return import_extra("pandas", "pandas").DataFrame(self.to_dict())

    def save(self, path: str | Path) -> None:
        """Writes .npz."""
        texts = np.asarray([token.encode("utf-8", "replace").hex() for token in self.tokens], dtype=np.str_)
        with Path(path).open("wb") as file:
            arrays: dict[str, Any] = {**self._columns, "tokens": texts}
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> DecodeTrace:
        """Reads what `save` wrote. Raises InvalidParamsError if it is no trace."""
        try:
            with np.load(path, allow_pickle=False) as data:
                columns = {name: data[name] for name in COLUMNS}
                tokens = [bytes.fromhex(str(text)).decode("utf-8", "replace") for text in data["tokens"]]
        except (OSError, ValueError, KeyError) as error:
            raise InvalidParamsError(f"{path}: not a trace ({error})", "path") from None
        return cls(columns, tokens)

    def diff(self, other: DecodeTrace) -> TraceDifference | None:
        """The first emitted token that differs in id or log-probabilities; None if all are equal, bit for bit."""
        mine, theirs = self._emitted(), other._emitted()
        for i, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            if a != b:
                return TraceDifference(i, a[0], b[0], a[1] - b[1], a[2] - b[2])
        if len(mine) != len(theirs):
            return TraceDifference(min(len(mine), len(theirs)), None, None, float("nan"), float("nan"))
        return None

    def _emitted(self) -> list[tuple[int, float, float]]:
        """(token, raw, processed) of what was emitted: accepted drafts, and tokens that were drawn."""
        columns = self._columns
        kept = columns["accepted"] != 0
        return list(
            zip(
                columns["token_id"][kept].tolist(), columns["raw_logprob"][kept].tolist(), columns["processed_logprob"][kept].tolist(), strict=True,
            )
        )  # fmt: skip

    def __repr__(self) -> str:
        drafted = int((self._columns["accepted"] >= 0).sum())
        return f"DecodeTrace({len(self)} tokens tried, {drafted} of them drafted, {int((self._columns['accepted'] == 1).sum())} accepted)"

    def _repr_html_(self) -> str:
        from llmi._display import trace_html

        return trace_html(self)


@dataclasses.dataclass(frozen=True, slots=True)
class TraceDifference:
    """Where two traces part: the output position, both tokens (None past an end), and the log-probability gaps."""

    position: int
    token_id: int | None
    other_token_id: int | None
    raw_gap: float
    processed_gap: float


def make_trace(columns: dict[str, NDArray[Any]], tokenizer: Tokenizer) -> DecodeTrace:
    """From the core's columns."""
    known = len(tokenizer.vocab_bytes)
    texts = [tokenizer.decode([token], skip_special_tokens=False) if token < known else "" for token in columns["token_id"].tolist()]
    return DecodeTrace(columns, texts)
