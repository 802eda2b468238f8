"""From a body's fields to SamplingParams: OpenAI's names, vLLM's extras, and what an answer must be."""

from __future__ import annotations

import re
from typing import Any

from llmi.base.kinds import Flag, Whole
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.params.beams import means_beams, num_results
from llmi.params.options import LIMITS
from llmi.params.sampling import SAMPLING
from llmi.params.steering import of_json
from llmi.server.answer_format import constraint_of
from llmi.server.errors import ApiError
from llmi.server.fields import Taken
from llmi.server.nested import refuse_others, wrong
from llmi.server.prompts import Prompt
from llmi.server.served import Served

#: OpenAI's default of /v1/completions.
DEFAULT_MAX_TOKENS = 16
MAX_TOKENS = Whole(1, 2**31 - 1, "an integer in [1, 2^31)")
_COUNT = Whole(0, 2**31 - 1, "an integer of 0 or more")
_LOGPROBS = Whole(0, LIMITS["logprobs"])
_INCLUDED_LOGPROBS = "message.output_text.logprobs"
_FORMATS = ("text", "json_object", "json_schema", "grammar", "structural_tag")
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


def sampling(taken: Taken) -> dict[str, Any]:
    """The fields that go on to the engine as they are; null is the default. Raises InvalidParamsError."""
    params = {name: value for name, value in taken.params.items() if value is not None}
    for name in ("n", "prompt_logprobs"):
        if taken.own.get(name) is not None:
            params[name] = taken.own[name]
    if isinstance(bias := params.get("logit_bias"), dict):
        params["logit_bias"] = {_token_of(key): float("-inf") if value == "-inf" else value for key, value in bias.items()}
    if "steering" in params:
        params["steering"] = of_json(params["steering"])
    what = structured_outputs(taken)
    if what is not None:
        params["structured_outputs"] = what
    return params


def _token_of(key: str) -> int:
    if not _TOKEN_ID.fullmatch(key):  # one way to write each id, so that no entry takes another one's place
        raise InvalidParamsError(f"logit_bias: a key must be a token id, such as '50', not {key[:40]!r}", "logit_bias")
    return int(key)


def structured_outputs(taken: Taken) -> object:
    """What the answer must be, from OpenAI's response_format, vLLM's structured_outputs, or the older guided_ names; None: free.

    Raises ApiError if several are given.
    """
    given = {
        name: taken.own[name]
        for name in ("response_format", "structured_outputs", *_GUIDED, "structural_tag")
        if taken.own.get(name) is not None
    }
    found: dict[str, object] = {}
    for name, value in given.items():
        if name == "response_format":
            what = constraint_of("response_format", value, taken.ignored, _FORMATS)
        elif name == "structured_outputs":
            what = value
        else:
            what = {_GUIDED.get(name, name): value}
        if what is not None:
            found[name] = what
    if len(found) > 1:
        raise ApiError(
            400, f"{' and '.join(found)} are given together: the answer keeps to one of them", param=[*found][1], code="contradiction"
        )
    return next(iter(found.values()), None)


def add_format(params: dict[str, Any], where: str, form: object) -> None:
    """Takes in the constraint that the field `where` names. Raises ApiError where structured_outputs names another."""
    if form is not None and params.get("structured_outputs") is not None:
        raise ApiError(400, f"{where} and structured_outputs are given together", param="structured_outputs", code="contradiction")
    if form is not None:
        params["structured_outputs"] = form


def chat_max_tokens(model: Served, taken: Taken, params: dict[str, Any]) -> None:
    """Settles max_tokens of a chat: without one, or with LM Studio's -1, it is the model's own default, or the end of the context."""
    names = ("max_completion_tokens", "max_tokens")
    given = {name: value for name in names if (value := taken.own.get(name)) is not None and not (type(value) is int and value == -1)}
    if len(set(map(repr, given.values()))) > 1:
        raise UnsupportedCombinationError(
            f"max_completion_tokens = {given['max_completion_tokens']!r} and max_tokens = {given['max_tokens']!r} contradict each other",
            "max_completion_tokens",
            "max_tokens",
        )
    if given:
        name, value = next(iter(given.items()))
        params["max_tokens"] = SAMPLING["max_tokens"].kind.parse(name, value)
    elif not {"max_new_tokens"} & params.keys() and "max_tokens" not in model.llm._defaults:
        params["max_tokens"] = None


