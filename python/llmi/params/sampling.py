"""Sampling parameters: vLLM's names and defaults, Hugging Face's as aliases, nothing dropped or clamped."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from llmi.base.kinds import (
    TOKEN_IDS,
    Bias,
    Flag,
    Maybe,
    Object,
    Objects,
    Whole,
    callable_object,
    entries_of,
    materialised,
    parse,
    refuse,
    show,
)
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.params.constraint import Constraint
from llmi.params.fields import (
    LEAST_CANDIDATES,
    MOST_CANDIDATES,
    CountField,
    DrawFields,
    EditFields,
    OutputFields,
    RowFields,
)
from llmi.params.foreign_options import CALL_FOREIGN, CALL_HINTS
from llmi.params.options import DefaultInt, Documented, field, is_streamer, options_of, unknown
from llmi.params.rows import check_rows, combined
from llmi.params.steering import comparable
from llmi.params.steps import FILTERS, asked_for, order_of
from llmi.params.structured import StructuredKind, StructuredOutputsParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclasses.dataclass
class TokenContext:
    """What a hook sees of the sequence at one emitted token.

    Attributes
    ----------
    request_id : str
    index : int
        Of the sample among n.
    token_ids : int32 array [len]
        Prompt and output so far.
    prompt_len : int
    text, output_text : str
        Prompt and output, and the output alone; whole characters only.
    logits : float32 array [vocab_size]
        In a stopping criterion: the model's raw logits that the last token was drawn from. In a processor: the row
        that is being processed.
    sampling_params : SamplingParams
    state : dict
        The request's own memory, one per sample; copied from the first sample when n > 1 starts.

    Examples
    --------
    >>> def ban_repeats(context, logits):
    ...     logits[context.token_ids[context.prompt_len :]] = -np.inf
    >>> output = llm.generate("The sea is", logits_processors=ban_repeats, max_tokens=16)[0]
    >>> len(set(output.token_ids)) == len(output.token_ids)
    True
    """

    request_id: str
    index: int
    token_ids: NDArray[np.int32]
    prompt_len: int
    text: str
    output_text: str
    logits: NDArray[np.float32]
    sampling_params: SamplingParams
    state: dict[str, Any]


if TYPE_CHECKING:
    F32 = NDArray[np.float32]
LogitsProcessor: TypeAlias = "Callable[[TokenContext, F32], F32 | None]"
StoppingCriterion: TypeAlias = "Callable[[TokenContext], bool | str]"


def _is_criterion(value: object) -> bool:
    return callable_object(value) or is_streamer(value)


@dataclasses.dataclass(kw_only=True)
class HookFields:
    """The user's own code, but for the sampler."""

    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | Constraint[Any] | None = field(
        None,
        Maybe(StructuredKind()),
        "What the output must be: a JSON schema, a regular expression, a choice, a grammar (they need the extra `structured`), or an"
        " automaton (Constraint). It masks before the logits processors, and again after them.",
    )
    logits_processors: LogitsProcessor | Iterable[LogitsProcessor] = field(
        (),
        Objects("callables f(context, logits)", callable_object),
        "Functions that change the logits. f(context, logits) changes them in place or returns an array; transformers' LogitsProcessor"
        " works too.",
        ("logits_processor",),
    )
    stopping_criteria: StoppingCriterion | Iterable[StoppingCriterion] = field(
        (),
        Objects("callables f(context) or streamers", _is_criterion),
        "Functions that end generation; transformers' StoppingCriteria and streamers too. f(context) is called after each token: True, or a"
        " string that becomes the stop reason, ends generation.",
    )


@dataclasses.dataclass(kw_only=True)
class SamplerField:
    """Who draws."""

    sampler: Callable[[TokenContext, F32], int] | None = field(
        None,
        Maybe(Object("a callable f(context, law)", callable_object)),
        "Draws the token instead of llmi. f(context, law) returns its id; law holds processed logits, -inf where cut.",
    )


