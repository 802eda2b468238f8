"""One continuation of a prompt, its log-probabilities, and news of it in a stream."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

from llmi.base.travel import Record
from llmi.outputs.speculation import SpecDecodeMetrics
from llmi.tools.calls import ToolCall

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.outputs.trace import DecodeTrace  # which loads NumPy

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclasses.dataclass(slots=True)
class Logprob:
    """One token's log-probability at one position.

    Attributes
    ----------
    logprob : float
        Of the model's own distribution: log softmax of the raw logits.
    processed_logprob : float
        Of the distribution that was drawn from; -inf where the token was cut.
    rank : int
        1 is the largest raw logit.
    decoded_token : str
    """

    logprob: float
    processed_logprob: float
    rank: int
    decoded_token: str


@dataclasses.dataclass(slots=True, eq=False)
class RequestMetrics(Record):
    """Times of one request, in seconds; NaN where they have not come so far.

    `time_per_output_token_s` is (end to end - first token) / (tokens - 1), one number a request;
    `inter_token_latencies_s` are the gaps between the first sample's tokens. The other times are those of its parts: `template_time_s` (a
    chat's template) and `tokenizer_time_s`, before the request arrives at the engine; then `queue_time_s`, `prefill_time_s` (from the first
    step to the first token) and `decode_time_s` (to the end), whose sum is `e2e_latency_s`. `detokenize_time_s` and `constraint_time_s`
    (masks, and before the arrival the grammar's compilation) are parts of these, and sums over all samples.
    """

    time_to_first_token_s: float
    inter_token_latencies_s: NDArray[np.float32]
    time_per_output_token_s: float
    e2e_latency_s: float
    queue_time_s: float
    num_preemptions: int
    template_time_s: float = math.nan
    tokenizer_time_s: float = math.nan
    prefill_time_s: float = math.nan
    decode_time_s: float = math.nan
    detokenize_time_s: float = math.nan
    constraint_time_s: float = math.nan


@dataclasses.dataclass(slots=True, eq=False)
class CompletionOutput(Record):
    """One continuation of a prompt.

    `stop_reason` is the stop string, the stop token id, a criterion's string, or None for end-of-text.
    `logprobs[i]` maps token ids to Logprob at output position i, the chosen token first. After a beam search, `cumulative_logprob` is the
    sum that was scored, `score` that sum over its length penalty, and `beam_indices[i]` the rank, among the running beams before position
    i, of the beam that token i continues. `complete` is False if the text is not a whole of what `structured_outputs` demands: it was cut
    off by max_tokens, a stop string, an abort or an error. In the finished outputs of chat(), `text` is all that was written, and
    `content`, `reasoning` and `tool_calls` are its parts (docs/tools.md); elsewhere these are None, None and []. Equality looks at
    everything but the speculation's statistics and the trace.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    spec_decode_metrics: SpecDecodeMetrics | None = dataclasses.field(default=None, compare=False)
    trace: DecodeTrace | None = dataclasses.field(default=None, compare=False)
    complete: bool = True
    score: float | None = None
    beam_indices: list[int] | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = dataclasses.field(default_factory=list)

    def as_message(self) -> dict[str, Any]:
        """An answer of chat() as the next message of the chat: content, reasoning_content and tool_calls."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text if self.content is None else self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.as_dict() for call in self.tool_calls]
        return message

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score={self.score:.4f}"
        return f"CompletionOutput(index={self.index}, text={short(self.text)}, {len(self.token_ids)} tokens, {self.finish_reason}{score})"


@dataclasses.dataclass(slots=True)
class StreamChunk:
    """News of one continuation: whole characters that no stop string can take back."""

    request_index: int
    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None


def short(text: str, limit: int = 60) -> str:
    """The text as a reader of a summary sees it: quoted, and cut to `limit` characters."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")
