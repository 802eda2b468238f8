"""From what a user writes to what the core runs: prompts, parameters, seeds; and results back."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi._errors import InvalidParamsError, LlmiError, PromptTooLongError, from_core
from llmi._hooks import RequestHooks
from llmi._metrics import MetricsLog
from llmi._outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from llmi._params import FIELDS, SamplingParams, canonical

if TYPE_CHECKING:
    import numpy as np

    from llmi._speculation import SpeculationFactory, SpeculativeConfig
    from llmi._tokenizer import Tokenizer
else:
    from llmi._lazy_numpy import np

Prompt = Any  # str, list of ints, int array, or a dict with prompt or prompt_token_ids; see is_single
DEFAULTS = SamplingParams()
#: Arguments that other engines take and that change nothing here, by name.
NO_EFFECT = ("enforce_eager", "trust_remote_code", "disable_log_stats", "use_tqdm_on_load")


@dataclasses.dataclass
class Submission:
    """One prompt with everything its result will need."""

    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    resolved: dict[str, tuple[Any, str]]
    seed: int
    hooks: RequestHooks
    request: Any = None  # _core.Request
    core_params: Any = None  # _core.SamplingParams
    speculation: SpeculativeConfig | None = None
    cache_salt: str = ""
    trace: bool = False
    source: Any = None  # the core's sequence that the prompt continues
    error: LlmiError | None = None  # refused at submission


def is_single(prompts: Any) -> bool:
    """Whether `prompts` is one prompt: a string, a dict, or a flat sequence of ints."""
    if isinstance(prompts, str | Mapping) or is_sequence(prompts):
        return True
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1 and prompts.dtype.kind in "iu"
    return isinstance(prompts, list | tuple) and len(prompts) > 0 and all(isinstance(entry, int | np.integer) for entry in prompts)


def is_sequence(prompt: Any) -> bool:
    """Whether `prompt` is a TokenSequence; its module is loaded only where sequences are made."""
    return type(prompt).__name__ == "TokenSequence"


def as_list(prompts: Any) -> list[Prompt]:
    """`prompts` as a list of prompts."""
    return [prompts] if is_single(prompts) else list(prompts)


def tokenize(prompt: Prompt, tokenizer: Tokenizer) -> tuple[str | None, list[int]]:
    """(text or None, token ids). Raises InvalidParamsError for what is no prompt."""
    if isinstance(prompt, str):
        return prompt, tokenizer.encode(prompt)
    if is_sequence(prompt):
        return prompt.text, prompt.token_ids.tolist()
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - {"prompt", "prompt_token_ids", "cache_salt"}
        if unknown or not {"prompt", "prompt_token_ids"} & set(prompt):
            raise InvalidParamsError(f"a prompt dict holds 'prompt' or 'prompt_token_ids', not {sorted(prompt)}", "prompts")
        if "prompt_token_ids" in prompt:
            return prompt.get("prompt"), _token_list(prompt["prompt_token_ids"])
        return prompt["prompt"], tokenizer.encode(prompt["prompt"])
    return None, _token_list(prompt)


def _token_list(ids: Any) -> list[int]:
    try:
        result = [int(token) for token in ids]
    except (TypeError, ValueError):
        raise InvalidParamsError(f"a prompt is a string, a list of token ids, or a dict, not {ids!r:.80}", "prompts") from None
    if any(not 0 <= token < 2**31 for token in result):
        raise InvalidParamsError("a prompt token id is out of range", "prompts")
    return result


def resolve_params(
    explicit: SamplingParams | None, overrides: Mapping[str, Any], model_defaults: Mapping[str, Any]
) -> tuple[SamplingParams, dict[str, tuple[Any, str]]]:
    """The parameters of one request and where each value came from.

    An explicit SamplingParams replaces the model's defaults; keyword overrides are laid over them.
    """
    sources: dict[str, str] = {}
    if explicit is not None:
        if overrides:
            names = ", ".join(overrides)
            raise InvalidParamsError(f"give sampling_params or keyword parameters ({names}), not both", "sampling_params")
        if not isinstance(explicit, SamplingParams):
            raise InvalidParamsError(f"sampling_params must be SamplingParams, not {type(explicit).__name__}", "sampling_params")
        params = dataclasses.replace(explicit)
        for name in FIELDS:
            sources[name] = "default" if getattr(params, name) == getattr(DEFAULTS, name) else "user"
    else:
        changes = canonical(overrides)
        params = dataclasses.replace(DEFAULTS, **{**model_defaults, **changes})
        for name in FIELDS:
            sources[name] = "user" if name in changes else "model" if name in model_defaults else "default"
    params.logits_processors = tuple(params.logits_processors)
    params.stopping_criteria = tuple(params.stopping_criteria)
    params.validate()
    return params, {name: (getattr(params, name), sources[name]) for name in FIELDS}


def take_options(generate_args: dict[str, Any], *names: str) -> dict[str, Any]:
    """Takes a call's own options out of its keywords; what is left are SamplingParams fields."""
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

    def fit_max_tokens(self, params: SamplingParams, resolved: dict[str, tuple[Any, str]], prompt_len: int) -> None:
        """Settles max_tokens: None, and a default that exceeds the room, mean up to the end of the context."""
        if prompt_len > self.max_model_len:
            raise PromptTooLongError(prompt_len, self.max_model_len)
        room = self.max_model_len - prompt_len + 1
        source = resolved["max_tokens"][1]
        if params.max_tokens is None or (source != "user" and params.max_tokens > room):
            params.max_tokens = max(room, 1)
            resolved["max_tokens"] = (params.max_tokens, source)
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
        submission.core_params = self.core_params(params, submission.seed, limit)
        speculation = None
        if submission.speculation is not None and self.speculation is not None:
            speculation = self.speculation.build(submission.speculation, submission, request_id)
        submission.request = _core.Request(
            id=request_id, prompt_token_ids=submission.prompt_token_ids, params=submission.core_params, n=params.n, priority=priority,
            stream=stream, stepped=stepped, hooks=submission.hooks if submission.hooks else None, speculation=speculation,
            source=submission.source, cache_salt=submission.cache_salt, trace=submission.trace,
        )  # fmt: skip

    def core_params(self, params: SamplingParams, seed: int, max_tokens: int) -> Any:
        """The core's form of resolved parameters."""
        core = _core.SamplingParams()
        for name in ("temperature", "top_p", "top_k", "min_p", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty",
                     "ignore_eos", "include_stop_str_in_output", "detokenize", "skip_special_tokens"):  # fmt: skip
            setattr(core, name, getattr(params, name))
        core.max_tokens = max_tokens
        core.seed = seed
        core.stop = params.stop_list()
        core.stop_token_ids = list(params.stop_token_ids or [])
        core.eos_token_ids = self.eos_token_ids()
        core.logit_bias = [(int(token), float(bias)) for token, bias in (params.logit_bias or {}).items()]
        core.allowed_token_ids = [int(token) for token in params.allowed_token_ids or []]
        core.bad_words = self._bad_words(params.bad_words or [])
        core.num_logprobs = self._count(params.logprobs)
        core.num_prompt_logprobs = self._count(params.prompt_logprobs)
        return core

    def eos_token_ids(self) -> list[int]:
        """The tokenizer's ids that the model has."""
        return sorted(token for token in self.tokenizer.eos_token_ids if token < self.vocab_size)

    def _count(self, value: int | None) -> int:
        return -1 if value is None else self.vocab_size if value == -1 else value

    def _bad_words(self, words: Iterable[str]) -> list[list[int]]:
        """Each word as it is written at a text's start and after a space."""
        sequences = []
        for word in words:
            for text in (word, " " + word.lstrip()):
                ids = self.tokenizer.encode(text, add_special_tokens=False)
                if ids and ids not in sequences:
                    sequences.append(ids)
        return sequences