@dataclasses.dataclass(kw_only=True)
class SamplingParams(OutputFields, SamplerField, HookFields, EditFields, RowFields, DrawFields, CountField):
    """How tokens are drawn and when generation stops.

    Mutable; copied and validated when a request is submitted. Order of operations: masks (allowed ids, bad words,
    stop ids before `min_tokens`, `no_repeat_ngram_size`), bias, penalties, DRY, `logits_processors`, masks again; then the
    filters: top-n-sigma, temperature, min-p, top-k, top-p, typical, epsilon, eta, top-h, p-less, XTC, adaptive-p or
    mirostat. docs/samplers.md defines each step. At temperature 0 filters change nothing.

    Hugging Face's names are accepted for the same things (docs/parameters.md); unknown names raise TypeError.
    Numbers may be numpy's, lists may be arrays, tensors, ranges or generators; nothing is rounded or cut.

    Examples
    --------
    >>> params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=8, seed=7)
    >>> llm.generate("The sea is", params).texts == llm.generate("The sea is", params).texts
    True
    >>> SamplingParams(max_new_tokens=8, do_sample=False).temperature
    0.0
    """

    def replace(self, **changes: object) -> SamplingParams:
        """A copy with these fields changed; aliases are understood, unknown names raise TypeError."""
        return dataclasses.replace(self, **canonical(changes, "SamplingParams.replace")[0])

    def validate(self) -> None:
        """Raise InvalidParamsError for the first value that is not what it must be or contradicts another."""
        dataclasses.replace(self)._settle()

    def _settle(self) -> None:
        """Replaces every value by its plain form, then checks the values that depend on each other."""
        for name, option in SAMPLING.items():
            value = getattr(self, name)
            # A default is in its plain form (tests/sampling/test_sampling.py).
            if value is not option.default and not isinstance(value, DefaultInt):
                setattr(self, name, option.parse(value))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParamsError(f"min_tokens = {self.min_tokens} exceeds max_tokens = {self.max_tokens}", "min_tokens")
        if self.stop and not self.detokenize:
            raise UnsupportedCombinationError("stop strings need detokenize=True", "stop", "detokenize")
        if self.stop_regex and not self.detokenize:
            raise UnsupportedCombinationError("stop_regex needs detokenize=True", "stop_regex", "detokenize")
        if self.logprob_token_ids and self.logprobs is None:
            self.logprobs = 0
        self._settle_steps()
        check_rows(self)
        self._settle_contrast()

    def _settle_steps(self) -> None:
        """Checks that the steps fit together (llmi/params/steps.py)."""
        steps = asked_for({name: getattr(self, name) for name in FIELDS})
        if self.mirostat:
            for name in steps:
                if name in FILTERS and name not in ("temperature", "mirostat"):
                    raise UnsupportedCombinationError(
                        f"mirostat = {self.mirostat} takes the place of the filters: {name} = {show(getattr(self, name))} cannot be set"
                        " with it",
                        "mirostat",
                        name,
                    )
        if self.sampler_order is None:
            return
        if not isinstance(self.sampler_order, str):
            self.sampler_order = tuple(self.sampler_order)
        order = order_of(self.sampler_order)
        for name in order:
            if order.count(name) > 1:
                raise InvalidParamsError(f"sampler_order holds {name!r} twice", "sampler_order")
        for name in steps:
            if name not in order:
                raise InvalidParamsError(f"sampler_order = {show(self.sampler_order)} lacks {name!r}, which is set", "sampler_order")

    def _settle_contrast(self) -> None:
        """Checks what contrastive search needs."""
        if self.penalty_alpha is None:
            return
        given = f"penalty_alpha = {self.penalty_alpha:g}"
        if not LEAST_CANDIDATES <= self.top_k <= MOST_CANDIDATES:
            raise InvalidParamsError(
                f"{given} needs top_k in [{LEAST_CANDIDATES}, {MOST_CANDIDATES}], the number of its candidates: it is {self.top_k}",
                "penalty_alpha",
            )
        for name, holds in (("temperature", self.temperature != 0), ("n", self.n != 1)):
            if holds:
                raise UnsupportedCombinationError(
                    f"{given} draws nothing: {name} = {show(getattr(self, name))} cannot be set with it", "penalty_alpha", name
                )
        if (combiner := combined(self)) is not None:
            raise UnsupportedCombinationError(
                f"{given} chooses by the model's own row: {combiner} cannot be set with it", "penalty_alpha", combiner
            )
        if self.sampler is not None:
            raise UnsupportedCombinationError(f"{given} names the token itself: sampler cannot be set with it", "penalty_alpha", "sampler")

    def _materialise(self) -> None:
        """Reads iterators into tuples, so that every prompt and the next call get their values."""
        for name in SAMPLING:
            value = getattr(self, name)
            if type(value) in _PLAIN:
                continue
            if (again := materialised(name, value)) is not value:
                setattr(self, name, again)
        self.steering = comparable(self.steering)

    def has_hooks(self) -> bool:
        """Whether Python takes part in decoding."""
        return bool(self.logits_processors or self.stopping_criteria or self.sampler is not None or self.structured_outputs is not None)

    def stop_list(self) -> list[str]:
        """`stop` as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


#: Types of values that are read as often as one likes.
_PLAIN = frozenset({type(None), bool, int, float, str})
#: Parameters that are Python code: a receipt does not hold them.
HOOKS = ("structured_outputs", "logits_processors", "stopping_criteria", "sampler")
#: The table of the fields, in the order of the classes above, the last one first.
SAMPLING = options_of(SamplingParams)
FIELDS = tuple(SAMPLING)
_fields_init = SamplingParams.__init__


@functools.wraps(_fields_init)
def _init(self: SamplingParams, **params: object) -> None:
    values = canonical(params, "SamplingParams")[0]
    if values.get("penalty_alpha") is not None and values.get("temperature") is None:
        values["temperature"] = 0.0
    _fields_init(self, **values)
    self._materialise()


SamplingParams.__init__ = _init  # type: ignore[method-assign]
SamplingParams.__doc__ = Documented(SamplingParams.__doc__, SAMPLING)  # type: ignore[assignment]

#: Hugging Face's names for the same things.
ALIASES = {alias: option.name for option in SAMPLING.values() for alias in option.aliases}
_STREAMER = Object("a transformers streamer, with put() and end()", is_streamer)
#: Limits that count the prompt too, and have no effect together with a limit of new tokens.
_OUTRANKED = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}
_LENGTH = Maybe(Whole(0, 2**63 - 1))
#: Hugging Face's names that mean something of their own; see `canonical`.
_TRANSLATED = ("do_sample", "streamer", "suppress_tokens", "sequence_bias")


def canonical(params: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(values by field name, arguments without effect) of what a user gave; contradictions and unknown names are refused.

    Values given by another name are in their plain form, the others as they were given.
    """
    strangers = [
        name for name in params if name not in SAMPLING and name not in ALIASES and name not in _TRANSLATED and name not in CALL_FOREIGN
    ]
    if strangers:
        raise unknown("unknown sampling parameters", strangers, [*FIELDS, *ALIASES, *_TRANSLATED], CALL_HINTS)
    result: dict[str, Any] = {name: value for name, value in params.items() if name in SAMPLING}
    no_effect: dict[str, Any] = {}
    source = {name: name for name in result}
    for name, value in params.items():
        if name in ALIASES:
            if value is None:
                continue  # transformers' default
            field = ALIASES[name]
            parsed = SAMPLING[field].parse(_bad_words_ids(value) if name == "bad_words_ids" else value, name)
            if field in result:
                other = SAMPLING[field].parse(result[field], source[field])
                if other != parsed and not isinstance(result[field], DefaultInt):
                    raise InvalidParamsError(f"{source[field]} and {name} contradict each other: {show(other)} and {show(parsed)}", field)
            result[field], source[field] = parsed, name
        elif name in _OUTRANKED and params.get(_OUTRANKED[name]) is not None:  # as in transformers
            no_effect[name] = parse(_LENGTH, name, value)
        elif name in CALL_FOREIGN:
            CALL_FOREIGN[name].check(value, where)
            if CALL_FOREIGN[name].inert is not None and value is not None:
                no_effect[name] = value
    _translate(params, result)
    return result, no_effect


