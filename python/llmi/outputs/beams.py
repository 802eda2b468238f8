"""Results of LLM.beam_search, in vLLM's shape."""

from __future__ import annotations

import dataclasses

from llmi.base.travel import Record
from llmi.errors import LlmiError
from llmi.outputs.completion import FinishReason, Logprob, short
from llmi.outputs.results import RequestOutput


@dataclasses.dataclass(slots=True, eq=False)
class BeamSearchSequence(Record):
    """One hypothesis.

    Attributes
    ----------
    tokens : list of int
        Those of prompt and output.
    token_ids : list of int
        Those of the output alone.
    logprobs : list of dict
        By position of the output: log-probabilities by token id.
    cum_logprob : float
        The sum that was scored, in nats.
    score : float
        That sum over its length penalty; hypotheses are ordered by it.
    beam_indices : list of int
        By position: the rank, among the running beams before it, of the beam that its token continues.
    text : str
        Of the output alone.
    finish_reason : str or None
        "stop" or "length"; None while it runs.

    Examples
    --------
    >>> best = llm.beam_search(["The sea is"], BeamSearchParams(beam_width=3, max_tokens=8))[0].sequences[0]
    >>> len(best.token_ids) == len(best.beam_indices)
    True
    """

    tokens: list[int]
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float
    score: float
    beam_indices: list[int]
    text: str
    finish_reason: FinishReason | None

    def __repr__(self) -> str:
        return f"BeamSearchSequence(score={self.score:.4f}, text={short(self.text)}, {len(self.token_ids)} tokens, {self.finish_reason})"


@dataclasses.dataclass(slots=True, eq=False)
class BeamSearchOutput(Record):
    """The result of one prompt.

    Attributes
    ----------
    sequences : list of BeamSearchSequence
        The hypotheses, best first.
    error : LlmiError or None
        With `on_error="return"` what ended its search.

    Examples
    --------
    >>> output = llm.beam_search(["The sea is"], BeamSearchParams(beam_width=3, max_tokens=8))[0]
    >>> len(output.sequences)
    3
    """

    sequences: list[BeamSearchSequence]
    error: LlmiError | None = None

    @classmethod
    def of(cls, output: RequestOutput) -> BeamSearchOutput:
        """From a result of `LLM.generate` with BeamSearchParams; what has no score did not come from a beam search and is left out."""
        return cls(
            [
                BeamSearchSequence(
                    tokens=[*output.prompt_token_ids, *completion.token_ids],
                    token_ids=completion.token_ids,
                    logprobs=completion.logprobs or [],
                    cum_logprob=completion.cumulative_logprob or 0.0,
                    score=completion.score,
                    beam_indices=completion.beam_indices or [],
                    text=completion.text,
                    finish_reason=completion.finish_reason,
                )
                for completion in output.outputs
                if completion.score is not None
            ],
            output.error,
        )