def check_room(model: Served, taken: Taken, params: dict[str, Any], prompt: Prompt) -> None:
    """Raises InvalidParamsError where the context has no room for max_tokens that the body gives under another name, by that name."""
    name = next((name for name in ("max_completion_tokens", "max_output_tokens") if taken.own.get(name) is not None), None)
    room = model.max_model_len - len(prompt.ids) + 1
    if name is not None and params["max_tokens"] > room > 0:
        raise InvalidParamsError(
            f"{name} = {params['max_tokens']:,} does not fit: {len(prompt.ids):,} prompt tokens leave room for {room:,} within"
            f" max_model_len = {model.max_model_len:,} (without it an answer may go on to the end of the context)",
            name,
        )


def completion_max_tokens(model: Served, taken: Taken, params: dict[str, Any], prompts: list[Prompt]) -> None:
    """Settles max_tokens of /v1/completions: without one it is OpenAI's 16, or what room there is."""
    if taken.own.get("max_tokens") is not None:
        params["max_tokens"] = taken.own["max_tokens"]
    elif "max_new_tokens" not in params:
        longest = max((len(prompt.ids) for prompt in prompts), default=0)
        params["max_tokens"] = max(1, min(DEFAULT_MAX_TOKENS, model.max_model_len - longest + 1))


def chat_logprobs(taken: Taken, params: dict[str, Any]) -> int | None:
    """How many alternatives each token of an answer comes with; None: no log-probabilities. Sets the engine's `logprobs`."""
    wanted = taken.own.get("logprobs")
    top = taken.own.get("top_logprobs")
    asked = False if wanted is None else Flag().parse("logprobs", wanted)
    if top is not None and not asked and top != 0:
        raise UnsupportedCombinationError("top_logprobs needs logprobs: true", "top_logprobs", "logprobs")
    if not asked:
        return _ids_alone(params)
    count = 0 if top is None else _LOGPROBS.parse("top_logprobs", top)
    params["logprobs"] = count
    return count


def completion_logprobs(taken: Taken, params: dict[str, Any]) -> int | None:
    """As chat_logprobs, for /v1/completions, whose `logprobs` is a number."""
    wanted = taken.own.get("logprobs")
    if wanted is None:
        return _ids_alone(params)
    count = _LOGPROBS.parse("logprobs", wanted)
    params["logprobs"] = count
    return count


def logprob_ids(params: dict[str, Any]) -> list[int]:
    """The ids that a body wants log-probabilities of, by either name. Raises InvalidParamsError."""
    option = SAMPLING["logprob_token_ids"]
    given = next(((name, params[name]) for name in (option.name, *option.aliases) if params.get(name) is not None), None)
    return [] if given is None else option.parse(given[1], given[0]) or []


def _ids_alone(params: dict[str, Any]) -> int | None:
    """The alternatives of a body that wants log-probabilities of given ids alone: none; None where it wants none at all."""
    if not logprob_ids(params):
        return None
    params["logprobs"] = 0
    return 0


def one_choice(model: Served, params: dict[str, Any]) -> None:
    """Raises ApiError for a body that wants another number of answers than one. The model's own default does not count."""
    count, field = num_results(params, 1)
    if count != 1:
        with_n = ", or n = 1 with it" if field == "beam_width" else ""
        raise wrong(field, f"= {count} means {count} answers, and here is one: give it to /v1/chat/completions{with_n}", "unsupported")
    if not means_beams(params) and model.defaults.get("n", 1) != 1:
        params["n"] = 1


def response_logprobs(taken: Taken, params: dict[str, Any]) -> int | None:
    """As chat_logprobs, for /v1/responses: `include` names them, or top_logprobs counts alternatives. All else that `include` names is not
    there."""
    included = taken.entries("include") or []
    for index, entry in enumerate(included):
        if not isinstance(entry, str):
            raise wrong(f"include[{index}]", "must be a string")
    if any(entry != _INCLUDED_LOGPROBS for entry in included):
        taken.ignored.append("include")
    top = taken.own.get("top_logprobs")
    count = 0 if top is None else _LOGPROBS.parse("top_logprobs", top)
    if _INCLUDED_LOGPROBS not in included and not count:
        return _ids_alone(params)
    params["logprobs"] = count
    return count


def stream_options(taken: Taken) -> tuple[bool, bool]:
    """(a chunk with usage at the end, usage in each chunk). Raises ApiError for a field that is in no list."""
    options = taken.mapping("stream_options") or {}
    known = ("include_usage", "continuous_usage_stats", "include_obfuscation")
    refuse_others("stream_options", options, known)
    if options and not taken.flag("stream"):
        raise wrong("stream_options", "needs stream: true", "contradiction")
    if options.get("include_obfuscation") is not None and Flag().parse(
        "stream_options.include_obfuscation", options["include_obfuscation"]
    ):
        taken.ignored.append("stream_options.include_obfuscation")
    return tuple(Flag().parse(f"stream_options.{name}", options.get(name) or False) for name in known[:2])  # type: ignore[return-value]
