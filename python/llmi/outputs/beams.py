"""Results of LLM.beam_search, in vLLM's shape."""

from __future__ import annotations

import dataclasses

from llmi.base.travel import Record
from llmi.errors import LlmiError
from llmi.outputs.completion import FinishReason, Logprob, short
from llmi.outputs.results import RequestOutput


@dataclasses.dataclass(slots=True, eq=False)
class BeamSearchSequence(Record):
    """One hypothesis. `tokens` are those of prompt and output, `token_ids` and `text` of the output alone."""

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
    """The hypotheses of one prompt, best first; with `on_error="return"` also what ended its search."""

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
