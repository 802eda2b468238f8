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

    Examples
    --------
    >>> output = llm.generate("The sea is", max_tokens=4, top_k=1, logprobs=2, seed=1)[0]
    >>> chosen = output.outputs[0].logprobs[0][output.token_ids[0]]
    >>> chosen.rank, chosen.processed_logprob
    (1, 0.0)
    """

    logprob: float
    processed_logprob: float
    rank: int
    decoded_token: str


@dataclasses.dataclass(slots=True, eq=False)
class RequestMetrics(Record):
    """Times of one request, in seconds; NaN where they have not come so far.

    Attributes
    ----------
    time_to_first_token_s, e2e_latency_s : float
        From the arrival at the engine.
    inter_token_latencies_s : array of float32
        The gaps between the first sample's tokens.
    time_per_output_token_s : float
        (end to end - first token) / (tokens - 1), one number a request.
    num_preemptions : int
    template_time_s, tokenizer_time_s : float
        A chat's template, and the tokenizer, before the request arrives at the engine.
    queue_time_s, prefill_time_s, decode_time_s : float
        Until the first step, from there to the first token, and to the end; their sum is `e2e_latency_s`.
    detokenize_time_s, constraint_time_s : float
        Parts of these, summed over all samples; the second is masks, and before the arrival the grammar's compilation.

    Examples
    --------
    >>> metrics = llm.generate("The sea is", max_tokens=8, seed=1)[0].metrics
    >>> 0 < metrics.time_to_first_token_s <= metrics.e2e_latency_s
    True
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
    """One continuation of a prompt. Equality looks at everything but the speculation's statistics and the trace.

    Attributes
    ----------
    index : int
        Among the prompt's n continuations.
    text : str
        In the finished outputs of chat() all that was written.
    token_ids : list of int
    cumulative_logprob : float or None
        The sum of the chosen tokens' log-probabilities in nats; after a beam search the sum that was scored.
    logprobs : list of dict, or None
        logprobs[i] maps token ids to Logprob at output position i, the chosen token first.
    finish_reason : str or None
        "stop", "length", "abort" and others; None while it runs.
    stop_reason : int, str or None
        The stop string, the stop token id, a criterion's string, or None for end-of-text.
    spec_decode_metrics : SpecDecodeMetrics or None
    trace : DecodeTrace or None
    complete : bool
        False if the text is not a whole of what `structured_outputs` demands: it was cut off by max_tokens, a stop string, an abort or an
        error.
    score : float or None
        After a beam search `cumulative_logprob` over its length penalty.
    beam_indices : list of int, or None
        After a beam search: the rank, among the running beams before position i, of the beam that token i continues.
    content, reasoning : str or None
        Parts of a chat's text (docs/tools.md); elsewhere None.
    tool_calls : list of ToolCall
        Likewise; elsewhere [].

    Examples
    --------
    >>> completion = llm.generate("The sea is", max_tokens=8, ignore_eos=True, seed=1)[0].outputs[0]
    >>> completion.finish_reason, len(completion.token_ids)
    ('length', 8)
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
    """News of one continuation.

    Attributes
    ----------
    request_index : int
        Of the prompt.
    index : int
        Of the continuation among the prompt's n.
    text : str
        Whole characters that no stop string can take back.
    token_ids : list of int
    finish_reason : str or None
        None while it runs.

    Examples
    --------
    >>> for chunk in llm.stream("The sea is", max_tokens=8, ignore_eos=True, seed=1):
    ...     last = chunk
    >>> last.finish_reason
    'length'
    """

    request_index: int
    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None


def short(text: str, limit: int = 60) -> str:
    """The text as a reader of a summary sees it: quoted, and cut to `limit` characters."""
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")
