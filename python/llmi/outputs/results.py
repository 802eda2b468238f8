"""Results: plain data that holds no engine, equal by tokens, text and log-probabilities."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from llmi.base.travel import Record
from llmi.errors import import_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from llmi import _core
    from llmi.errors import LlmiError
    from llmi.outputs.receipt import Receipt
    from llmi.outputs.trace import DecodeTrace
    from llmi.speculation.config import SpecDecodeMetrics
else:
    from llmi.base.lazy_numpy import np

FinishReason = Literal["stop", "length", "abort", "error"]


_MAX_SHOWN = 16  # sequences in a picture of the memory
_MAX_SHOWN_BLOCKS = 48


@dataclasses.dataclass(slots=True)
class Logprob:
    """One token's log-probability at one position.

    Attributes
    ----------
    logprob : float
        Of the model's own distribution: log softmax of the raw logits.
    processed_logprob : float
        Of the law that was drawn from; -inf where the token was cut.
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
    """Times of one request, in seconds.

    `time_per_output_token_s` is (end to end - first token) / (tokens - 1), one number a request;
    `inter_token_latencies_s` are the gaps between the first sample's tokens.
    """

    time_to_first_token_s: float
    inter_token_latencies_s: NDArray[np.float32]
    time_per_output_token_s: float
    e2e_latency_s: float
    queue_time_s: float
    num_preemptions: int


