"""From the core's finished requests to results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base import lazy_numpy
from llmi.base.travel import strict_json
from llmi.errors import ConstraintError, DraftError, HookError, LlmiError, NonFiniteLogitsError, from_core
from llmi.hooks.runners import RequestHooks
from llmi.outputs.completion import CompletionOutput, FinishReason, Logprob, RequestMetrics
from llmi.outputs.results import RequestOutput
from llmi.params.beams import BEAMS, SHARED
from llmi.params.sampling import FIELDS, HOOKS, SamplingParams
from llmi.params.structured import StructuredOutputsParams
from llmi.requests.metrics import MetricsLog
from llmi.requests.submission import Submission
from llmi.structured import library
from llmi.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.outputs.trace import DecodeTrace
else:
    from llmi.base.lazy_numpy import np


#: The counts of outputs without drafts, and of those whose counts come at their end. Nobody writes to it.
_NO_DRAFTS = _core.SpeculationStats()
#: Parameters that change the model's own numbers.
_ON_MODEL = ("steering", "sparse_attention", "guidance_scale", "negative_prompt", "dola_layers")


class PartialOutput:
    """The part of one continuation that has arrived; it has the core's field names."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[_core.TokenLogprobs] = []
        self.cumulative_logprob = 0.0
        self.score = math.nan
        self.beam_indices: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.trace: dict[str, NDArray[Any]] = {}
        self.candidates: dict[str, NDArray[Any]] = {}
        self.speculation = _NO_DRAFTS

    def add(self, event: _core.OutputEvent) -> None:
        """Takes in an event's news."""
        self.token_ids += event.token_ids
        self.text += event.text
        if entries := event.logprobs:
            self.logprobs += entries
            self.cumulative_logprob += sum(entry.logprobs[0] for entry in entries)
        self.finish_reason = event.finish_reason


@dataclasses.dataclass(slots=True)
class Known:
    """A request without its continuations: what is known of it."""

    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    metrics: RequestMetrics
    num_cached_tokens: int


