"""Acceptance of trained heads on a text, by depth, without an engine: one chain, begun anew at every position of the answers.

At T = 0 a draft is the likeliest token, and right if it is the text's. At T = 1 verification is coupled: draft and target share Gumbel
noise g, and the target draws argmax(z + g) (Maddison et al., 2014). Given that it drew token x, its largest value M has the law Gumbel(log
sum exp z), the others are Gumbel below M: z_v + g_v = -log(exp(-M) + exp(-(z_v + fresh g))). So chains on a recorded text are judged with
noise that drew it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmi.training.data import Data
from llmi.training.eagle import Places
from llmi.training.packing import pack_in_order

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
DEPTHS = 4


class Chain(Protocol):
    """Drafts of a model at places of a batch, all at once."""

    at: Places

    def next(self, embeddings: F32 | None) -> F32:
        """Head inputs for the next token, given the embeddings of those drafted before it; None at first."""
        ...


class Drafting(Protocol):
    """A model that drafts."""

    def chain(self, tokens: I64, parts: I64, data: Data) -> Chain:
        """Drafts at the places of a batch."""
        ...


@dataclasses.dataclass
class Counts:
    """By depth: positions at which the text goes on so far, those of them at which all tokens before were right, and those at which all
    were."""

    tried: I64
    led: I64
    right: I64

    @property
    def rates(self) -> list[float]:
        """Rates of chains of 1, 2, .. tokens."""
        return [float(right / tried) if tried else 0.0 for tried, right in zip(self.tried, self.right, strict=True)]

    @property
    def given(self) -> list[float]:
        """Rates of the first, second, .. token, given those before it were right."""
        return [float(right / led) if led else 0.0 for right, led in zip(self.right, self.led, strict=True)]


def _noise(target: F32, following: I64, rng: np.random.Generator) -> F32:
    """Gumbel noise [n, num_ids] with which the target's logits [n, num_ids] drew `following` (a place, or -1: a token off the
    shortlist)."""
    largest = target.max(axis=1)
    total = largest + np.log(np.exp(target - largest[:, None]).sum(axis=1))
    winner = total - np.log(rng.exponential(size=len(target))).astype(np.float32)
    fresh = target - np.log(rng.exponential(size=target.shape)).astype(np.float32)
    below = -np.logaddexp(-winner[:, None], -fresh)
    on = np.flatnonzero(following >= 0)
    below[on, following[on]] = winner[on]
    noise: F32 = below - target
    return noise


def _choices(data: Data, out: F32, ahead: I64, warm: NDArray[np.bool_], rng: np.random.Generator) -> I64:
    """The drafted places of the shortlist after each row; ahead: the token of the text before the one that is guessed."""
    logits = data.head.logits(out)
    rows = np.flatnonzero(warm)
    if len(rows):
        target = data.head.logits(data.rows[ahead[rows]].astype(np.float32))
        following = data.text.token_ids[np.minimum(ahead[rows] + 1, data.ends[ahead[rows]] - 1)]
        places = np.searchsorted(data.shortlist, following)
        places = np.minimum(places, len(data.shortlist) - 1)
        places = np.where(data.shortlist[places] == following, places, -1)
        logits[rows] += _noise(target, places, rng)
    choices: I64 = logits.argmax(axis=1)
    return choices


def acceptance(model: Drafting, data: Data, warm: NDArray[np.bool_], embeddings: F32, seed: int = 5) -> tuple[Counts, Counts]:
    """Counts of the greedy sequences of a text and of those at T = 1.

    Parameters
    ----------
    warm : bool [num_sequences]
        Which were drawn at T = 1.
    embeddings : float32 [num_ids, hidden]
        Of the shortlist's tokens.
    """
    rng = np.random.default_rng(seed)
    tried, led, right = (np.zeros((2, DEPTHS), np.int64) for _ in range(3))
    is_warm = np.repeat(warm, np.diff(data.text.offsets))
    for tokens, parts in pack_in_order(data.text.offsets):
        chain = model.chain(tokens, parts, data)
        here = chain.at.tokens
        if not len(here):
            continue
        out = chain.next(None)
        alive = np.ones(len(here), bool)
        for depth in range(DEPTHS):
            ahead = np.minimum(here + 1 + depth, data.ends[here] - 1)
            drafted = _choices(data, out, ahead, is_warm[here], rng)
            room = here + 2 + depth < data.ends[here]
            before = alive & room
            alive = before & (data.shortlist[drafted] == data.text.token_ids[np.minimum(here + 2 + depth, data.ends[here] - 1)])
            for kind in (0, 1):
                chosen = is_warm[here] == bool(kind)
                tried[kind, depth] += np.count_nonzero(room & chosen)
                led[kind, depth] += np.count_nonzero(before & chosen)
                right[kind, depth] += np.count_nonzero(alive & chosen)
            if depth + 1 < DEPTHS:
                out = chain.next(embeddings[drafted])
    return Counts(tried[0], led[0], right[0]), Counts(tried[1], led[1], right[1])


def table(counts: tuple[Counts, Counts]) -> list[dict[str, Any]]:
    """One row a temperature and depth."""
    return [
        {
            "temperature": temperature,
            "depth": depth + 1,
            "positions": int(one.tried[depth]),
            "acceptance": one.rates[depth],
            "given_those_before": one.given[depth],
        }
        for temperature, one in zip((0.0, 1.0), counts, strict=True)
        for depth in range(DEPTHS)
    ]
