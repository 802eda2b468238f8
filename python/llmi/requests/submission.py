"""From a call's arguments to its requests: each prompt with its own parameters, or its own error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from llmi.base.kinds import entries_of, parse
from llmi.errors import InvalidParamsError, LlmiError, UnsupportedCombinationError
from llmi.hooks.runners import RequestHooks, shared_streamer
from llmi.params.options import PRIORITY, one_or_each, option
from llmi.params.sampling import SamplingParams
from llmi.requests.build import Resolved, Submission, derive_seed, resolve_params
from llmi.requests.call import Call
from llmi.text.prompts import as_list, cache_salt, is_sequence, tokenize, warn_of_markup

if TYPE_CHECKING:
    from llmi.llm import LLM

R = TypeVar("R")
DEFAULTS = SamplingParams()


def attempt(function: Callable[..., R], *args: Any) -> R | LlmiError:
    """What a function returns, or its error: one prompt's is not another's."""
    try:
        return function(*args)
    except LlmiError as error:
        return error


def make_call(
    llm: LLM, prompts: Any, sampling_params: Any, params: Mapping[str, Any], *, priority: Any, on_error: Any, speculative_config: Any, trace: Any, parse_special: Any,
    stream: bool, stepped: bool, to_the_end: bool,
) -> Call:  # fmt: skip
    """The requests of one call. to_the_end: where nobody gives max_tokens it is the end of the context.

    What holds for all prompts is refused at once; what is wrong with one prompt, or with its own parameters, ends that prompt alone.
    """
    on_error, trace = option("on_error", on_error), option("trace", trace)
    parse_special = None if parse_special is None else option("parse_special", parse_special)
    items = as_list(prompts)
    priorities = one_or_each("priority", PRIORITY, priority, len(items))
    speculations = speculations_of(llm, speculative_config, len(items))
    own = None if sampling_params is None or isinstance(sampling_params, SamplingParams) else entries_of("sampling_params", sampling_params)
    if own is None:
        shared = resolve_params(sampling_params, params, llm._defaults, to_the_end)
        resolved: list[Any] = [None] * len(items)
    else:
        if params:
            resolve_params(SamplingParams(), params, {})  # which refuses the two together
        if len(own) != len(items):
            raise InvalidParamsError(f"{len(own)} sampling_params for {len(items)} prompts", "sampling_params")
        shared = resolve_params(None, {}, llm._defaults, to_the_end)
        resolved = [attempt(resolve_params, entry, params, llm._defaults, to_the_end) for entry in own]
    if (streamer := shared_streamer([shared if entry is None else entry for entry in resolved])) is not None:
        raise UnsupportedCombinationError(f"{streamer} takes one prompt: {len(items)} would be mixed", "streamer", "prompts")
    if parse_special is None:
        warn_of_markup(items, llm.tokenizer)
    submissions = []
    for index, item in enumerate(items):
        what = f"prompt {index}: " if len(items) > 1 else ""
        use = shared.copy() if resolved[index] is None or isinstance(resolved[index], LlmiError) else resolved[index].copy()
        submission = _submission(
            llm, item, use, index, what, resolved[index], priorities[index], speculations[index], stream, stepped, trace, parse_special
        )
        submissions.append(submission)
    return Call(llm._engine, llm._results, submissions, on_error)


def _submission(
    llm: LLM, item: Any, use: Resolved, index: int, what: str, refused: Any, priority: Any, speculation: Any, stream: bool, stepped: bool, trace: bool,
    parse_special: bool | None,
) -> Submission:  # fmt: skip
    """One prompt's request, or its error, which begins with `what`."""
    request_id = next(llm._ids)
    params = use.params
    seed = params.seed if params.seed is not None else derive_seed(llm._seed, index)
    submission = Submission(None, [], params, {}, seed, RequestHooks(str(request_id), DEFAULTS, ""), trace=trace, what=what)
    try:
        if isinstance(refused, LlmiError):
            raise refused
        text, ids = tokenize(item, llm.tokenizer, parse_special=parse_special, max_model_len=llm._builder.max_model_len)
        submission.prompt, submission.prompt_token_ids = text, ids
        submission.cache_salt = cache_salt(item)
        if isinstance(speculation, LlmiError):
            raise speculation
        submission.speculation = speculation
        llm._builder.fit_max_tokens(use, len(ids))
        if text is None and ids and (params.has_hooks() or llm._batch_runner is not None):
            text = submission.prompt = llm.tokenizer.decode(
                [token for token in ids if token < llm.tokenizer.vocab_size], skip_special_tokens=False
            )
        submission.hooks = RequestHooks(str(request_id), params, text or "", llm._builder.ends(params), llm._batch_runner)
        if speculation is not None and speculation.verification != "coupled" and params.sampler is not None:
            raise UnsupportedCombinationError(
                "a custom sampler draws its own tokens: only verification 'coupled' honours it", "sampler", "verification"
            )
        if is_sequence(item) and item.llm is llm:
            submission.source = item._core
        llm._builder.build(submission, request_id, priority=parse(PRIORITY, "priority", priority), stream=stream, stepped=stepped)
    except LlmiError as error:
        submission.refuse(error)
    submission.resolved = (
        use.shown() | {"seed": (seed, use.sources["seed"])} | {name: (value, "no effect") for name, value in llm._no_effect.items()}
    )
    return submission


def speculations_of(llm: LLM, value: Any, num_prompts: int) -> list[Any]:
    """The configuration of each prompt, or its error."""
    if not isinstance(value, list | tuple):
        return [llm._parse_speculation(value)] * num_prompts
    if len(value) != num_prompts:
        raise InvalidParamsError(f"{len(value)} speculative_config for {num_prompts} prompts", "speculative_config")
    return [attempt(llm._parse_speculation, entry) for entry in value]
