"""Sampling parameters: vLLM's names and defaults, Hugging Face's as aliases, nothing dropped or clamped."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from llmi.base.kinds import TOKEN_IDS, Bias, Flag, Maybe, Object, Whole, entries_of, materialised, parse, refuse, show
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.params.constraint import Constraint
from llmi.params.foreign_options import CALL_FOREIGN, CALL_HINTS
from llmi.params.options import LEAST_CANDIDATES, MOST_CANDIDATES, SAMPLING, DefaultInt, is_streamer, unknown
from llmi.params.rows import check_rows, combined
from llmi.params.steering import comparable
from llmi.params.steps import FILTERS, asked_for, order_of
from llmi.params.structured import StructuredOutputsParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


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


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    """How tokens are drawn and when generation stops.

    Mutable; copied and validated when a request is submitted. Order of operations: masks (allowed ids, bad words,
    stop ids before `min_tokens`, `no_repeat_ngram_size`), bias, penalties, DRY, `logits_processors`, masks again; then the
    filters: top-n-sigma, temperature, min-p, top-k, top-p, typical, epsilon, eta, top-h, p-less, XTC, adaptive-p or
    mirostat. docs/samplers.md defines each step. At temperature 0 filters change nothing.

    Hugging Face's names are accepted for the same things (docs/parameters.md); unknown names raise TypeError.
    Numbers may be numpy's, lists may be arrays, tensors, ranges or generators; nothing is rounded or cut.

    Parameters
    ----------
    n : int
        Continuations per prompt; the prompt is computed once and its cache blocks are shared.
    temperature : float
        Logits are divided by it; 0 is greedy (the largest logit, lowest id on ties).
    top_p : float
        In (0, 1]: the smallest set of likeliest tokens whose mass reaches `top_p`, the crossing one included.
    top_k : int
        The k likeliest tokens; 0 and -1 keep all.
    min_p : float
        In [0, 1]: drops tokens less likely than `min_p` times the likeliest.
    seed : int, optional
        64-bit key of the noise. None and -1 draw one, which `RequestOutput.seed` records.
    max_tokens : int, optional
        Most tokens to generate; None goes on to the end of the context. One that does not fit there is refused, the
        default shortened.
    min_tokens : int
        Before this many tokens, end-of-text and stop ids are masked, and stop strings are ignored.
    stop : str or list of str, optional
        Generation ends where one appears in the text; it is cut off unless `include_stop_str_in_output`. The text of a
        special token ends it at that token.
    stop_regex : str or list of str, optional
        Generation ends at the first character with which one of these expressions matches a part of the text; the text is cut where that
        part begins, unless `include_stop_str_in_output`. The syntax is Python's, without look-around, backreferences, `$` and word
        boundaries; the time is linear in the text. `stop_reason` is the expression. A stream holds back what may become a match.
    stop_token_ids : list of int, optional
        Ids that end generation, in addition to the model's own end-of-text ids.
    eos_token_id : int or list of int, optional
        Ids that end a text instead of the model's own; an empty list: none. `stop_reason` is the id.
    repetition_detection : mapping, optional
        vLLM's: {"max_pattern_size", "min_pattern_size" (1), "min_count"}. Generation ends when the last tokens are min_count times the same
        pattern; finish_reason is "stop", stop_reason "repetition_detected". Not before `min_tokens`.
    thinking_token_budget : int, optional
        Most tokens of a block of thinking, counted in the output: then the model's mark that ends it (`</think>`) is the only token. 0 ends
        it at once. None and -1: no limit.
    ignore_eos : bool
        Go on past end-of-text.
    presence_penalty, frequency_penalty : float
        Subtracted from the logits of generated tokens: once, and once per occurrence.
    repetition_penalty : float
        Divides positive and multiplies negative logits of all tokens seen, prompt included (Keskar et al., 2019).
    penalty_last_n : int
        The three penalties see this many of the last tokens; -1 all, 0 none.
    no_repeat_ngram_size : int
        Bans tokens that complete an n-gram which prompt or output holds already; 0 is off.
    dry_multiplier, dry_base : float
        DRY: a token that would continue a repetition of `dry_allowed_length` tokens or more loses
        `dry_multiplier * dry_base ** (length - dry_allowed_length)`. A multiplier of 0 is off.
    dry_allowed_length, dry_penalty_last_n : int
        DRY: the shortest repetition that counts, and how many of the last tokens it sees (-1 all, 0 none).
    dry_sequence_breakers : str or list of str, optional
        DRY: no repetition reaches across one of these. None: newline, colon, double quote, star; [] none.
    typical_p : float
        In (0, 1]: the tokens whose surprise is nearest to the entropy, up to this mass (Meister et al., 2022).
    epsilon_cutoff, eta_cutoff : float
        In [0, 1): drop tokens less likely than epsilon, or than min(eta, sqrt(eta) exp(-entropy)) (Hewitt et al., 2022).
    top_h : float, optional
        In (0, 1]: the likeliest tokens up to this share of the entropy of the 100 likeliest (Potraghloo et al., 2025).
    top_n_sigma : float
        Keeps logits within this many standard deviations of the largest (Tang et al., 2024); 0 and less are off.
    p_less : bool
        Keeps tokens whose probability is at least the sum of all squared ones (Tan et al., 2025).
    xtc_probability, xtc_threshold : float
        In [0, 1]: with this probability, drops all tokens of at least the threshold but the least likely one. The coin of
        a position is a function of seed, sample and position.
    dynatemp_range, dynatemp_exponent : float
        The temperature goes from `temperature - range` to `temperature + range` with the normalised entropy to this power.
    mirostat : {0, 1, 2}
        Version of mirostat (Basu et al., 2021); 0 is off. It takes the place of all other filters but temperature.
    mirostat_tau, mirostat_eta : float
        Target of surprise, in bits, and rate of learning.
    adaptive_p, adaptive_p_decay : float
        Prefers tokens of about this probability, the average of those drawn corrected for (llama.cpp); below 0 it is off.
    sampler_order : {"hf", "llama.cpp"} or sequence of str, optional
        Names of penalties and filters in the order in which they run; masks, no_repeat_ngram_size and logit_bias come first.
    guidance_scale : float, optional
        Classifier-free guidance (Sanchez et al., 2024): with the log-softmaxes c of the prompt's row and u of the negative
        prompt's, the row before the masks is u + guidance_scale (c - u). None and 1 are off. A sample is two sequences.
    negative_prompt : str, list of int, or list of messages (in chat), optional
        What it leads away from; an empty one is beginning-of-text alone. None: the prompt's last token.
    dola_layers : {"low", "high"} or list of int, optional
        DoLa (Chuang et al., 2024): of these layers the one whose distribution is farthest from the last layer's is subtracted, within
        the tokens that have a tenth of the largest probability. 0 is the embedding; "low" and "high" are every other layer
        of a half.
    dola_rule : {"paper", "transformers"}
        "transformers": inner layers without the final norm, and its divergence, as for a batch of one.
    penalty_alpha : float, optional
        In [0, 1]: contrastive search (Su et al., 2022). It takes the token v among the `top_k` (2 to 64) likeliest with the largest
        `(1 - penalty_alpha) p(v) - penalty_alpha * c(v)`: p is the softmax of the processed row, c the largest cosine of
        v's last hidden state, after the final norm, with that of a token of prompt or output. It draws nothing: `temperature` is 0
        where it is not given, and `n` is 1. 0 is greedy.
    steering : mapping of int to array [hidden_size], optional
        Steering vectors (Turner et al., 2023): each is added in fp32 to the residual stream after its layer, at every position of prompt
        and output (and of a negative prompt). 0 is the embedding's output, i layer i, -1 the last one. Hidden states and drafters that read
        them see the steered stream, draft models do not, and cached blocks serve requests with the same steering alone.
    logit_bias : mapping of int to float, optional
        Added to logits; -inf bans.
    bad_words : str or list of str or of lists of int, optional
        Words that never appear in the output. Given as token ids they are transformers' `bad_words_ids`.
    allowed_token_ids : list of int, optional
        All other ids are banned.
    logprobs, prompt_logprobs : int, optional
        0 records the log-probability of each token, n also the n likeliest, -1 the whole vocabulary.
    logprob_token_ids : list of int, optional
        Ids whose log-probabilities come with each token's, besides those of `logprobs`, which is 0 where it is not given.
    structured_outputs : StructuredOutputsParams, dict of its fields, or Constraint, optional
        What the output must be: a JSON schema, a regular expression, a choice, a grammar (they need the extra `structured`), or an
        automaton. It masks before the logits processors, and again after them.
    logits_processors : callable or iterable of callables
        `f(context, logits)`: changes logits in place or returns an array. transformers' LogitsProcessor works too.
    stopping_criteria : callable or iterable of callables
        `f(context)` after each token: True, or a string that becomes the stop reason, ends generation. transformers'
        StoppingCriteria and streamers work too.
    sampler : callable, optional
        `f(context, law) -> token_id` draws instead of llmi; `law` holds processed logits, -inf where cut.
    detokenize, skip_special_tokens, include_stop_str_in_output : bool
        What text the output holds.
    output_kind : {"cumulative", "delta", "final"}
        What each step of `AsyncLLM.generate` holds: all text so far, the new text, or one output at the end. Other calls
        take it without effect: `stream` gives deltas, `generate` whole results.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = DefaultInt(256)
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    eos_token_id: int | list[int] | None = None
    repetition_detection: Mapping[str, int] | None = None
    thinking_token_budget: int | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    penalty_last_n: int = -1
    no_repeat_ngram_size: int = 0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: str | list[str] | None = None
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    top_h: float | None = None
    top_n_sigma: float = -1.0
    p_less: bool = False
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_p: float = -1.0
    adaptive_p_decay: float = 0.9
    sampler_order: Sequence[str] | Literal["hf", "llama.cpp"] | None = None
    guidance_scale: float | None = None
    negative_prompt: str | list[int] | list[Mapping[str, Any]] | None = None
    dola_layers: Literal["low", "high"] | list[int] | None = None
    dola_rule: Literal["paper", "transformers"] = "paper"
    penalty_alpha: float | None = None
    steering: Mapping[int, ArrayLike] | None = None
    logit_bias: Mapping[int, float] | None = None
    bad_words: str | list[str] | list[list[int]] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | Constraint[Any] | None = None
    logits_processors: LogitsProcessor | Iterable[LogitsProcessor] = ()
    stopping_criteria: StoppingCriterion | Iterable[StoppingCriterion] = ()
    sampler: Callable[[TokenContext, F32], int] | None = None
    logprob_token_ids: list[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    output_kind: Literal["cumulative", "delta", "final"] = "cumulative"

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
FIELDS = tuple(field.name for field in dataclasses.fields(SamplingParams))
_fields_init = SamplingParams.__init__


@functools.wraps(_fields_init)
def _init(self: SamplingParams, **params: object) -> None:
    values = canonical(params, "SamplingParams")[0]
    if values.get("penalty_alpha") is not None and values.get("temperature") is None:
        values["temperature"] = 0.0
    _fields_init(self, **values)
    self._materialise()


SamplingParams.__init__ = _init  # type: ignore[method-assign]

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
