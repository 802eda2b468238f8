"""Results: plain data that holds no engine, equal by tokens, text and log-probabilities."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from llmi.errors import LlmiError, import_extra
from llmi.outputs.completion import CompletionOutput, Logprob, RequestMetrics, short
from llmi.params.structured import StructuredOutputsParams

if TYPE_CHECKING:
    import pandas

    from llmi.outputs.receipt import Receipt

_MAX_SHOWN = 20  # results in a notebook


@dataclasses.dataclass(slots=True, eq=False)
class RequestOutput:
    """The result of one prompt. `text` and `token_ids` are those of `outputs[0]`.

    Attributes
    ----------
    request_id : str
    prompt : str or None
        None where token ids were given.
    prompt_token_ids : list of int
    prompt_logprobs : list of dict, or None
        By position of the prompt; None for its first token.
    outputs : list of CompletionOutput
    finished : bool
    metrics : RequestMetrics
    num_cached_tokens : int
        Of the prompt, found in the prefix cache.
    seed : int
        The one that was used.
    numerics_id : str
    params_resolved : dict
        By parameter its value, and where that came from.
    error : LlmiError or None
        With `on_error="return"` what ended the request.

    Examples
    --------
    >>> output = llm.generate("The sea is", max_tokens=8, seed=1)[0]
    >>> output.text == output.outputs[0].text, output.seed, output.params_resolved["max_tokens"]
    (True, 1, (8, 'user'))
    """

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
        from llmi.outputs.receipt import Receipt  # noqa: PLC0415 (loads NumPy)

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
        lines = [f"RequestOutput({self.request_id}, prompt={short(self.prompt or '')}, {len(self.prompt_token_ids)} tokens)"]
        for output in self.outputs[:2]:
            lines.append(f"  [{output.index}] {short(output.text, 160)} ({len(output.token_ids)} tokens, {output.finish_reason})")
        if len(self.outputs) > 2:
            lines.append(f"  ... and {len(self.outputs) - 2} more")
        if self.error is not None:
            lines.append(f"  error: {short(str(self.error), 160)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from llmi.outputs.display import request_html  # noqa: PLC0415 (a display alone needs it)

        return request_html(self)


class Outputs(list[RequestOutput]):
    """A list of results with a rich display.

    Examples
    --------
    >>> outputs = llm.generate(["The sea is", "The sky is"], max_tokens=8, seed=1)
    >>> outputs.texts == [output.text for output in outputs]
    True
    """

    @property
    def texts(self) -> list[str]:
        """The first continuation's text of each prompt."""
        return [output.text for output in self]

    def to_pandas(self) -> pandas.DataFrame:
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
                "score": output.score,
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
        more = f"<div>... and {len(self) - _MAX_SHOWN} more</div>" if len(self) > _MAX_SHOWN else ""
        return "".join(request._repr_html_() for request in self[:_MAX_SHOWN]) + more


def named_hooks(name: str, value: object) -> object:
    """A parameter's value, with names instead of Python hooks."""
    if name in ("logits_processors", "stopping_criteria") and isinstance(value, list | tuple):
        return tuple(_hook_name(hook) for hook in value)
    if isinstance(value, StructuredOutputsParams):
        return value.as_dict()
    if name in ("sampler", "structured_outputs") and value is not None:
        return _hook_name(value)
    return value


def _hook_name(hook: object) -> str:
    return hook if isinstance(hook, str) else str(getattr(hook, "__qualname__", type(hook).__qualname__))
