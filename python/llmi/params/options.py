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
from llmi.params.repetition import RepetitionKind
from llmi.params.rows import is_message
from llmi.params.steering import SteeringKind
from llmi.params.steps import ORDERS, STEPS
from llmi.params.structured import StructuredKind

#: Largest values a request may carry, checked before anything is allocated for it.
LIMITS = {
    "n": 128,
    "logprobs": 10_000,
    "stop": 64,
    "stop_bytes": 4096,
    "stop_regex": 16,
    "stop_regex_bytes": 1024,
    "logit_bias": 65_536,
    "bad_words": 65_536,
}
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


SEED = Maybe(Whole(-1, 2**64 - 1, "None, -1 (both: drawn) or an integer in [0, 2^64)"), none=(-1,))
_PENALTY = Neutral(Real(-_LARGEST, _LARGEST, "a finite number"), 0.0)
_COUNT = Maybe(
    Whole(-1, LIMITS["logprobs"], f"None, or how many: an integer in [-1, {LIMITS['logprobs']:,}] (OpenAI's logprobs=True is logprobs=0)")
)
_WORD = Text(LIMITS["stop_bytes"])
_OFF_BELOW_ONE = "a number in [0, 1)"
_UNTIL_ONE = 1 - 2.0**-53  # the largest number below 1
#: Candidates of contrastive search.
LEAST_CANDIDATES, MOST_CANDIDATES = 2, 64
#: llama.cpp's own breakers of DRY.
DRY_BREAKERS = ("\n", ":", '"', "*")
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
    Option(
        "top_p",
        Neutral(Real(0, 1, "a number in (0, 1]", open_low=True), 1.0),
        1.0,
        "Keeps the smallest set of likeliest tokens whose probabilities sum to at least this.",
        passed_on=True,
    ),
    Option(
        "top_k",
        Neutral(Whole(-1, _MANY, "0 or -1 (both: all) or an integer in [1, 2^31)"), 0),
        0,
        "Keeps the k likeliest tokens; 0 and -1 keep all.",
    ),
    Option("min_p", Neutral(Real(0, 1), 0.0), 0.0, "Drops tokens less likely than this times the likeliest.", passed_on=True),
    Option("seed", SEED, None, "64-bit key of the noise; None and -1 draw a random one, which the output records."),
    Option(
        "max_tokens",
        Maybe(Whole(0, _MANY, "None, 0 or an integer in [1, 2^31)")),
        DefaultInt(256),
        "Most tokens to generate; None: to the end of the context; 0, with prompt_logprobs: none, the prompt is scored.",
        ("max_new_tokens",),
    ),
    Option(
        "min_tokens",
        Neutral(Whole(0, _MANY), 0),
        0,
        "Before this many tokens neither end-of-text nor a stop ends generation.",
        ("min_new_tokens",),
        passed_on=True,
    ),
    Option(
        "stop",
        Maybe(Listed(_WORD, "a string or a list of strings", LIMITS["stop"], single=True)),
        None,
        "Generation ends where one of these appears in the text.",
        ("stop_strings",),
    ),
    Option(
        "stop_regex",
        Maybe(Listed(Text(LIMITS["stop_regex_bytes"]), "a string or a list of strings", LIMITS["stop_regex"], single=True)),
        None,
        "Generation ends where one of these regular expressions (Python's syntax) matches a part of the text.",
    ),
    Option("stop_token_ids", Maybe(TOKEN_IDS), None, "Ids that end generation, in addition to end-of-text."),
    Option(
        "eos_token_id",
        Maybe(Listed(TOKEN_ID, "a token id or a list of token ids", MAX_ENTRIES, single=True)),
        None,
        "Replaces the model's end-of-text ids; an empty list: none.",
    ),
    Option(
        "repetition_detection",
        Maybe(RepetitionKind()),
        None,
        "Generation ends where a pattern of min_pattern_size to max_pattern_size tokens has come min_count times in a row.",
    ),
    Option(
        "thinking_token_budget",
        Maybe(Whole(-1, _MANY, "None, -1 (both: no limit) or an integer in [0, 2^31)"), none=(-1,)),
        None,
        "Most tokens of a block of thinking: then the mark that ends it follows.",
    ),
    Option("ignore_eos", Flag(), False, "Continue past end-of-text.", passed_on=True),
    Option("include_stop_str_in_output", Flag(), False, "Keep the stop string, or what stop_regex matched, in the text.", passed_on=True),
    Option("presence_penalty", _PENALTY, 0.0, "Subtracted once from the logits of generated tokens.", passed_on=True),
    Option("frequency_penalty", _PENALTY, 0.0, "Subtracted for each occurrence in the output.", passed_on=True),
    Option(
        "repetition_penalty",
        Neutral(Real(_SMALLEST, _LARGEST, f"a positive number in [{_SMALLEST:g}, {_LARGEST:g}]"), 1.0),
        1.0,
        "Divides positive and multiplies negative logits of all tokens seen.",
        passed_on=True,
    ),
    Option(
        "penalty_last_n",
        Neutral(Whole(-1, _MANY, "-1 (all) or an integer in [0, 2^31)"), -1),
        -1,
        "How many of the last tokens the three penalties see; -1: all.",
        ("repeat_last_n",),
        passed_on=True,
    ),
    Option(
        "no_repeat_ngram_size",
        Neutral(Whole(0, _MANY, "0 (off) or an integer in [1, 2^31)"), 0),
        0,
        "Bans tokens that complete an n-gram which prompt or output holds already; 0 is off.",
        passed_on=True,
    ),
    Option(
        "dry_multiplier",
        Neutral(Real(0, _LARGEST), 0.0),
        0.0,
        "DRY: subtracts this times dry_base^(length - dry_allowed_length) from a token that would make a repetition longer; 0 is off.",
        passed_on=True,
    ),
    Option(
        "dry_base", Neutral(Real(1, _LARGEST), 1.75), 1.75, "DRY: how fast its penalty grows with the repetition's length.", passed_on=True
    ),
    Option(
        "dry_allowed_length",
        Neutral(Whole(1, _MANY, "an integer in [1, 2^31)"), 2),
        2,
        "DRY: shorter repetitions are free.",
        passed_on=True,
    ),
    Option(
        "dry_penalty_last_n",
        Neutral(Whole(-1, _MANY, "-1 (all) or an integer in [0, 2^31)"), -1),
        -1,
        "DRY: how many of the last tokens it sees; -1: all (llama.cpp: 64), 0: none.",
        passed_on=True,
    ),
    Option(
        "dry_sequence_breakers",
        Maybe(Listed(Text(40), "a string of 1 to 40 bytes or a list of such strings", 64, single=True)),
        None,
        f"DRY: no repetition reaches across one of these; None: {', '.join(map(repr, DRY_BREAKERS))}; an empty list: none.",
    ),
    Option(
        "typical_p",
        Neutral(Real(0, 1, "a number in (0, 1]", open_low=True), 1.0),
        1.0,
        "Keeps the tokens whose surprise is nearest to the entropy, up to this probability.",
        ("typical",),
        passed_on=True,
    ),
    Option(
        "epsilon_cutoff",
        Neutral(Real(0, _UNTIL_ONE, _OFF_BELOW_ONE), 0.0),
        0.0,
        "Drops tokens less likely than this; 0 is off.",
        passed_on=True,
    ),
    Option(
        "eta_cutoff",
        Neutral(Real(0, _UNTIL_ONE, _OFF_BELOW_ONE), 0.0),
        0.0,
        "Drops tokens less likely than min(eta, sqrt(eta) exp(-entropy)); 0 is off.",
        passed_on=True,
    ),
    Option(
        "top_h",
        Maybe(Real(0, 1, "a number in (0, 1]", open_low=True)),
        None,
        "Keeps the likeliest tokens up to this share of the entropy of the 100 likeliest.",
    ),
    Option(
        "top_n_sigma",
        Neutral(Real(-_LARGEST, _LARGEST, "a finite number"), -1.0),
        -1.0,
        "Keeps logits within this many standard deviations of the largest; 0 and less are off.",
        passed_on=True,
    ),
    Option("p_less", Flag(), False, "Keeps tokens at least as likely as two draws are to be equal.", passed_on=True),
    Option(
        "xtc_probability",
        Neutral(Real(0, 1), 0.0),
        0.0,
        "How often the likeliest of the tokens above xtc_threshold are dropped, all but the last.",
        passed_on=True,
    ),
    Option(
        "xtc_threshold",
        Neutral(Real(0, 1), 0.1),
        0.1,
        "Probability of a top choice for xtc_probability; above 0.5 none is dropped.",
        passed_on=True,
    ),
    Option(
        "dynatemp_range",
        Neutral(Real(0, _LARGEST), 0.0),
        0.0,
        "The temperature follows the entropy, at most this far from `temperature`; 0 is off.",
        passed_on=True,
    ),
    Option(
        "dynatemp_exponent", Neutral(Real(0, _LARGEST), 1.0), 1.0, "The power of the normalised entropy in dynatemp_range.", passed_on=True
    ),
    Option(
        "mirostat",
        Neutral(Whole(0, 2, "0 (off), 1 or 2"), 0),
        0,
        "Cuts unlikely tokens so that the mean surprise becomes mirostat_tau; its version.",
        ("mirostat_mode",),
        passed_on=True,
    ),
    Option("mirostat_tau", Neutral(Real(0, _LARGEST), 5.0), 5.0, "Mirostat's target, in bits a token.", passed_on=True),
    Option("mirostat_eta", Neutral(Real(0, _LARGEST), 0.1), 0.1, "Mirostat's rate of learning.", passed_on=True),
    Option(
        "adaptive_p",
        Neutral(Real(-_LARGEST, 1, "a number of at most 1"), -1.0),
        -1.0,
        "Prefers tokens of about this probability; below 0 it is off.",
        ("adaptive_target",),
        passed_on=True,
    ),
    Option(
        "adaptive_p_decay",
        Neutral(Real(0, 0.99), 0.9),
        0.9,
        "How long adaptive_p remembers: the weight of the tokens before the last.",
        ("adaptive_decay",),
        passed_on=True,
    ),
    Option(
        "sampler_order",
        Maybe(
            Either(
                (Choice(tuple(ORDERS)), Listed(Choice(STEPS), f"a list of {', '.join(STEPS)}", len(STEPS))),
                f"{' or '.join(map(repr, ORDERS))}, or a list of {', '.join(STEPS)}",
            )
        ),
        None,
        "The order of penalties and filters; None: as in docs/samplers.md.",
    ),
    Option(
        "guidance_scale",
        Maybe(Real(-_LARGEST, _LARGEST, "None or a finite number")),
        None,
        "Leads away from negative_prompt: log p of the row becomes u + scale (c - u), of the prompt's c and the negative prompt's u; None"
        " and 1 are off.",
    ),
    Option(
        "negative_prompt",
        Maybe(
            Either(
                (Text(empty=True), TOKEN_IDS, Listed(Object("a message, a dict with 'role'", is_message), "a list of messages", 4096)),
                "None, a string, a list of token ids, or, in chat, a list of messages",
            )
        ),
        None,
        "What guidance_scale leads away from; an empty one is beginning-of-text alone; None: the prompt's last token.",
        ("negative_prompt_ids",),
    ),
    Option(
        "dola_layers",
        Maybe(
            Either(
                (
                    Choice(("low", "high")),
                    Listed(Whole(0, _MANY, "a layer's number, an integer of 0 or more"), "a list of layer numbers", 4096, min_len=1),
                ),
                "None, 'low', 'high' or a list of layer numbers",
            )
        ),
        None,
        "Contrasts the last layer with the one of these whose distribution is farthest from its own (DoLa); 0 is the embedding.",
    ),
    Option(
        "dola_rule",
        Choice(("paper", "transformers")),
        "paper",
        "Whose rule dola_layers follows: the paper's, or transformers' for a batch of one.",
    ),
    Option(
        "penalty_alpha",
        Maybe(Real(0, 1)),
        None,
        "Contrastive search among the top_k likeliest tokens: the weight of the likeness to what came before, against the probability.",
    ),
    Option(
        "steering",
        SteeringKind(),
        None,
        "{layer: vector [hidden_size]}, added to the residual stream after that layer at every position; -1 is the last layer.",
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
    Option(
        "allowed_token_ids",
        Maybe(Listed(TOKEN_ID, "a list of at least one token id", MAX_ENTRIES, min_len=1)),
        None,
        "All other ids are banned.",
    ),
    Option(
        "structured_outputs",
        Maybe(StructuredKind()),
        None,
        "What the output must be: a JSON schema, a regular expression, a choice, a grammar, or an automaton (Constraint).",
    ),
    Option(
        "logits_processors",
        Objects("callables f(context, logits)", callable_object),
        (),
        "Functions that change the logits.",
        ("logits_processor",),
    ),
    Option(
        "stopping_criteria",
        Objects("callables f(context) or streamers", _is_criterion),
        (),
        "Functions that end generation; transformers' streamers too.",
    ),
    Option("sampler", Maybe(Object("a callable f(context, law)", callable_object)), None, "Draws the token instead of llmi."),
    Option(
        "logprob_token_ids",
        Maybe(Listed(TOKEN_ID, "a list of token ids", LIMITS["logprobs"])),
        None,
        "Also the log-probabilities of these ids, at each token.",
        ("token_ids_logprob",),
    ),
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
)

PRIORITY = Whole(-(2**63), 2**63 - 1, "an integer in [-2^63, 2^63)")
CALL = table(
    Option(
        "priority",
        PRIORITY,
        0,
        "With scheduling_policy='priority', requests with smaller numbers run first; one number, or one for each prompt.",
    ),
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
    Option(
        "stride", Maybe(Whole(1, _MANY, "None or an integer of 1 or more")), None, "Tokens from the beginning of one window to the next."
    ),
    Option("num_tokens", Whole(0, _MANY, "an integer of 0 or more"), 0, "How many tokens to take back."),
    Option("timeout_s", Maybe(Real(0, FLOAT32_MAX, "None or a number of 0 or more")), None, "Longest wait, in seconds; None: no limit."),
    Option("drain", Flag(), True, "Finish running requests first."),
    Option(
        "deadline_s",
        Maybe(Real(0, FLOAT32_MAX, "None or a number of 0 or more")),
        None,
        "Seconds from the request's arrival to its end; None: no limit.",
    ),
    Option(
        "max_queue",
        Maybe(Whole(0, _MANY, "None or an integer of 0 or more")),
        None,
        "Most requests that wait in addition to those that the batch has room for; None: no limit.",
    ),
)


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
