"""A text as training reads it: hidden rows of the target, its distributions, embeddings, and which places teach."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmi.session import Session
from llmi.training.losses import Head, Laws, laws_of
from llmi.training.target import Target, shortlist_of
from llmi.training.text import Text

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
_AT_ONCE = 64  # sequences of one call for hidden rows
_SAMPLE = 8  # sequences from which sizes are measured


@dataclasses.dataclass
class Data:
    """
    Attributes
    ----------
    text : Text
    rows : float16 [num_tokens, hidden]
        What the target's head reads after each token.
    shortlist : int32 [num_ids]
    head : Head
        On the shortlist.
    laws : Laws
        After each token of `law_of`.
    law_of : int64 [num_tokens]
        Row in `laws` of the distribution after a token; -1 where the answer has not begun.
    embeddings : float32 [num_distinct, hidden]
    embedding_of : int64 [num_tokens]
        Row in `embeddings` of each token.
    positions, ends : int64 [num_tokens]
        Of each token: its position, and the end of its sequence.
    row_size : float
        Mean root mean square of the last layer's output before the norm.
    """

    text: Text
    rows: NDArray[np.float16]
    shortlist: I32
    head: Head
    laws: Laws
    law_of: I64
    embeddings: F32
    embedding_of: I64
    positions: I64
    ends: I64
    row_size: float

    @property
    def gain(self) -> float:
        """Size of hidden rows over that of embeddings."""
        sample = self.rows[:4096].astype(np.float32)
        return float(np.sqrt(np.mean(sample * sample) / np.mean(self.embeddings * self.embeddings)))


def hidden_rows(llm: Session, text: Text, tick: Callable[[int], Any]) -> NDArray[np.float16]:
    """What the head reads after each token; `tick` hears how many tokens are done."""
    rows = np.empty((len(text.token_ids), llm.model_info.hidden_size), np.float16)
    for first in range(0, len(text), _AT_ONCE):
        group = range(first, min(first + _AT_ONCE, len(text)))
        states = llm.hidden_states([text.sequence(index).tolist() for index in group], normed=True)
        for index, state in zip(group, states, strict=True):
            rows[text.offsets[index] : text.offsets[index + 1]] = state[-1]
        tick(int(text.offsets[group[-1] + 1] - text.offsets[first]))
    return rows


def _row_size(llm: Session, text: Text) -> float:
    states = llm.hidden_states([text.sequence(index).tolist() for index in range(min(_SAMPLE, len(text)))])
    sizes = [np.sqrt(np.mean(np.square(state[-1][1:]), axis=1)) for state in states]  # the first token's row is often a giant
    return float(np.concatenate(sizes).mean())


def data_of(llm: Session, target: Target, text: Text, tick: Callable[[int], Any], shortlist: I32 | None = None) -> Data:
    """Runs the target over the text. A given shortlist is that of heads that stand already."""
    rows = hidden_rows(llm, text, tick)
    if shortlist is None:
        shortlist = shortlist_of(text.token_ids, llm.model_info.vocab_size)
    head = target.head(shortlist)
    lengths = np.diff(text.offsets)
    starts = np.repeat(text.offsets[:-1], lengths)
    positions = np.arange(len(text.token_ids)) - starts
    teaches = positions >= np.repeat(text.prompt_lens, lengths) - 1
    law_of = np.where(teaches, np.cumsum(teaches) - 1, -1)
    distinct, embedding_of = np.unique(text.token_ids, return_inverse=True)
    return Data(
        text,
        rows,
        shortlist,
        head,
        laws_of(head, rows[teaches]),
        law_of,
        target.embeddings(distinct.astype(np.int64)),
        embedding_of.astype(np.int64),
        positions,
        np.repeat(text.offsets[1:], lengths),
        _row_size(llm, text),
    )
