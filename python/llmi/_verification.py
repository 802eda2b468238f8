"""Verification: how drafted tokens are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from llmi._errors import InvalidParamsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]


class Verification:
    """How drafted tokens are accepted. The law of what is emitted can be enumerated: no random numbers inside.

    Override `accept_probability`, and `residual` if need be. Set `lossless = True` if the law stays the target's.
    """

    lossless: ClassVar[bool] = False

    def accept_probability(self, token_id: int, target_probs: F64, draft_probs: F64) -> float:
        """Probability of accepting `token_id`, in [0, 1].

        Parameters
        ----------
        token_id : int
        target_probs : float64 array [vocab_size]
            The processed law at this position, and what earlier siblings left of it.
        draft_probs : float64 array [vocab_size]
            The law that the token was drawn from.
        """
        target, draft = float(target_probs[token_id]), float(draft_probs[token_id])
        return 1.0 if target >= draft else target / draft

    def residual(self, target_probs: F64, draft_probs: F64) -> F64:
        """What is left of the target after a rejection: by default the normalised positive part of target - draft."""
        left: F64 = np.maximum(target_probs - draft_probs, 0.0)
        total = left.sum()
        return left / total if total > 0 else left


class Typical(Verification):
    """Accepts what is typical of the target: probability above min(epsilon, delta exp(-entropy)) (Cai et al., Medusa, 2024).

    Lossy: likely tokens become likelier.
    """

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        if not (0 < epsilon <= 1 and delta > 0):
            raise InvalidParamsError(f"0 < epsilon <= 1 and 0 < delta are needed, not {epsilon} and {delta}", "epsilon")
        self.epsilon = epsilon
        self.delta = delta

    def accept_probability(self, token_id: int, target_probs: F64, draft_probs: F64) -> float:
        kept = target_probs[target_probs > 0]
        entropy = float(-(kept * np.log(kept)).sum())
        return float(target_probs[token_id] > min(self.epsilon, self.delta * float(np.exp(-entropy))))


class VerificationRunner:
    """Between the core and a Verification: point masses become rows."""

    def __init__(self, verification: Verification) -> None:
        self._verification = verification

    def accept_probability(self, token_id: int, target: F64, draft: F32) -> float:
        """The rule's answer."""
        return float(self._verification.accept_probability(token_id, target, self._row(token_id, target, draft)))

    def residual(self, token_id: int, target: F64, draft: F32) -> F64:
        """The rule's residual."""
        return np.asarray(self._verification.residual(target, self._row(token_id, target, draft)), np.float64)

    def _row(self, token_id: int, target: F64, draft: F32) -> F64:
        if len(draft):
            return draft.astype(np.float64)
        row = np.zeros(len(target), np.float64)
        row[token_id] = 1.0
        return row
