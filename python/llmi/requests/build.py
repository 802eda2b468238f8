"""From what a user writes to what the core runs: prompts, parameters, seeds; and results back."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.kinds import show
from llmi.base.log import log
from llmi.base.travel import strict_json
from llmi.errors import InvalidParamsError, LlmiError, PromptTooLongError, UnsupportedCombinationError, from_core
from llmi.hooks.runners import RequestHooks
from llmi.outputs.results import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from llmi.params.options import SAMPLING
from llmi.params.sampling import FIELDS, SamplingParams, canonical
from llmi.requests.metrics import MetricsLog

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.outputs.results import FinishReason
    from llmi.outputs.trace import DecodeTrace
    from llmi.speculation.config import SpecDecodeMetrics, SpeculationFactory, SpeculativeConfig
    from llmi.text.tokenizer import Tokenizer
else:
    from llmi.base.lazy_numpy import np


@dataclasses.dataclass
class Submission:
    """One prompt with everything its result will need."""

    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    resolved: dict[str, tuple[Any, str]]
    seed: int
    hooks: RequestHooks
    request: _core.Request | None = None
    core_params: _core.SamplingParams | None = None
    speculation: SpeculativeConfig | None = None
    cache_salt: str = ""
    trace: bool = False
    source: _core.LabSequence | None = None  # the sequence that the prompt continues
    stop_names: dict[Any, str] = dataclasses.field(default_factory=dict)  # stop strings that are special tokens, by id
    error: LlmiError | None = None  # refused at submission
    what: str = ""  # which prompt it is, for errors: "prompt 3: "

    @property
    def built(self) -> _core.Request:
        """The core's request, which RequestBuilder.build has made."""
        assert self.request is not None
        return self.request

    def refuse(self, error: LlmiError) -> None:
        """Keeps the error of this prompt, which says which one it is."""
        error.args = (f"{self.what}{error}", *error.args[1:])
        self.error = error


@dataclasses.dataclass
class Resolved:
    """Parameters of one request, and where each value came from; `no_effect` were given and change nothing."""

    params: SamplingParams
    sources: dict[str, str]
    no_effect: dict[str, Any]

    def copy(self) -> Resolved:
        """For the next prompt: max_tokens is settled for each."""
        return Resolved(dataclasses.replace(self.params), dict(self.sources), self.no_effect)

    def shown(self) -> dict[str, tuple[Any, str]]:
        """As `RequestOutput.params_resolved` shows them."""
        shown = {name: (getattr(self.params, name), self.sources[name]) for name in FIELDS}
        return shown | {name: (value, "no effect") for name, value in self.no_effect.items()}


def resolve_params(
    explicit: SamplingParams | None, overrides: Mapping[str, Any], model_defaults: Mapping[str, Any], to_the_end: bool = False
) -> Resolved:
    """The parameters of one request.

    An explicit SamplingParams replaces the model's defaults; keyword overrides are laid over them. to_the_end: where
    nobody gives max_tokens it is the end of the context.
    """
    no_effect: dict[str, Any] = {}
    if explicit is not None:
        if overrides:
            names = ", ".join(overrides)
            raise InvalidParamsError(f"give sampling_params or keyword parameters ({names}), not both", "sampling_params")
        if not isinstance(explicit, SamplingParams):
            raise InvalidParamsError(f"sampling_params must be SamplingParams, not {show(explicit)}", "sampling_params")
        explicit._materialise()
        params = dataclasses.replace(explicit)
        params._settle()
        given = {
            name
            for name in FIELDS
            if getattr(params, name) != SAMPLING[name].default or type(getattr(params, name)) is not type(SAMPLING[name].default)
        }
        sources = {name: "user" if name in given else "default" for name in FIELDS}
    else:
        changes, no_effect = canonical(overrides, "generate")
        unless_given = {"max_tokens": None} if to_the_end else {}
        params = SamplingParams(**{**unless_given, **model_defaults, **changes})
        try:
            params._settle()
        except InvalidParamsError as error:
            if error.parameter == "min_tokens" and "min_tokens" in model_defaults and "min_tokens" not in changes:
                raise InvalidParamsError(f"{error} (min_tokens comes from the model's generation_config.json)", "min_tokens") from None
            raise
        sources = {name: "user" if name in changes else "model" if name in model_defaults else "default" for name in FIELDS}
        if changes.get("temperature") == 0.0 and "temperature" in overrides and overrides["temperature"] != 0:
            log.info("do_sample=False: greedy; temperature = %s is not used", show(overrides["temperature"]))
    return Resolved(params, sources, no_effect)


def take_options(generate_args: dict[str, Any], *names: str) -> dict[str, Any]:
    """Takes a call's own options out of its keywords; the rest are SamplingParams fields."""
    return {name: generate_args.pop(name) for name in names if name in generate_args}


