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
    """log P(continuation | context).

    Attributes
    ----------
    logprob : float
        The sum in nats.
    is_greedy : bool
        Whether greedy decoding would say it.
    token_logprobs : array of float32 [num_tokens]
        Each token's.

    Examples
    --------
    >>> likelihood = llm.loglikelihood([("The sea", " is")])[0]
    >>> len(likelihood.token_logprobs), likelihood.logprob < 0
    (3, True)
    """

    logprob: float
    is_greedy: bool
    token_logprobs: NDArray[np.float32]


@dataclasses.dataclass(slots=True, eq=False)
class Perplexity(Record):
    """How likely a text is.

    Attributes
    ----------
    nll : float
        Its negative log-likelihood in nats.
    num_tokens : int
        Scored tokens.
    perplexity : float
        exp(nll / num_tokens).
    bits_per_byte : float
        Over the text's bytes in UTF-8.
    token_logprobs : array of float32 [num_tokens]
        Each token's, in nats.

    Examples
    --------
    >>> result = llm.perplexity(["The sea is wide."])[0]
    >>> bool(np.isclose(result.perplexity, np.exp(result.nll / result.num_tokens)))
    True
    """

    nll: float
    num_tokens: int
    perplexity: float
    bits_per_byte: float
    token_logprobs: NDArray[np.float32]
