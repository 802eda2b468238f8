"""The table of options: SamplingParams fields and the options of calls, each with its kind, default, and what it means."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeGuard

from llmi.base.kinds import (
    FLOAT32_MAX,
    MAX_ENTRIES,
    TOKEN_ID,
    TOKEN_IDS,
    Bias,
    Choice,
    Either,
    Flag,
    Kind,
    Listed,
    Maybe,
    Neutral,
    Object,
    Objects,
    Real,
    Text,
    Whole,
    callable_object,
    entries_of,
    parse,
)
from llmi.errors import InvalidParamsError

#: Largest values a request may carry, checked before anything is allocated for it.
LIMITS = {"n": 128, "logprobs": 10_000, "stop": 64, "stop_bytes": 4096, "logit_bias": 65_536, "bad_words": 65_536}
_MANY = 2**31 - 1
_SMALLEST, _LARGEST = 1e-30, 1e30  # of divisors: logits stay finite floats


class DefaultInt(int):
    """A default that nobody gave: it may be shortened, where a number that a user gave is refused."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One argument: its valid values, its default, its meaning, and its names in other engines.

    passed_on: the core takes the value unchanged, under this name (csrc/engine/options.h, csrc/sampling/params.h).
    """

    name: str
    kind: Kind
    default: object
    doc: str
    aliases: tuple[str, ...] = ()
    passed_on: bool = False

    def parse(self, value: object, given_as: str = "") -> Any:
        """The value in its plain form. Raises InvalidParamsError that names the argument as it was given."""
        return parse(self.kind, given_as or self.name, value)


def table(*options: Option) -> dict[str, Option]:
    """Options by name."""
    return {option.name: option for option in options}


class Streamer(Protocol):
    """A transformers streamer."""

    def put(self, value: object) -> object:
        """The prompt's token ids [1, len], then each new one [1]."""

    def end(self) -> object:
        """No more will come."""


def is_streamer(value: object) -> TypeGuard[Streamer]:
    """Whether `value` is a transformers streamer: an object with put() and end()."""
    return callable_object(getattr(value, "put", None)) and callable_object(getattr(value, "end", None)) and not isinstance(value, type)


def _is_criterion(value: object) -> bool:
    return callable_object(value) or is_streamer(value)


def _is_constraint(value: object) -> bool:
    return hasattr(value, "initial_state") and not isinstance(value, type)


SEED = Maybe(Whole(-1, 2**64 - 1, "None, -1 (both: drawn) or an integer in [0, 2^64)"), none=(-1,))
_PENALTY = Neutral(Real(-_LARGEST, _LARGEST, "a finite number"), 0.0)
_COUNT = Maybe(
    Whole(-1, LIMITS["logprobs"], f"None, or how many: an integer in [-1, {LIMITS['logprobs']:,}] (OpenAI's logprobs=True is logprobs=0)")
)
_WORD = Text(LIMITS["stop_bytes"])
_IDS_OF_WORD = Listed(TOKEN_ID, "a list of at least one token id", 4096, min_len=1)

SAMPLING = table(
    Option("n", Whole(1, LIMITS["n"]), 1, "Continuations per prompt.", ("num_return_sequences",)),
    Option(
        "temperature",
        Neutral(Real(_SMALLEST, _LARGEST, f"0 (greedy) or a number in [{_SMALLEST:g}, {_LARGEST:g}]", zero=True), 1.0),
        1.0,
        "Logits are divided by it; 0 is greedy.",
        passed_on=True,
    ),
    Option("top_p", Neutral(Real(0, 1, "a number in (0, 1]", open_low=True), 1.0), 1.0, "Keeps the smallest set of likeliest tokens whose probabilities sum to at least this.", passed_on=True),
    Option("top_k", Neutral(Whole(-1, _MANY, "0 or -1 (both: all) or an integer in [1, 2^31)"), 0), 0, "Keeps the k likeliest tokens; 0 and -1 keep all."),
    Option("min_p", Neutral(Real(0, 1), 0.0), 0.0, "Drops tokens less likely than this times the likeliest.", passed_on=True),
    Option("seed", SEED, None, "64-bit key of the noise; None and -1 draw a random one, which the output records."),
    Option(
        "max_tokens",
        Maybe(Whole(1, _MANY, "None or an integer in [1, 2^31)")),
        DefaultInt(256),
        "Most tokens to generate; None: to the end of the context.",
        ("max_new_tokens",),
    ),
    Option("min_tokens", Neutral(Whole(0, _MANY), 0), 0, "Before this many tokens neither end-of-text nor a stop ends generation.", ("min_new_tokens",), passed_on=True),
    Option(
        "stop",
        Maybe(Listed(_WORD, "a string or a list of strings", LIMITS["stop"], single=True)),
        None,
        "Generation ends where one of these appears in the text.",
        ("stop_strings",),
    ),
    Option("stop_token_ids", Maybe(TOKEN_IDS), None, "Ids that end generation, in addition to end-of-text."),
    Option(
        "eos_token_id",
        Maybe(Listed(TOKEN_ID, "a token id or a list of token ids", MAX_ENTRIES, single=True)),
        None,
        "Replaces the model's end-of-text ids; an empty list: none.",
    ),
    Option("ignore_eos", Flag(), False, "Continue past end-of-text.", passed_on=True),
    Option("include_stop_str_in_output", Flag(), False, "Keep the stop string in the text.", passed_on=True),
    Option("presence_penalty", _PENALTY, 0.0, "Subtracted once from the logits of generated tokens.", passed_on=True),
    Option("frequency_penalty", _PENALTY, 0.0, "Subtracted for each occurrence in the output.", passed_on=True),
    Option(
        "repetition_penalty",
        Neutral(Real(_SMALLEST, _LARGEST, f"a positive number in [{_SMALLEST:g}, {_LARGEST:g}]"), 1.0),
        1.0,
        "Divides positive and multiplies negative logits of all tokens seen.",
        passed_on=True,
    ),
    Option("logit_bias", Maybe(Bias(LIMITS["logit_bias"])), None, "Added to logits; -inf bans."),
    Option(
        "bad_words",
        Maybe(
            Listed(
                Either((_WORD, _IDS_OF_WORD), "a string of 1 to 4,096 bytes or a list of token ids"),
                "a string or a list of strings or of lists of token ids",
                LIMITS["bad_words"],
                single=True,
            )
        ),
        None,
        "Words that never appear in the output.",
        ("bad_words_ids",),
    ),
    Option("allowed_token_ids", Maybe(Listed(TOKEN_ID, "a list of at least one token id", MAX_ENTRIES, min_len=1)), None, "All other ids are banned."),
    Option(
        "structured_outputs",
        Maybe(Object("a Constraint (grammars come in a later version)", _is_constraint)),
        None,
        "An automaton that says which tokens are allowed next.",
    ),
    Option(
        "logits_processors", Objects("callables f(context, logits)", callable_object), (), "Functions that change the logits.", ("logits_processor",)
    ),
    Option("stopping_criteria", Objects("callables f(context) or streamers", _is_criterion), (), "Functions that end generation; transformers' streamers too."),
    Option("sampler", Maybe(Object("a callable f(context, law)", callable_object)), None, "Draws the token instead of llmi."),
    Option("logprobs", _COUNT, None, "Log-probabilities. 0: of each token; n: also of the n likeliest; -1: of the whole vocabulary."),
    Option("prompt_logprobs", _COUNT, None, "The same for the prompt's tokens."),
    Option("detokenize", Flag(), True, "Make text of the tokens.", passed_on=True),
    Option("skip_special_tokens", Flag(), True, "Leave special tokens out of the text.", passed_on=True),
    Option(
        "output_kind",
        Choice(("cumulative", "delta", "final"), {"final_only": "final"}),
        "cumulative",
        "What each step of AsyncLLM.generate holds: all so far, the new part, or one output at the end.",
    ),
)  # fmt: skip

