"""The loss of drafters: Kullback-Leibler divergence from the target's distribution, on a shortlist of tokens.

Only the likeliest tokens of a distribution are kept, and the mass of the others as one bucket:
KL = sum over kept v of p_v log(p_v / q_v) + r log(r / r_q), with r = 1 - sum p_v and r_q = 1 - sum q_v.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Any: float32 or float64, whichever the parameters are.
Float = NDArray[Any]
F32 = NDArray[np.float32]
#: Tokens kept of a distribution; they hold 0.99 of the mass at most positions of a chat model's answers.
KEPT = 48
#: Rows of logits at once: 8 MB of them at a shortlist of 4,096.
_ROWS = 512
_TINY = 1e-20
#: Below this the difference 1 - sum is rounding, and a quotient by it means nothing.
_LEAST_REST = 1e-5


@dataclasses.dataclass(frozen=True)
class Laws:
    """The target's distributions at T = 1 over a shortlist, one a row.

    Attributes
    ----------
    tokens : uint16 [num_laws, kept]
        Places in the shortlist.
    probs : float16 [num_laws, kept]
    """

    tokens: NDArray[np.uint16]
    probs: NDArray[np.float16]


@dataclasses.dataclass(frozen=True)
class Head:
    """The target's head on the shortlist: logits = cap tanh(scale rows W^T / cap), or without a cap scale rows W^T.

    Attributes
    ----------
    weight : float [num_ids, hidden]
    """

    weight: Float
    scale: float = 1.0
    cap: float = 0.0

    def logits(self, rows: Float) -> Float:
        """[n, num_ids]."""
        logits: Float = rows @ self.weight.T
        if self.scale != 1.0:
            logits *= logits.dtype.type(self.scale)
        if self.cap:
            logits = np.tanh(logits / self.cap) * logits.dtype.type(self.cap)
        return logits

    def backward(self, d_logits: Float, logits: Float | None) -> Float:
        """Gradient of the rows; changes d_logits. With a cap it needs the logits."""
        if self.cap:
            assert logits is not None
            d_logits *= 1 - (logits / self.cap) ** 2
        rows: Float = d_logits @ self.weight
        return rows * rows.dtype.type(self.scale) if self.scale != 1.0 else rows


def _softmax(logits: Float) -> Float:
    """In place."""
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits


def laws_of(head: Head, hidden: NDArray[np.float16]) -> Laws:
    """What the target says after each row of hidden states."""
    kept = min(KEPT, len(head.weight))
    tokens, probs = np.empty((len(hidden), kept), np.uint16), np.empty((len(hidden), kept), np.float16)
    for start in range(0, len(hidden), _ROWS):
        law = _softmax(head.logits(hidden[start : start + _ROWS].astype(np.float32)))
        likeliest = np.argpartition(law, -kept, axis=1)[:, -kept:]
        likeliest.sort(axis=1)
        tokens[start : start + _ROWS] = likeliest
        probs[start : start + _ROWS] = np.take_along_axis(law, likeliest, axis=1)
    return Laws(tokens, probs)


def divergence(head: Head, rows: Float, tokens: NDArray[np.uint16], probs: NDArray[Any], weight: float) -> tuple[float, Float]:
    """(sum of the divergences of rows, gradient of weight times that sum).

    Parameters
    ----------
    rows : [n, hidden]
        A draft's guesses of head inputs.
    tokens, probs : [n, kept]
        Laws, as Laws has them.
    """
    total, gradient = 0.0, np.empty_like(rows)
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        logits = head.logits(rows[part])
        capped = logits.copy() if head.cap else None
        draft = _softmax(logits)
        places, target = tokens[part].astype(np.int64), probs[part].astype(rows.dtype)
        kept = np.take_along_axis(draft, places, axis=1)
        rest = np.maximum(1.0 - target.sum(axis=1, keepdims=True), 0.0)
        if places.shape[1] == draft.shape[1]:  # all are kept: the rest is rounding
            rest[:] = 0.0
        rest_of_draft = np.maximum(1.0 - kept.sum(axis=1, keepdims=True), _LEAST_REST)
        total += float(np.sum(target * np.log((target + _TINY) / (kept + _TINY))))
        total += float(np.sum(rest * np.log((rest + _TINY) / rest_of_draft)))
        draft *= 1.0 - rest / rest_of_draft
        np.put_along_axis(draft, places, kept - target, axis=1)
        gradient[part] = head.backward(draft, capped)
    gradient *= gradient.dtype.type(weight)
    return total, gradient