class PartialOutput:
    """What has arrived of one continuation; has the core's field names."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        self.logprobs: list[Any] = []
        self.cumulative_logprob = 0.0
        self.finish_reason: str | None = None
        self.stop_reason = None
        self.trace: dict[str, Any] = {}
        self.speculation: tuple[int, int, int, list[int], float, float] = (0, 0, 0, [], 0.0, 0.0)

    def add(self, event: Any) -> None:
        """Takes in an event's news."""
        self.token_ids += event.token_ids
        self.text += event.text
        self.logprobs += event.logprobs
        self.cumulative_logprob += sum(entry[1][0] for entry in event.logprobs)
        self.finish_reason = event.finish_reason


class ResultBuilder:
    """Turns finished core requests into RequestOutputs."""

    def __init__(self, tokenizer: Tokenizer, numerics_id: str, receipt_source: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.numerics_id = numerics_id
        self.receipt_source = receipt_source
        self.log = MetricsLog()

    def finished(self, request: Any) -> None:
        """Takes a finished core request's times into the aggregate."""
        self.log.add(request_metrics(request))

    def output(self, submission: Submission, partial: Mapping[int, PartialOutput] | None = None) -> RequestOutput:
        """The result of a submission; with `partial`, what has arrived of one that still runs."""
        request, params = submission.request, submission.params
        samples: list[Any]
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
        if hooks.error is not None:
            from llmi._errors import ConstraintError, DraftError, HookError

            kind = DraftError if hooks.failed_in_drafter else ConstraintError if isinstance(hooks.error, ConstraintError) else HookError
            error = kind(f"{hooks.failed_hook} raised {type(hooks.error).__name__}: {hooks.error}", hooks.failed_hook, hooks.request_id)
            error.__cause__ = hooks.error
        return error

    def _completion(self, index: int, sample: Any, submission: Submission) -> CompletionOutput:
        params, speculation = submission.params, submission.speculation
        with_logprobs = params.logprobs is not None
        return CompletionOutput(
            index=index,
            text=sample.text,
            token_ids=list(sample.token_ids),
            cumulative_logprob=sample.cumulative_logprob if with_logprobs else None,
            logprobs=[self._entries(entry) for entry in sample.logprobs] if with_logprobs else None,
            finish_reason=sample.finish_reason,
            stop_reason=sample.stop_reason,
            spec_decode_metrics=None if speculation is None else _spec_metrics(speculation, sample.speculation),
            trace=self._trace(sample) if submission.trace and sample.trace else None,
        )

    def _trace(self, sample: Any) -> Any:
        from llmi._trace import make_trace

        return make_trace(sample.trace, sample.candidates, self.tokenizer)

    def _prompt_logprobs(self, request: Any, params: SamplingParams) -> list[dict[int, Logprob] | None] | None:
        if params.prompt_logprobs is None or request is None:
            return None
        return [None, *(self._entries(entry) for entry in request.prompt_logprobs)]

    def _entries(self, entry: tuple[list[int], list[float], list[float], list[int]]) -> dict[int, Logprob]:
        result: dict[int, Logprob] = {}
        for token, raw, processed, rank in zip(*entry, strict=True):
            if token not in result:
                result[token] = Logprob(
                    raw, processed, rank, self.tokenizer.decode([token], skip_special_tokens=False) if self._has(token) else ""
                )
        return result

    def _has(self, token: int) -> bool:
        return token < len(self.tokenizer.vocab_bytes)


def _spec_metrics(speculation: SpeculativeConfig, counts: Any) -> Any:
    from llmi._speculation import spec_metrics

    return spec_metrics(speculation, counts)


def _plain_params(params: SamplingParams) -> dict[str, Any]:
    """Parameters as JSON values, hooks left out."""
    skipped = ("structured_outputs", "logits_processors", "stopping_criteria", "sampler", "seed")
    values = {name: getattr(params, name) for name in FIELDS if name not in skipped and getattr(params, name) != getattr(DEFAULTS, name)}
    if "logit_bias" in values:
        values["logit_bias"] = {str(token): bias for token, bias in values["logit_bias"].items()}
    values["max_tokens"] = params.max_tokens
    return values


def request_metrics(request: Any) -> RequestMetrics:
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
