"""A call in two steps before its requests are submitted: resolve its arguments, then prepare a request for each prompt.

An argument that holds for all prompts is refused at once. A mistake in one prompt, or in its own parameters, ends that prompt alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from llmi.base.kinds import entries_of, parse
from llmi.errors import ChatTemplateError, InvalidParamsError, LlmiError, PromptTooLongError, UnsupportedCombinationError
from llmi.hooks.constraint import ConstraintMasks
from llmi.hooks.runners import RequestHooks, shared_streamer
from llmi.params.beams import BeamSearchParams
from llmi.params.options import PRIORITY, one_or_each, option
from llmi.params.rows import is_guided, is_message
from llmi.params.sampling import SamplingParams
from llmi.requests.call import Call
from llmi.requests.combinations import Asked, settle
from llmi.requests.places import drawn_on
from llmi.requests.prefix import prefix_token
from llmi.requests.resolve import Resolved, derive_seed, resolve_params
from llmi.requests.submission import Speculation, Submission
from llmi.requests.thinking import thinking_limits
from llmi.structured import DEADLINE_S, constraint_of
from llmi.structured.compiling import Deadline
from llmi.structured.thinking import written
from llmi.text.prompts import ChatPrompt, as_list, cache_salt, check_unconstrained, is_sequence, tokenize, warn_of_markup
from llmi.tools.chat import ToolChat

if TYPE_CHECKING:
    from llmi.session import Session

R = TypeVar("R")
DEFAULTS = SamplingParams()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """How a call's requests run, besides prompts and parameters: options of `LLM.generate`, as they were given, and the kind of call.

    stream: text is wanted as it comes. stepped: the requests run while LLM.step is called. to_the_end: where nobody gives max_tokens it is
    the end of the context. render: makes token ids of a chat's messages, in calls that take chats; tools: how their answers are read.
    arrival: of requests that arrive one by one, this one's number: its seed is derived from it. queued_s: since when such a request waits
    to be prepared, by time.monotonic(); its wait for a grammar counts from then. recorded: outputs of one prompt, or beginnings of them, by
    sample: they are drafted, so that what was answered already takes no longer than a prompt; checks_recorded: each ends where it differs.
    """

    priority: int | Iterable[int] = 0
    on_error: str = "raise"
    speculative_config: object = "engine"
    trace: bool = False
    parse_special: bool | None = None
    stream: bool = False
    stepped: bool = False
    to_the_end: bool = False
    render: Callable[[object], list[int]] | None = None
    tools: ToolChat | None = None
    arrival: int | None = None
    queued_s: float | None = None
    recorded: list[list[int]] | None = None
    checks_recorded: bool = False

    def checked(self) -> CallOptions:
        """A copy with flags and words in their plain form. Raises InvalidParamsError."""
        special = None if self.parse_special is None else option("parse_special", self.parse_special)
        return dataclasses.replace(
            self, on_error=option("on_error", self.on_error), trace=option("trace", self.trace), parse_special=special
        )


@dataclasses.dataclass(slots=True)
class ResolvedPrompt:
    """One prompt of a call, as it was given, with what is its own.

    refused: the error of its own parameters; `use` are the call's then. speculation: an error, too, if its own configuration is wrong;
    names_drafter: the call gave it, not the engine.
    """

    item: object
    index: int
    what: str  # for errors: "prompt 3: "; "" for a prompt alone
    use: Resolved
    refused: LlmiError | None
    priority: object
    speculation: Speculation | LlmiError | None
    names_drafter: bool


@dataclasses.dataclass(slots=True)
class ResolvedCall:
    """A call whose arguments were checked, and whose prompts were told apart."""

    prompts: list[ResolvedPrompt]
    options: CallOptions


def _attempt(function: Callable[..., R], *args: object) -> R | LlmiError:
    """What a function returns, or its error: one prompt's is not another's."""
    try:
        return function(*args)
    except LlmiError as error:
        return error


def resolve(llm: Session, prompts: object, sampling_params: object, params: Mapping[str, Any], options: CallOptions) -> ResolvedCall:
    """Checks what was given, and gives each prompt its parameters, priority and speculation."""
    options = options.checked()
    items = as_list(prompts)
    priorities = one_or_each("priority", PRIORITY, options.priority, len(items))
    speculations = _speculations(llm, options.speculative_config, len(items))
    shared, own = _parameters(llm, sampling_params, params, len(items), options.to_the_end)
    if (streamer := shared_streamer([shared if entry is None else entry for entry in own])) is not None:
        raise UnsupportedCombinationError(f"{streamer} takes one prompt: {len(items)} would be mixed", "streamer", "prompts")
    if options.parse_special is None:
        warn_of_markup(items, llm.tokenizer)
    resolved = []
    for index, (item, entry) in enumerate(zip(items, own, strict=True)):
        what = f"prompt {index}: " if len(items) > 1 else ""
        use, refused = (entry.copy(), None) if isinstance(entry, Resolved) else (shared.copy(), entry)
        speculation, names_drafter = speculations[index]
        resolved.append(ResolvedPrompt(item, index, what, use, refused, priorities[index], speculation, names_drafter))
    return ResolvedCall(resolved, options)


def _parameters(
    llm: Session, sampling_params: object, params: Mapping[str, Any], num_prompts: int, to_the_end: bool
) -> tuple[Resolved, list[Resolved | LlmiError | None]]:
    """(the parameters of the call, each prompt's own: None where it has none, an error where they are wrong)."""
    if sampling_params is None or isinstance(sampling_params, SamplingParams | BeamSearchParams):
        own = None
    else:
        own = entries_of("sampling_params", sampling_params)
    if own is None:
        return resolve_params(sampling_params, params, llm._defaults, to_the_end), [None] * num_prompts
    if params:
        resolve_params(SamplingParams(), params, {})  # which refuses the two together
    if len(own) != num_prompts:
        raise InvalidParamsError(f"{len(own)} sampling_params for {num_prompts} prompts", "sampling_params")
    shared = resolve_params(None, {}, llm._defaults, to_the_end)
    return shared, [_attempt(resolve_params, entry, params, llm._defaults, to_the_end) for entry in own]


def _speculations(llm: Session, value: object, num_prompts: int) -> list[tuple[Speculation | LlmiError | None, bool]]:
    """How each prompt speculates, or the error of its configuration; and whether the call names the drafter."""
    if not isinstance(value, list | tuple):
        return [(llm._speculate(value), not _is_engines(value))] * num_prompts
    if len(value) != num_prompts:
        raise InvalidParamsError(f"{len(value)} speculative_config for {num_prompts} prompts", "speculative_config")
    return [(_attempt(llm._speculate, entry), not _is_engines(entry)) for entry in value]


def _is_engines(value: object) -> bool:
    return isinstance(value, str) and value == "engine"


def prepare(llm: Session, resolved: ResolvedCall) -> Call:
    """A request for each prompt, or its error."""
    submissions = [_submission(llm, prompt, resolved.options) for prompt in resolved.prompts]
    place = None if resolved.options.stepped else llm._router
    return Call(llm._engine, llm._results, submissions, resolved.options.on_error, place)


def _submission(llm: Session, prompt: ResolvedPrompt, options: CallOptions) -> Submission:
    """One prompt's request, or its error, which begins with `prompt.what`."""
    request_id = next(llm._ids)
    use = prompt.use
    seed = (
        use.params.seed
        if use.params.seed is not None
        else derive_seed(llm._seed, prompt.index if options.arrival is None else options.arrival)
    )
    hooks = RequestHooks(str(request_id), DEFAULTS, "")
    submission = Submission(
        None, [], use.params, {}, seed, hooks, trace=options.trace, beams=use.beams, what=prompt.what, tools=options.tools
    )
    try:
        _fill(llm, submission, prompt, request_id, options)
    except LlmiError as error:
        submission.refuse(error)
    submission.resolved = (
        use.shown() | {"seed": (seed, use.sources["seed"])} | {name: (value, "no effect") for name, value in llm._no_effect.items()}
    )
    if llm._engine_args.device_kind != "cpu" and submission.error is None:
        submission.resolved["drawn_on"] = drawn_on(submission, llm._batch_runner is not None)
    return submission


def _fill(llm: Session, submission: Submission, prompt: ResolvedPrompt, request_id: int, options: CallOptions) -> None:
    """Makes the core's request. Raises what is wrong with this prompt."""
    item, params, use = prompt.item, submission.params, prompt.use
    if prompt.refused is not None:
        raise prompt.refused
    check_unconstrained(item, "a request", "structured_outputs")
    text, ids = _tokenize(llm, submission, item, options)
    submission.cache_salt = cache_salt(item)
    if is_sequence(item) and item._steering is not None and params.steering is None:  # it goes on as it was made
        params.steering, use.sources["steering"] = item._steering, "user"
    if is_sequence(item) and item._sparse_attention is not None and params.sparse_attention is None:
        params.sparse_attention, use.sources["sparse_attention"] = item._sparse_attention, "user"
    if isinstance(prompt.speculation, LlmiError):
        raise prompt.speculation
    if use.beams is not None:
        _check_width(llm, use.beams.beam_width)
    caches_prefixes = bool(llm._engine_args.passed_on["enable_prefix_caching"])
    submission.speculation = settle(Asked(use, prompt.speculation, prompt.names_drafter, options.tools, caches_prefixes))
    submission.negative_token_ids = _negative(llm, params, ids, options)
    llm._builder.fit_max_tokens(prompt.use, len(ids), len(submission.negative_token_ids))
    if text is None and ids and (params.has_hooks() or params.thinking_token_budget is not None or llm._batch_runner is not None):
        text = submission.prompt = written(llm.tokenizer, ids)
    constraint = _compile(llm, submission, text, options)
    submission.hooks = RequestHooks(str(request_id), params, text or "", llm._batch_runner, constraint)
    submission.hooks.drops_beams = use.beams is not None
    drafts = options.checks_recorded or submission.speculation is None or submission.speculation.is_coupled  # else tokens depend on drafts
    submission.recorded = options.recorded or [] if drafts and use.beams is None else []
    submission.checks_recorded = options.checks_recorded
    submission.thinking = thinking_limits(llm.tokenizer, submission)
    if is_sequence(item) and item.llm is llm:
        submission.source = item._held
    submission.priority = parse(PRIORITY, "priority", prompt.priority)
    submission.streams, submission.tells = _streams(options, use), options.stream
    llm._builder.build(submission, request_id, priority=submission.priority, stream=submission.streams, stepped=options.stepped)


def _tokenize(llm: Session, submission: Submission, item: object, options: CallOptions) -> tuple[str | None, list[int]]:
    """The prompt's text and ids, which the submission gets with their times."""
    begun_s = time.perf_counter()
    text, ids = tokenize(item, llm.tokenizer, parse_special=options.parse_special, max_model_len=llm._builder.max_model_len)
    submission.prompt, submission.prompt_token_ids = text, ids
    submission.tokenizer_time_s = time.perf_counter() - begun_s
    if isinstance(item, ChatPrompt):
        submission.template_time_s = item.template_time_s
        submission.tokenizer_time_s += item.tokenizer_time_s
    return text, ids


def _compile(llm: Session, submission: Submission, text: str | None, options: CallOptions) -> ConstraintMasks | None:
    """The masks of structured_outputs; the submission gets the time that their grammar took, or its wait for one that another request
    compiles."""
    params = submission.params
    deadline = None if options.queued_s is None else Deadline(DEADLINE_S, options.queued_s)
    begun_s = time.perf_counter()
    made = constraint_of(params.structured_outputs, llm.tokenizer, lambda: text, deadline=deadline)
    if made is None:
        return None
    submission.compile_time_s = time.perf_counter() - begun_s
    return ConstraintMasks(made, llm._builder.ends(params))


def _streams(options: CallOptions, use: Resolved) -> bool:
    """Whether the engine sends what comes before the end: to a reader that wants the end alone it need not."""
    return options.stream and (options.arrival is None or (use.beams is None and use.params.output_kind != "final"))


def _check_width(llm: Session, width: int) -> None:
    seats = llm._engine_args.passed_on["max_num_seqs"]
    if isinstance(seats, int) and width > seats:
        raise InvalidParamsError(f"beam_width = {width} exceeds max_num_seqs = {seats} of this engine", "beam_width")


def _negative(llm: Session, params: SamplingParams, ids: list[int], options: CallOptions) -> list[int]:
    """The token ids that guidance leads away from; [] without guidance."""
    given = params.negative_prompt
    messages = isinstance(given, list) and len(given) > 0 and is_message(given[0])
    if messages and options.render is None:
        raise InvalidParamsError("negative_prompt holds messages: give them to chat()", "negative_prompt")
    if not is_guided(params):
        return []
    if given is None:
        return ids[-1:]
    if messages and options.render is not None:
        try:
            return options.render(given)
        except ChatTemplateError as error:  # the chat itself was rendered by the same template
            what = str(error)
            named = what.replace("messages[", "negative_prompt[", 1) if what.startswith("messages[") else f"negative_prompt: {what}"
            raise InvalidParamsError(named, "negative_prompt") from None
    try:
        negative = tokenize(given, llm.tokenizer, "negative_prompt", options.parse_special, llm._builder.max_model_len)[1]
    except PromptTooLongError as error:
        raise InvalidParamsError(f"negative_prompt: {error}", "negative_prompt") from None
    return negative or [prefix_token(llm)]