@dataclasses.dataclass(slots=True, eq=False)
class CompletionOutput(Record):
    """One continuation of a prompt.

    `stop_reason` is the stop string, the stop token id, a criterion's string, or None for end-of-text.
    `logprobs[i]` maps token ids to Logprob at output position i, the chosen token first. Equality looks at everything
    but the speculation's statistics and the trace.
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

    def __repr__(self) -> str:
        return f"CompletionOutput(index={self.index}, text={_short(self.text)}, {len(self.token_ids)} tokens, {self.finish_reason})"


@dataclasses.dataclass(slots=True, eq=False)
class RequestOutput:
    """The result of one prompt. `text` and `token_ids` are those of `outputs[0]`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int
    seed: int
    numerics_id: str
    params_resolved: dict[str, tuple[Any, str]]
    error: LlmiError | None
    _receipt_source: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def text(self) -> str:
        """Text of the first continuation."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the first continuation."""
        return self.outputs[0].token_ids

    def receipt(self) -> Receipt:
        """The facts that another machine needs to reproduce this output bit for bit, as JSON."""
        from llmi.outputs.receipt import Receipt

        return Receipt.of(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RequestOutput):
            return NotImplemented
        return (
            self.prompt_token_ids == other.prompt_token_ids
            and self.outputs == other.outputs
            and self.prompt_logprobs == other.prompt_logprobs
        )

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        """All fields; Python hooks among the parameters, which other processes may not have, become their names."""
        state = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        state["params_resolved"] = {name: (named_hooks(name, value), source) for name, (value, source) in self.params_resolved.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        lines = [f"RequestOutput({self.request_id}, prompt={_short(self.prompt or '')}, {len(self.prompt_token_ids)} tokens)"]
        for output in self.outputs[:2]:
            lines.append(f"  [{output.index}] {_short(output.text, 160)} ({len(output.token_ids)} tokens, {output.finish_reason})")
        if len(self.outputs) > 2:
            lines.append(f"  ... and {len(self.outputs) - 2} more")
        if self.error is not None:
            lines.append(f"  error: {_short(str(self.error), 160)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from llmi.outputs.display import request_html

        return request_html(self)


class Outputs(list[RequestOutput]):
    """A list of results with a rich display."""

    @property
    def texts(self) -> list[str]:
        """The first continuation's text of each prompt."""
        return [output.text for output in self]

    def to_pandas(self) -> Any:
        """One row a continuation (needs pandas)."""
        pandas = import_extra("pandas", "pandas")
        rows = [
            {
                "request_id": request.request_id,
                "prompt": request.prompt,
                "index": output.index,
                "text": output.text,
                "num_prompt_tokens": len(request.prompt_token_ids),
                "num_tokens": len(output.token_ids),
                "finish_reason": output.finish_reason,
                "stop_reason": output.stop_reason,
                "cumulative_logprob": output.cumulative_logprob,
                "time_to_first_token_s": request.metrics.time_to_first_token_s,
                "time_per_output_token_s": request.metrics.time_per_output_token_s,
                "e2e_latency_s": request.metrics.e2e_latency_s,
                "seed": request.seed,
            }
            for request in self
            for output in request.outputs
        ]
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        shown = [repr(output) for output in self[:3]]
        if len(self) > 3:
            shown.append(f"... and {len(self) - 3} more")
        return "[" + ",\n ".join(shown) + "]"

    def _repr_html_(self) -> str:
        from llmi.outputs.display import outputs_html

        return outputs_html(self)


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


@dataclasses.dataclass(slots=True)
class ModelInfo:
    """The loaded model. `kv_bytes_per_token` counts all layers; `sha256` is computed when it is first read."""

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int
    weight_bytes: int
    kv_bytes_per_token: int
    numerics_id: str
    path: str
    _digest: Callable[[], str] = dataclasses.field(repr=False, compare=False)

    @property
    def sha256(self) -> str:
        """SHA-256 of the model file; of several files: of the lines "digest  name", sorted by the names.

        It is that of what was loaded. Raises ModelFileError if a file was written to since then.
        """
        return self._digest()


@dataclasses.dataclass(slots=True, repr=False, eq=False)
class SequenceBlocks(Record):
    """One sequence's blocks: page ids by KV group (-1: given back behind the window), and how many hold each page."""

    name: str
    num_tokens: int
    tables: list[NDArray[np.int32]]
    references: list[NDArray[np.int32]]

    def __repr__(self) -> str:
        """A letter a block: # its own, = shared, . given back."""
        pictures = []
        for references in self.references:
            text = "".join("." if count == 0 else "#" if count == 1 else "=" for count in references[:_MAX_SHOWN_BLOCKS])
            pictures.append(text + ("..." if len(references) > _MAX_SHOWN_BLOCKS else ""))
        return f"{self.name}: {self.num_tokens:,} tokens  {' | '.join(pictures)}"


@dataclasses.dataclass(slots=True, repr=False, eq=False)
class MemoryReport(Record):
    """The KV cache now. Blocks are pages of the pool; `wasted_share` is of the slots in use."""

    num_blocks: int
    num_free_blocks: int
    num_shared_blocks: int
    wasted_share: float
    weight_bytes: int
    kv_bytes: int
    sequences: list[SequenceBlocks] = dataclasses.field(default_factory=list)

    def __repr__(self) -> str:
        used = self.num_blocks - self.num_free_blocks
        lines = [
            f"MemoryReport({used:,} of {self.num_blocks:,} blocks in use, {self.num_shared_blocks:,} shared, {self.wasted_share:.1%} of their"
            f" slots empty; KV {self.kv_bytes / 1e6:,.0f} MB, weights {self.weight_bytes / 1e6:,.0f} MB)"
        ]
        lines += [f"  {entry!r}" for entry in self.sequences[:_MAX_SHOWN]]
        if len(self.sequences) > _MAX_SHOWN:
            lines.append(f"  ... and {len(self.sequences) - _MAX_SHOWN} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from llmi.outputs.display import memory_html

        return memory_html(self)


def make_memory_report(stats: Mapping[str, Any], tables: _core.MemoryTables, weight_bytes: int, page_bytes: int) -> MemoryReport:
    """From the core's counters and block tables."""
    references = tables.references
    sequences = []
    for entry in sorted(tables.sequences, key=lambda entry: (entry.request_id < 0, entry.request_id, entry.sample_index)):
        is_request = entry.request_id >= 0
        name = f"request {entry.request_id}" + (f" [{entry.sample_index}]" if entry.sample_index else "") if is_request else "sequence"
        arrays = [np.asarray(group, np.int32) for group in entry.tables]
        sequences.append(
            SequenceBlocks(name, entry.num_tokens, arrays, [np.where(a < 0, 0, references[a]).astype(np.int32) for a in arrays])
        )
    return MemoryReport(
        num_blocks=stats["num_pages"], num_free_blocks=stats["num_free_pages"], num_shared_blocks=stats["num_shared_pages"],
        wasted_share=stats["wasted_share"], weight_bytes=weight_bytes, kv_bytes=stats["num_pages"] * page_bytes, sequences=sequences,
    )  # fmt: skip


@dataclasses.dataclass(slots=True)
class StreamChunk:
    """News of one continuation: whole characters that no stop string can take back."""

    request_index: int
    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None


def named_hooks(name: str, value: Any) -> Any:
    """A parameter's value, with names instead of Python hooks."""
    if name in ("logits_processors", "stopping_criteria"):
        return tuple(_hook_name(hook) for hook in value)
    if name in ("sampler", "structured_outputs") and value is not None:
        return _hook_name(value)
    return value


def _hook_name(hook: Any) -> str:
    return hook if isinstance(hook, str) else str(getattr(hook, "__qualname__", type(hook).__qualname__))


def _short(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else text[: limit - 3] + "...")