def derive_seed(engine_seed: int | None, index: int) -> int:
    """A request's own seed: a hash of the engine's and its index in the call, or drawn if there is none."""
    if engine_seed is None:
        return secrets.randbits(64)
    digest = hashlib.blake2b(f"{engine_seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class RequestBuilder:
    """Builds core requests for one engine."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_model_len: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.speculation: SpeculationFactory | None = None

    def fit_max_tokens(self, resolved: Resolved, prompt_len: int) -> None:
        """Settles max_tokens: None means up to the end of the context, and so does a default that exceeds the room."""
        params = resolved.params
        if prompt_len > self.max_model_len:
            raise PromptTooLongError(prompt_len, self.max_model_len)
        room = self.max_model_len - prompt_len + 1  # the last token needs no place in the context
        given = params.max_tokens
        if given is None:
            params.max_tokens = room
        elif given > room and resolved.sources["max_tokens"] == "user":
            raise InvalidParamsError(
                f"max_tokens = {given:,} does not fit: {prompt_len:,} prompt tokens leave room for {room:,} within max_model_len = "
                f"{self.max_model_len:,} (give max_tokens=None to go on to the end of the context)",
                "max_tokens",
            )
        elif given > room:
            params.max_tokens = room
            log.info(
                "max_tokens = %d (%s) is shortened to %d: %d prompt tokens, max_model_len = %d",
                given, "the model's generation_config.json" if resolved.sources["max_tokens"] == "model" else "the default", room, prompt_len, self.max_model_len,
            )  # fmt: skip
        else:
            params.max_tokens = int(given)
        if params.min_tokens > params.max_tokens:
            raise InvalidParamsError(f"min_tokens = {params.min_tokens} exceeds max_tokens = {params.max_tokens}", "min_tokens")

    def build(
        self,
        submission: Submission,
        request_id: int,
        *,
        priority: int = 0,
        stream: bool = False,
        stepped: bool = False,
        max_tokens: int | None = None,
    ) -> None:
        """Fills `submission.request`."""
        params = submission.params
        limit = int(params.max_tokens or 0) if max_tokens is None else max_tokens
        submission.core_params = self.core_params(params, submission.seed, limit, submission.prompt_token_ids)
        submission.stop_names = {
            token: text for token, text in self.stop_tokens(params).items() if token not in (params.stop_token_ids or ())
        }
        speculation = None
        if submission.speculation is not None and self.speculation is not None:
            speculation = self.speculation.build(submission.speculation, submission, request_id)
        submission.request = _core.Request(
            id=request_id, prompt_token_ids=submission.prompt_token_ids, params=submission.core_params, n=params.n, priority=priority,
            stream=stream, stepped=stepped, hooks=submission.hooks if submission.hooks else None, speculation=speculation,
            source=submission.source, cache_salt=submission.cache_salt, trace=submission.trace,
        )  # fmt: skip

    def core_params(
        self, params: SamplingParams, seed: int, max_tokens: int, prompt_token_ids: list[int] | None = None
    ) -> _core.SamplingParams:
        """The core's form of resolved parameters."""
        core = _core.SamplingParams()
        for name, entry in SAMPLING.items():
            if entry.passed_on:
                setattr(core, name, getattr(params, name))
        core.top_k = max(params.top_k, 0)
        core.max_tokens = max_tokens
        core.seed = seed
        if wrong := [token for token in own_eos(params) if token >= self.vocab_size]:
            raise InvalidParamsError(f"eos_token_id holds token id {wrong[0]}, outside [0, {self.vocab_size})", "eos_token_id")
        core.stop = params.stop_list()
        core.stop_token_ids = [*(params.stop_token_ids or []), *own_eos(params), *self.stop_tokens(params)]
        core.eos_token_ids = self.eos_token_ids() if params.eos_token_id is None else []
        core.logit_bias = list((params.logit_bias or {}).items())
        core.allowed_token_ids = params.allowed_token_ids or []
        core.bad_words = self._bad_words(params, prompt_token_ids or [])
        core.num_logprobs = self._count(params.logprobs)
        core.num_prompt_logprobs = self._count(params.prompt_logprobs)
        return core

    def eos_token_ids(self) -> list[int]:
        """The tokenizer's ids that the model has."""
        return sorted(token for token in self.tokenizer.eos_token_ids if token < self.vocab_size)

    def ends(self, params: SamplingParams) -> list[int]:
        """The ids that end a text for this request."""
        return self.eos_token_ids() if params.eos_token_id is None else own_eos(params)

    def stop_tokens(self, params: SamplingParams) -> dict[int, str]:
        """The special tokens that stop strings name, by id: while special tokens are left out, the text never holds them.

        Raises UnsupportedCombinationError for a stop string that needs the text of a special token and more.
        """
        found: dict[int, str] = {}
        if not params.skip_special_tokens or not params.stop:
            return found
        texts = {text: token for token, text in self.tokenizer.special_tokens.items() if text and token < self.vocab_size}
        for stop in params.stop_list():
            if stop in texts:
                if params.include_stop_str_in_output:
                    raise UnsupportedCombinationError(
                        f"stop = {stop!r} is a special token, which the text leaves out: include_stop_str_in_output needs skip_special_tokens=False",
                        "stop",
                        "include_stop_str_in_output",
                    )
                found[texts[stop]] = stop
            elif part := next((text for text in texts if text in stop), None):
                raise UnsupportedCombinationError(
                    f"stop = {stop!r} holds the special token {part!r}, which the text leaves out, so it would never be found: "
                    "give skip_special_tokens=False, or the special token alone",
                    "stop",
                    "skip_special_tokens",
                )
        return found

    def _count(self, value: int | None) -> int:
        return -1 if value is None else self.vocab_size if value == -1 else value

    def _bad_words(self, params: SamplingParams, prompt_token_ids: list[int]) -> list[list[int]]:
        """Each word as it is written at a text's start and after a space, and as a special token; ids as they are."""
        sequences: list[list[int]] = []
        for word in params.bad_words or []:
            if isinstance(word, str):
                for text in (word, " " + word.lstrip()):
                    for special in (False, True):
                        ids = self.tokenizer.encode(text, add_special_tokens=False, parse_special=special)
                        if ids and ids not in sequences:
                            sequences.append(ids)
                continue
            ids = list(word)
            if len(ids) == 1 and ids[0] in self.ends(params):
                log.info(
                    "bad_words_ids: end-of-text (id %d) may still be generated, as in transformers (ignore_eos continues past it)", ids[0]
                )
                continue
            for length in range(1, min(len(ids) - 1, len(prompt_token_ids)) + 1):
                if prompt_token_ids[-length:] == ids[:length]:  # transformers looks at the prompt, too; llmi at the output alone
                    raise UnsupportedCombinationError(
                        f"bad_words_ids: the prompt ends with the beginning of {ids}; a sequence across prompt and output is not banned here",
                        "bad_words",
                        "prompt",
                    )
            if ids not in sequences:
                sequences.append(ids)
        return sequences


def own_eos(params: SamplingParams) -> list[int]:
    """The request's own end-of-text ids; [] where the model's are used, or none."""
    value = params.eos_token_id
    return [] if value is None or params.ignore_eos else [value] if isinstance(value, int) else list(value)


class PartialOutput:
    """The part of one continuation that has arrived; it has the core's field names."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[_core.TokenLogprobs] = []
        self.cumulative_logprob = 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.trace: dict[str, NDArray[Any]] = {}
        self.candidates: dict[str, NDArray[Any]] = {}
        self.speculation = _core.SpeculationStats()

    def add(self, event: _core.OutputEvent) -> None:
        """Takes in an event's news."""
        self.token_ids += event.token_ids
        self.text += event.text
        self.logprobs += event.logprobs
        self.cumulative_logprob += sum(entry.logprobs[0] for entry in event.logprobs)
        self.finish_reason = event.finish_reason


class ResultBuilder:
    """Turns finished core requests into RequestOutputs."""

    def __init__(self, tokenizer: Tokenizer, numerics_id: str, receipt_source: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.numerics_id = numerics_id
        self.receipt_source = receipt_source
        self.log = MetricsLog()

    def finished(self, request: _core.Request) -> None:
        """Takes a finished core request's times into the aggregate."""
        self.log.add(request_metrics(request))

    def output(self, submission: Submission, partial: Mapping[int, PartialOutput] | None = None) -> RequestOutput:
        """The result of a submission; with `partial`, what has arrived of one that still runs."""
        request, params = submission.request, submission.params
        samples: Sequence[PartialOutput | _core.SampleOutput]
        if partial is not None:
            samples = [partial.get(index) or PartialOutput() for index in range(params.n)]
            request = None
        else:
            samples = request.samples if request is not None else []
        outputs = [self._completion(index, sample, submission) for index, sample in enumerate(samples)]
        error = submission.error or (self._error(submission) if partial is None else None)
        if not outputs:
            outputs = [CompletionOutput(index, "", [], None, None, "error", None) for index in range(params.n)]
        return RequestOutput(
            request_id=submission.hooks.request_id,
            prompt=submission.prompt,
            prompt_token_ids=submission.prompt_token_ids,
            prompt_logprobs=self._prompt_logprobs(request, params),
            outputs=outputs,
            finished=partial is None,
            metrics=request_metrics(request),
            num_cached_tokens=0 if request is None else request.num_cached_tokens,
            seed=submission.seed,
            numerics_id=self.numerics_id,
            params_resolved=submission.resolved,
            error=error,
            _receipt_source={
                **self.receipt_source,
                "params": _plain_params(params),
                "hooks": bool(submission.hooks),
                "verification": "coupled" if submission.speculation is None else submission.speculation.verification_name,
            },
        )

    def _error(self, submission: Submission) -> LlmiError | None:
        if submission.request is None or submission.request.error is None:
            return None
        error = from_core(submission.request.error)
        hooks = submission.hooks
        from llmi.errors import ConstraintError, DraftError, HookError, NonFiniteLogitsError

        if isinstance(hooks.error, NonFiniteLogitsError) and isinstance(error, HookError):
            return NonFiniteLogitsError(f"{hooks.failed_hook}: {hooks.error}")
        if hooks.error is not None and isinstance(error, HookError):  # unless the engine was closed meanwhile
            kind = DraftError if hooks.failed_in_drafter else ConstraintError if isinstance(hooks.error, ConstraintError) else HookError
            own = type(hooks.error) is HookError  # it returned what it may not
            what = (
                f"{hooks.failed_hook}: {hooks.error}" if own else f"{hooks.failed_hook} raised {type(hooks.error).__name__}: {hooks.error}"
            )
            error = kind(what, hooks.failed_hook, hooks.request_id)
            error.__cause__ = hooks.error
        return error

    def _completion(self, index: int, sample: PartialOutput | _core.SampleOutput, submission: Submission) -> CompletionOutput:
        params, speculation = submission.params, submission.speculation
        with_logprobs = params.logprobs is not None
        return CompletionOutput(
            index=index,
            text=sample.text,
            token_ids=list(sample.token_ids),
            cumulative_logprob=sample.cumulative_logprob if with_logprobs else None,
            logprobs=[self._entries(entry) for entry in sample.logprobs] if with_logprobs else None,
            finish_reason=sample.finish_reason,
            stop_reason=submission.stop_names.get(sample.stop_reason, sample.stop_reason),
            spec_decode_metrics=None if speculation is None else _spec_metrics(speculation, sample.speculation),
            trace=self._trace(sample) if submission.trace and sample.trace else None,
        )

    def _trace(self, sample: PartialOutput | _core.SampleOutput) -> DecodeTrace:
        from llmi.outputs.trace import make_trace

        return make_trace(sample.trace, sample.candidates, self.tokenizer)

    def _prompt_logprobs(self, request: _core.Request | None, params: SamplingParams) -> list[dict[int, Logprob] | None] | None:
        if params.prompt_logprobs is None or request is None:
            return None
        return [None, *(self._entries(entry) for entry in request.prompt_logprobs)]

    def _entries(self, entry: _core.TokenLogprobs) -> dict[int, Logprob]:
        result: dict[int, Logprob] = {}
        for token, raw, processed, rank in zip(entry.token_ids, entry.logprobs, entry.processed_logprobs, entry.ranks, strict=True):
            if token not in result:
                result[token] = Logprob(
                    raw, processed, rank, self.tokenizer.decode([token], skip_special_tokens=False) if self._has(token) else ""
                )
        return result

    def _has(self, token: int) -> bool:
        return token < len(self.tokenizer.vocab_bytes)


def _spec_metrics(speculation: SpeculativeConfig, counts: _core.SpeculationStats) -> SpecDecodeMetrics:
    from llmi.speculation.config import spec_metrics

    return spec_metrics(speculation, counts)


#: Parameters that are Python code: a receipt does not hold them.
HOOKS = ("structured_outputs", "logits_processors", "stopping_criteria", "sampler")


def _plain_params(params: SamplingParams) -> dict[str, Any]:
    """Parameters as strict JSON, hooks and the seed left out: all of them, whatever a model's or a later version's defaults are."""
    return {name: strict_json(getattr(params, name)) for name in FIELDS if name not in (*HOOKS, "seed")}


def request_metrics(request: _core.Request | None) -> RequestMetrics:
    """Times of a core request; NaN where it has not come so far."""
    nan = float("nan")
    if request is None or request.finish_time_s == 0:
        return RequestMetrics(nan, np.zeros(0, np.float32), nan, nan, nan, 0)
    samples = request.samples
    times = samples[0].token_times_s if samples else np.zeros(0)
    e2e = request.finish_time_s - request.arrival_time_s
    first = request.first_token_time_s - request.arrival_time_s if request.first_token_time_s else nan
    queue = request.first_scheduled_time_s - request.arrival_time_s if request.first_scheduled_time_s else nan
    per_token = (e2e - first) / (len(times) - 1) if len(times) > 1 else nan
    return RequestMetrics(first, np.diff(times).astype(np.float32), per_token, e2e, queue, request.num_preemptions)