PRIORITY = Whole(-(2**63), 2**63 - 1, "an integer in [-2^63, 2^63)")
CALL = table(
    Option("priority", PRIORITY, 0, "With scheduling_policy='priority', requests with smaller numbers run first; one number, or one for each prompt."),
    Option("trace", Flag(), False, "Record how each token came about: drafted, accepted, rejected or drawn."),
    Option("on_error", Choice(("raise", "return")), "raise", "'raise': the first error; 'return': the prompt's output holds its error."),
    Option("use_tqdm", Maybe(Flag()), None, "A progress bar. None: for several prompts, if the output is a terminal or notebook."),
    Option("add_generation_prompt", Flag(), True, "End the rendered chat with the beginning of an answer."),
    Option("continue_final_message", Flag(), False, "Continue the last message instead of beginning an answer."),
    Option("add_special_tokens", Flag(), True, "Put beginning-of-text in front, if the model expects it."),
    Option("parse_special", Flag(), False, "Read names of special tokens in a text as those tokens."),
    Option("skip_special_tokens", Flag(), True, "Leave special tokens out of the text."),
    Option("tokenize", Flag(), True, "Return token ids, not text."),
    Option("same_noise", Flag(), False, "A fork repeats its parent's draws."),
    Option("request_id", Maybe(Text(4096)), None, "A name for the request; None: a new one."),
    Option("max_length", Maybe(Whole(2, _MANY, "None or an integer in [2, the model's context]")), None, "Tokens in one window."),
    Option("stride", Maybe(Whole(1, _MANY, "None or an integer of 1 or more")), None, "Tokens from the beginning of one window to the next."),
    Option("num_tokens", Whole(0, _MANY, "an integer of 0 or more"), 0, "How many tokens to take back."),
    Option("timeout_s", Maybe(Real(0, FLOAT32_MAX, "None or a number of 0 or more")), None, "Longest wait, in seconds; None: no limit."),
    Option("drain", Flag(), True, "Finish running requests first."),
)  # fmt: skip


def option(name: str, value: object) -> Any:
    """An option of a call, in its plain form."""
    return CALL[name].parse(value)


def parse_all(options: Mapping[str, Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Each value in its plain form."""
    return {name: options[name].parse(value) for name, value in values.items()}


def one_or_each(name: str, kind: Kind, value: object, num_prompts: int) -> list[Any]:
    """The value of each prompt: one value repeated, or a list with one for each prompt."""
    entries = None if isinstance(value, str) else entries_of(name, value)
    if entries is None:
        return [parse(kind, name, value)] * num_prompts
    if len(entries) != num_prompts:
        raise InvalidParamsError(f"{len(entries)} {name} for {num_prompts} prompts", name)
    return entries


def nearest(name: str, known: Iterable[str], hints: Mapping[str, str]) -> str:
    """ "; did you mean 'x'?", or nothing."""
    import difflib

    if name in hints:
        return f" (it is {hints[name]} here)"
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def unknown(what: str, names: Iterable[Any], known: Iterable[str], hints: Mapping[str, str]) -> TypeError:
    """The error for all unknown arguments at once, each with its nearest name."""
    known = list(known)
    listed = ", ".join(f"{name!r}{nearest(str(name), known, hints)}" for name in names)
    return TypeError(f"{what}: {listed}")
