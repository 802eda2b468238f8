"""The best of several continuations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

from llmi.base.kinds import Real, entries_of, parse, refuse
from llmi.errors import InvalidParamsError
from llmi.outputs.results import Outputs, RequestOutput

_SCORE = Real(-math.inf, math.inf, "a number, not NaN")


def mean_logprob(output: RequestOutput) -> float:
    """The mean log-probability of the first continuation's tokens, in nats; -inf for one without tokens."""
    first = output.outputs[0]
    if not first.token_ids:
        return -math.inf
    if first.cumulative_logprob is None:
        raise InvalidParamsError("the mean log-probability needs log-probabilities: generate with logprobs=0, or give a score", "score")
    return first.cumulative_logprob / len(first.token_ids)


def best_of(outputs: Iterable[RequestOutput], score: Callable[[RequestOutput], float] | None = None) -> Outputs:
    """Each prompt's result with the best continuation alone; the first of those that are equally good.

    Parameters
    ----------
    outputs : list of RequestOutput
        As `generate` and `chat` return them with n > 1; they stay as they are. A result that ended with an error before its first
        token is kept, and not scored.
    score : callable, optional
        Takes a RequestOutput that holds one continuation, so `output.text` and `output.token_ids` are its own; returns a number, the larger
        the better. None: the mean log-probability of its tokens, which needs `logprobs=0` or more.

    Returns
    -------
    Outputs
        Each with one continuation, whose `index` says which of the n it was.

    Raises
    ------
    InvalidParamsError
        What is no list of results; a score that is no number or NaN; log-probabilities that are not there.

    Examples
    --------
    >>> outputs = llm.generate(["The sea is", "The sky is"], n=4, temperature=0.8, logprobs=0, max_tokens=8, seed=1)
    >>> len(best_of(outputs).texts)
    2
    >>> shortest = best_of(outputs, lambda output: -len(output.text)).texts
    """
    entries = entries_of("outputs", outputs)
    if entries is None or not all(isinstance(entry, RequestOutput) for entry in entries):
        raise refuse("outputs", "a list of RequestOutput", outputs)
    if score is not None and not callable(score):
        raise refuse("score", "a function of a RequestOutput, or None", score)
    return Outputs(_best(output, score or mean_logprob) for output in entries)


def _best(output: RequestOutput, score: Callable[[RequestOutput], float]) -> RequestOutput:
    several = len(output.outputs) > 1
    source = {**output._receipt_source, "chosen": True} if several else output._receipt_source
    single = [dataclasses.replace(output, outputs=[entry], _receipt_source=source) for entry in output.outputs]
    if not single:
        return dataclasses.replace(output)
    if output.error is not None and not any(entry.token_ids for entry in output.outputs):
        return single[0]
    return max(single, key=lambda one: float(parse(_SCORE, "score", score(one))))
