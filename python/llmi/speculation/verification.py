"""Verification: how drafted tokens are accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from llmi import _core
from llmi.base.kinds import Listed, Real, Whole, parse
from llmi.base.travel import Alike
from llmi.errors import call_core
from llmi.params.sampling import SamplingParams
from llmi.speculation.drafters import Draft

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    I32 = NDArray[np.int32]
    F32 = NDArray[np.float32]
    F64 = NDArray[np.float64]
else:
    from llmi.base.lazy_numpy import np


class Verification:
    """How drafted tokens are accepted. The distribution of what is emitted can be enumerated: no random numbers inside.

    Override `accept_probability`, and `residual` if need be; or `verify`, for everything.

    Attributes
    ----------
    lossless : bool
        Set it to True if the distribution stays the target's.

    Examples
    --------
    >>> class Strict(Verification):
    ...     "Accepts only what the target is nearly sure of."
    ...     def accept_probability(self, token_id, target_probs, draft_probs):
    ...         return float(target_probs[token_id] > 0.9)
    >>> llmi.testing.verification_law(Strict(), target=[0.5, 0.5], draft=[0.75, 0.25])  # it is lossy
    {1: Fraction(1, 1)}
    """

    lossless: ClassVar[bool] = False

    def accept_probability(self, token_id: int, target_probs: F64, draft_probs: F64) -> float:
        """Probability of accepting `token_id`, in [0, 1].

        Parameters
        ----------
        token_id : int
        target_probs : float64 array [vocab_size]
            The processed distribution at this position, and what earlier siblings left of it.
        draft_probs : float64 array [vocab_size]
            The distribution that the token was drawn from.
        """
        target, draft = target_probs[token_id], draft_probs[token_id]
        ratio: float = 1 if target >= draft else target / draft  # a Fraction stays one: see testing.verification_law
        return ratio

    def residual(self, target_probs: F64, draft_probs: F64) -> F64:
        """The rest of the target after a rejection: by default the normalised positive part of target - draft."""
        left: F64 = np.maximum(target_probs - draft_probs, 0)
        total = left.sum()
        return left / total if total > 0 else left

    def verify(self, context: VerifyContext) -> tuple[Iterable[int], int]:
        """Judges a whole draft: (accepted node indices from root to leaf, the token that follows the last of them).

        Where this is overridden the other two are not called. Processors are asked about drafted tokens too, on a copy of
        their state, and again about those that are emitted.
        """
        raise NotImplementedError

    @property
    def judges_whole_drafts(self) -> bool:
        """Whether `verify` is overridden."""
        return type(self).verify is not Verification.verify


class Rows(Protocol):
    """What the core shows of a draft: its DraftRows, or what stands for them in llmi.testing.verification_law. Node -1 is the root."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def parents(self) -> Sequence[int]: ...
    @property
    def laws(self) -> Iterable[ArrayLike]: ...
    def logits(self, node: int) -> F32: ...
    def target(self, node: int) -> F64: ...
    def target_token(self, node: int) -> int: ...
    def uniform(self, node: int, lane: int) -> float: ...
    def draw(self, probs: F64, node: int) -> int: ...


class VerifyContext:
    """A draft and the target's rows, during one call of `Verification.verify`.

    Rows are numbered from the root: row 0 follows the last committed token, row i + 1 follows node i.

    Attributes
    ----------
    draft : Draft
        Its draft_probs are None for point masses.
    token_ids : int32 array [len]
        Prompt and output so far.
    sampling_params : SamplingParams

    Examples
    --------
    >>> class Same(Verification):
    ...     "Accepts a chain as long as plain decoding would have drawn its tokens."
    ...     lossless = True
    ...     def verify(self, context):
    ...         path = []
    ...         while len(path) < len(context.draft) and context.draft.token_ids[len(path)] == context.target_token(len(path)):
    ...             path.append(len(path))
    ...         return path, context.target_token(len(path))
    >>> config = SpeculativeConfig(PromptLookup(), 4, verification=Same())
    >>> params = SamplingParams(max_tokens=16, seed=1)
    >>> llm.generate("one two one", params, speculative_config=config).texts == llm.generate("one two one", params).texts
    True
    """

    def __init__(self, rows: Rows, token_ids: I32, sampling_params: SamplingParams) -> None:
        self._rows = rows
        self.draft = Draft(rows.token_ids, rows.parents, [np.asarray(row, np.float32) for row in rows.laws] or None)
        self.token_ids = token_ids
        self.sampling_params = sampling_params

    @property
    def target_logits(self) -> F32:
        """The model's raw logits [num_nodes + 1, vocab_size]."""
        return np.stack([call_core(self._rows.logits, row - 1) for row in range(len(self.draft) + 1)])

    def target_probs(self, row: int) -> F64:
        """The processed distribution [vocab_size] of a row, as plain decoding would have it on this path."""
        return call_core(self._rows.target, row - 1)

    def target_token(self, row: int) -> int:
        """The token that plain decoding emits at a row."""
        return call_core(self._rows.target_token, row - 1)

    def uniform(self, row: int, lane: int = 0) -> float:
        """A coin in (0, 1), by row and lane: a function of seed, position and verification round."""
        return call_core(self._rows.uniform, row - 1, lane)

    def draw(self, probs: F64, row: int) -> int:
        """A token from `probs` [vocab_size] for this row; they need not sum to 1. The same row draws with the same noise."""
        return call_core(self._rows.draw, np.asarray(probs, np.float64), row - 1)


class Typical(Alike, Verification):
    """Accepts what is typical of the target: probability above min(epsilon, delta exp(-entropy)) (Cai et al., Medusa, 2024).

    Lossy: likely tokens become likelier.

    Parameters
    ----------
    epsilon, delta : float
        As above.

    Examples
    --------
    >>> config = SpeculativeConfig(PromptLookup(), 4, verification=Typical(epsilon=0.1))
    >>> output = llm.generate("one two one two one", max_tokens=16, seed=1, speculative_config=config)[0]
    >>> output.outputs[0].spec_decode_metrics.lossless
    False
    """

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        self.epsilon: float = parse(Real(0, 1, "a number in (0, 1]", open_low=True), "epsilon", epsilon)
        self.delta: float = parse(Real(0, 1e30, "a positive number", open_low=True), "delta", delta)

    def accept_probability(self, token_id: int, target_probs: F64, draft_probs: F64) -> float:
        kept = target_probs[target_probs > 0]
        entropy = float(-(kept * np.log(kept)).sum())
        return float(target_probs[token_id] > min(self.epsilon, self.delta * float(np.exp(-entropy))))


_NODES = Listed(Whole(0, 2**31 - 1, "a node index, an integer of 0 or more"), "a list of node indices", 1 << 16)
_TOKEN = Whole(0, 2**31 - 1, "a token id, an integer of 0 or more")


class Verdict(NamedTuple):
    """What the core gets: the accepted nodes from root to leaf, and the token after the last of them."""

    path: list[int]
    next_token: int


class VerificationRunner:
    """Calls a Verification for the core. Point masses are passed as full rows of probabilities."""

    def __init__(self, verification: Verification, sampling_params: SamplingParams) -> None:
        self._verification = verification
        self._sampling_params = sampling_params

    def verify(self, rows: _core.DraftRows, token_ids: I32) -> Verdict:
        """The verdict on a draft."""
        path, next_token = self._verification.verify(VerifyContext(rows, token_ids, self._sampling_params))
        return Verdict(parse(_NODES, "accepted", path), parse(_TOKEN, "next token", next_token))

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