class ResultBuilder:
    """Turns finished core requests into RequestOutputs."""

    def __init__(self, tokenizer: Tokenizer, numerics_id: str, receipt_source: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.numerics_id = numerics_id
        self.receipt_source = receipt_source
        self.log = MetricsLog()
        self._token_texts: dict[int, str] = {}  # of tokens that logprobs have named; at most the vocabulary

    def finished(self, submission: Submission) -> None:
        """Takes a finished request's times into the aggregate."""
        self.log.add(request_metrics(submission, submission.built))

    def output(self, submission: Submission, partial: Mapping[int, PartialOutput] | None = None) -> RequestOutput:
        """The result of a submission; with `partial`, what has arrived of one that still runs."""
        request, params = submission.request, submission.params
        samples: Sequence[PartialOutput | _core.SampleOutput]
        if partial is not None:
            samples = [partial.get(index) or PartialOutput() for index in range(params.n)]
            request = None
        else:
            samples = request.samples if request is not None else []
        outputs = [self.completion(index, sample, submission) for index, sample in enumerate(samples)]
        if partial is None:
            read_tools(submission, outputs)
        error = submission.error or (self.error(submission) if partial is None else None)
        if not outputs:
            ended: FinishReason = "error" if error is not None or submission.beams is None else "abort"  # before a hypothesis was finished
            outputs = [CompletionOutput(index, "", [], None, None, ended, None) for index in range(params.n)]
        entries = None if request is None else request.prompt_logprobs
        known = Known(
            finished=partial is None,
            prompt_logprobs=None if params.prompt_logprobs is None or entries is None else self.prompt_logprobs(entries),
            metrics=request_metrics(submission, request),
            num_cached_tokens=0 if request is None else request.num_cached_tokens,
        )
        return self.request_output(submission, outputs, known, error)

    def request_output(
        self, submission: Submission, outputs: list[CompletionOutput], known: Known, error: LlmiError | None = None
    ) -> RequestOutput:
        """A result with these continuations."""
        return RequestOutput(
            request_id=submission.hooks.request_id,
            prompt=submission.prompt,
            prompt_token_ids=submission.prompt_token_ids,
            prompt_logprobs=known.prompt_logprobs,
            outputs=outputs,
            finished=known.finished,
            metrics=known.metrics,
            num_cached_tokens=known.num_cached_tokens,
            seed=submission.seed,
            numerics_id=self.numerics_id,
            params_resolved=submission.resolved,
            error=error,
            _receipt_source=self._receipt_source(submission),
        )

    def _receipt_source(self, submission: Submission) -> dict[str, Any]:
        """What a receipt holds besides tokens: the same for all outputs of a request."""
        if not submission.receipt_source:
            submission.receipt_source = {
                **self.receipt_source,
                "params": plain_params(submission),
                "hooks": submission.hooks.has_code_of_user,
                "grammar_engine": _grammar_engine(submission.params),
                "verification": "coupled" if submission.speculation is None else submission.speculation.verification_name,
            }
        return submission.receipt_source

    def error(self, submission: Submission) -> LlmiError | None:
        """Why a request that has ended failed."""
        if submission.request is None or submission.request.error is None:
            return None
        if isinstance(submission.request.error, LlmiError):  # of another process, which has done the rest
            return submission.request.error
        error = from_core(submission.request.error)
        hooks = submission.hooks
        if isinstance(error, ConstraintError) and hooks.dropped is not None:
            error.args = (f"{error} (the last one: {hooks.dropped})", *error.args[1:])
            error.__cause__ = hooks.dropped
            return error
        if isinstance(hooks.error, NonFiniteLogitsError) and isinstance(error, HookError):
            return NonFiniteLogitsError(f"{hooks.failed_hook}: {hooks.error}", hooks.error.fault, hooks.error.parameter)
        if isinstance(error, NonFiniteLogitsError):
            cause = next((name for name in _ON_MODEL if submission.resolved.get(name, (None, ""))[1] == "user"), None)
            if cause is not None:
                error.fault, error.parameter = "request", cause
        if hooks.error is not None and isinstance(error, HookError):  # unless the engine was closed meanwhile
            kind = DraftError if hooks.failed_in_drafter else ConstraintError if isinstance(hooks.error, ConstraintError) else HookError
            own = type(hooks.error) is HookError  # the hook returned a value of the wrong kind
            what = (
                f"{hooks.failed_hook}: {hooks.error}" if own else f"{hooks.failed_hook} raised {type(hooks.error).__name__}: {hooks.error}"
            )
            error = kind(what, hooks.failed_hook, hooks.request_id)
            error.__cause__ = hooks.error
        return error

    def completion(
        self, index: int, sample: PartialOutput | _core.SampleOutput, submission: Submission, whole_ids: list[int] | None = None
    ) -> CompletionOutput:
        """A continuation, of what the core has of it or of what has arrived. whole_ids: all its tokens, where the sample has a part."""
        params, speculation, is_beam = submission.params, submission.speculation, submission.beams is not None
        with_logprobs = params.logprobs is not None
        token_ids = sample.token_ids if whole_ids is None else whole_ids
        return CompletionOutput(
            index=index,
            text=sample.text,
            token_ids=list(sample.token_ids),
            cumulative_logprob=sample.cumulative_logprob if with_logprobs or is_beam else None,
            logprobs=self.entries(sample.logprobs) if with_logprobs else None,
            finish_reason=sample.finish_reason,
            stop_reason=submission.stop_names.get(sample.stop_reason, sample.stop_reason),
            spec_decode_metrics=None if speculation is None else speculation.metrics(sample.speculation),
            trace=self._trace(sample, token_ids, submission) if submission.trace and sample.trace else None,
            complete=_is_complete(token_ids, sample.finish_reason, submission.hooks),
            score=sample.score if is_beam and not math.isnan(sample.score) else None,
            beam_indices=list(sample.beam_indices) if is_beam else None,
        )

    def _trace(self, sample: PartialOutput | _core.SampleOutput, token_ids: list[int], submission: Submission) -> DecodeTrace:
        constraint, begin = submission.hooks.constraint, len(submission.prompt_token_ids)
        masks = None if constraint is None else constraint.allowed_counts(token_ids, begin, len(self.tokenizer.vocab_bytes))
        return _make_trace(sample.trace, sample.candidates, self.tokenizer, masks)

    def prompt_logprobs(self, rows: list[_core.TokenLogprobs]) -> list[dict[int, Logprob] | None]:
        """The log-probabilities of each prompt token; the first has none."""
        return [None, *self.entries(rows)]

    def entries(self, rows: list[_core.TokenLogprobs]) -> list[dict[int, Logprob]]:
        """The log-probabilities of each position, by token id."""
        return [self._entries(row) for row in rows]

    def _entries(self, entry: _core.TokenLogprobs) -> dict[int, Logprob]:
        result: dict[int, Logprob] = {}
        texts = self._token_texts
        for token, raw, processed, rank in zip(entry.token_ids, entry.logprobs, entry.processed_logprobs, entry.ranks, strict=True):
            if token not in result:
                text = texts.get(token)
                result[token] = Logprob(raw, processed, rank, self._text_of(token) if text is None else text)
        return result

    def _text_of(self, token: int) -> str:
        known = token < len(self.tokenizer.vocab_bytes)
        text = self._token_texts[token] = self.tokenizer.decode_part([token], skip_special_tokens=False) if known else ""
        return text


def _is_complete(token_ids: list[int], finish_reason: FinishReason | None, hooks: RequestHooks) -> bool:
    """Whether an output that has ended is a whole of its constraint's language; True without a constraint."""
    if hooks.constraint is None:
        return True
    if finish_reason not in ("stop", "length"):
        return False
    return hooks.constraint.completes(token_ids)


def _grammar_engine(params: SamplingParams) -> str:
    """Name and version of the library whose masks the tokens depend on; "" without a grammar."""
    return f"llguidance {library.version_text()}" if isinstance(params.structured_outputs, StructuredOutputsParams) else ""


def plain_params(submission: Submission) -> dict[str, Any]:
    """Parameters as strict JSON, hooks and the seed left out: all of them, whatever a model's or a later version's defaults are.

    A negative prompt is its token ids, whatever it was given as.
    """
    params, beams = submission.params, submission.beams
    values = {name: getattr(params, name) for name in FIELDS if beams is None or name in SHARED}
    if values.get("negative_prompt") is not None:
        values["negative_prompt"] = list(submission.negative_token_ids) or None
    if beams is not None:
        values |= {name: getattr(beams, name) for name in BEAMS}
    plain = {name: strict_json(value) for name, value in values.items() if name not in (*HOOKS, "seed")}
    if isinstance(params.structured_outputs, StructuredOutputsParams):
        plain["structured_outputs"] = params.structured_outputs.as_dict()
    return plain


def read_tools(submission: Submission, outputs: list[CompletionOutput]) -> None:
    """Reads the calls and the reasoning in whole answers."""
    if submission.tools is None:
        return
    for output in outputs:
        answer = submission.tools.read(output.text, submission.seed, output.index, submission.prompt)
        output.content, output.reasoning, output.tool_calls = answer.content, answer.reasoning, answer.tool_calls


def request_metrics(submission: Submission, request: _core.Request | None) -> RequestMetrics:
    """Times of a request. request: the core's, if it has ended."""
    nan = float("nan")
    prepared = {"template_time_s": submission.template_time_s, "tokenizer_time_s": submission.tokenizer_time_s}
    if request is None or request.finish_time_s == 0:
        return RequestMetrics(nan, np.zeros(0, np.float32), nan, nan, nan, 0, **prepared)
    samples = request.samples
    lazy_numpy.load()  # else the core imports it for the array that it returns, and Ctrl-C could leave it half imported
    times = samples[0].token_times_s if samples else np.zeros(0)
    arrival, end = request.arrival_time_s, request.finish_time_s
    begun, first = request.first_scheduled_time_s or nan, request.first_token_time_s or nan
    per_token = (end - first) / (len(times) - 1) if len(times) > 1 else nan
    return RequestMetrics(
        first - arrival,
        np.diff(times).astype(np.float32),
        per_token,
        end - arrival,
        begun - arrival,
        request.num_preemptions,
        prefill_time_s=first - begun,
        decode_time_s=end - first,
        detokenize_time_s=request.detokenize_time_s,
        constraint_time_s=submission.compile_time_s + request.constraint_time_s,
        **prepared,
    )


def _make_trace(
    columns: dict[str, NDArray[Any]], candidates: dict[str, NDArray[Any]], tokenizer: Tokenizer, masks: NDArray[Any] | None
) -> DecodeTrace:
    """From the core's columns."""
    from llmi.outputs.trace import DecodeTrace  # noqa: PLC0415 (which loads NumPy)

    known = len(tokenizer.vocab_bytes)

    def texts(ids: NDArray[Any]) -> list[str]:
        return [tokenizer.decode_part([token], skip_special_tokens=False) if token < known else "" for token in ids.tolist()]

    return DecodeTrace(columns, texts(columns["token_id"]), candidates, texts(candidates["token_id"]), masks)