def _translate(params: Mapping[str, Any], result: dict[str, Any]) -> None:
    """Arguments of transformers that have no field of their own."""
    if params.get("do_sample") is not None:
        if not parse(Flag(), "do_sample", params["do_sample"]):
            result["temperature"] = 0.0  # whatever temperature, top_k and top_p are, as in transformers
        elif result.get("penalty_alpha") is not None:
            raise UnsupportedCombinationError("do_sample=True and penalty_alpha contradict each other", "do_sample", "penalty_alpha")
        elif "temperature" in result and SAMPLING["temperature"].parse(result["temperature"]) == 0:
            raise InvalidParamsError("do_sample=True and temperature=0 contradict each other", "do_sample")
    if params.get("streamer") is not None:
        criteria = SAMPLING["stopping_criteria"].parse(result.get("stopping_criteria", ()))
        result["stopping_criteria"] = (*criteria, parse(_STREAMER, "streamer", params["streamer"]))
    biases: list[dict[int, float]] = []
    if params.get("sequence_bias") is not None:
        biases.append(sequence_bias("sequence_bias", params["sequence_bias"]))
    if params.get("suppress_tokens") is not None:
        biases.append(dict.fromkeys(parse(TOKEN_IDS, "suppress_tokens", params["suppress_tokens"]), -math.inf))
    if biases:
        total = SAMPLING["logit_bias"].parse(result.get("logit_bias")) or {}
        for bias in biases:
            for token, value in bias.items():
                total[token] = total.get(token, 0.0) + value
        result["logit_bias"] = total


def sequence_bias(name: str, value: object) -> dict[int, float]:
    """transformers' {(id, ...): bias} or [[[id, ...], bias], ...] as biases of single tokens; longer sequences are refused by name."""
    rule = "a mapping of tuples of token ids to numbers, or a list of [ids, number]"
    pairs = list(value.items()) if isinstance(value, Mapping) else entries_of(name, value)
    if pairs is None:
        raise refuse(name, rule, value)
    result: dict[int, float] = {}
    for pair in pairs:
        entry = list(pair) if isinstance(pair, tuple) else entries_of(name, pair)
        if entry is None or len(entry) != 2:
            raise refuse(name, rule, value)
        ids = parse(TOKEN_IDS, f"a sequence of {name}", entry[0])
        if len(ids) != 1:
            raise UnsupportedCombinationError(
                f"{name}: the sequence {ids} has {len(ids)} tokens, a bias is for one (write a logits processor for longer ones)",
                name,
                "logit_bias",
            )
        result |= parse(Bias(1), name, {ids[0]: entry[1]})
    return result


def _bad_words_ids(value: object) -> list[list[int]]:
    entries = entries_of("bad_words_ids", value)
    if entries is None:
        raise refuse("bad_words_ids", "a list of lists of token ids", value)
    words = []
    for index, entry in enumerate(entries):
        words.append(parse(TOKEN_IDS, f"bad_words_ids[{index}]", entry))
        if not words[-1]:
            raise InvalidParamsError(f"bad_words_ids[{index}] is empty", "bad_words_ids")
    return words
