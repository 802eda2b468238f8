"""Results of scoring: log-likelihoods and perplexities."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from llmi.base.travel import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclasses.dataclass(slots=True, eq=False)
class LogLikelihood(Record):
    """log P(continuation | context): the sum, whether greedy decoding would say it, and each token's [num_tokens]."""

    logprob: float
    is_greedy: bool
    token_logprobs: NDArray[np.float32]


@dataclasses.dataclass(slots=True, eq=False)
class Perplexity(Record):
    """Negative log-likelihood of a text in nats, over `num_tokens` scored tokens."""

    nll: float
    num_tokens: int
    perplexity: float
    bits_per_byte: float
    token_logprobs: NDArray[np.float32]
