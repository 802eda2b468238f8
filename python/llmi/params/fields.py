"""The fields of SamplingParams, each declared once: name, type, default, valid values, meaning, other names, and whether the core takes it.

SamplingParams, BeamSearchParams, the command line, the server, receipts, docs/parameters.md and the stub of `_core` read them here.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from llmi.base.kinds import (
    MAX_ENTRIES,
    TOKEN_ID,
    TOKEN_IDS,
    Bias,
    Choice,
    Either,
    Flag,
    Listed,
    Maybe,
    Neutral,
    Object,
    Real,
    Text,
    Whole,
)
from llmi.params.options import LIMITS, MANY, SEED, DefaultInt, field
from llmi.params.repetition import RepetitionKind
from llmi.params.rows import is_message
from llmi.params.steering import SteeringKind
from llmi.params.steps import ORDERS, STEPS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_SMALLEST, _LARGEST = 1e-30, 1e30  # of divisors: logits stay finite floats
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


@dataclasses.dataclass(kw_only=True)
class CountField:
    """How many samples.

    Parameters
    ----------
    n : int
        Continuations per prompt; the prompt is computed once and its cache blocks are shared.
    """

    n: int = field(1, Whole(1, LIMITS["n"]), "Continuations per prompt.", ("num_return_sequences",))


@dataclasses.dataclass(kw_only=True)
class DrawFields:
    """What a token's distribution is, and where generation stops.

    Parameters
    ----------
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
    """

    temperature: float = field(
        1.0,
        Neutral(Real(_SMALLEST, _LARGEST, f"0 (greedy) or a number in [{_SMALLEST:g}, {_LARGEST:g}]", zero=True), 1.0),
        "Logits are divided by it; 0 is greedy.",
        passed_on=True,
        from_model=True,
    )
    top_p: float = field(
        1.0,
        Neutral(Real(0, 1, "a number in (0, 1]", open_low=True), 1.0),
        "Keeps the smallest set of likeliest tokens whose probabilities sum to at least this.",
        passed_on=True,
        from_model=True,
    )
    top_k: int = field(
        0,
        Neutral(Whole(-1, MANY, "0 or -1 (both: all) or an integer in [1, 2^31)"), 0),
        "Keeps the k likeliest tokens; 0 and -1 keep all.",
        from_model=True,
    )
    min_p: float = field(
        0.0, Neutral(Real(0, 1), 0.0), "Drops tokens less likely than this times the likeliest.", passed_on=True, from_model=True
    )
    seed: int | None = field(None, SEED, "64-bit key of the noise; None and -1 draw a random one, which the output records.")
    max_tokens: int | None = field(
        DefaultInt(256),
        Maybe(Whole(0, MANY, "None, 0 or an integer in [1, 2^31)")),
        "Most tokens to generate; None: to the end of the context; 0, with prompt_logprobs: none, the prompt is scored.",
        ("max_new_tokens",),
        from_model=True,
    )
    min_tokens: int = field(
        0,
        Neutral(Whole(0, MANY), 0),
        "Before this many tokens neither end-of-text nor a stop ends generation.",
        ("min_new_tokens",),
        passed_on=True,
    )
    stop: str | list[str] | None = field(
        None,
        Maybe(Listed(_WORD, "a string or a list of strings", LIMITS["stop"], single=True)),
        "Generation ends where one of these appears in the text.",
        ("stop_strings",),
    )
    stop_regex: str | list[str] | None = field(
        None,
        Maybe(Listed(Text(LIMITS["stop_regex_bytes"]), "a string or a list of strings", LIMITS["stop_regex"], single=True)),
        "Generation ends where one of these regular expressions (Python's syntax) matches a part of the text.",
    )
    stop_token_ids: list[int] | None = field(
        None, Maybe(TOKEN_IDS), "Ids that end generation, in addition to end-of-text.", from_model=True
    )
    eos_token_id: int | list[int] | None = field(
        None,
        Maybe(Listed(TOKEN_ID, "a token id or a list of token ids", MAX_ENTRIES, single=True)),
        "Replaces the model's end-of-text ids; an empty list: none.",
    )
    repetition_detection: Mapping[str, int] | None = field(
        None,
        Maybe(RepetitionKind()),
        "Generation ends where a pattern of min_pattern_size to max_pattern_size tokens has come min_count times in a row.",
    )
    thinking_token_budget: int | None = field(
        None,
        Maybe(Whole(-1, MANY, "None, -1 (both: no limit) or an integer in [0, 2^31)"), none=(-1,)),
        "Most tokens of a block of thinking: then the mark that ends it follows.",
    )
    ignore_eos: bool = field(False, Flag(), "Continue past end-of-text.", passed_on=True)
    include_stop_str_in_output: bool = field(
        False, Flag(), "Keep the stop string, or what stop_regex matched, in the text.", passed_on=True
    )
    presence_penalty: float = field(0.0, _PENALTY, "Subtracted once from the logits of generated tokens.", passed_on=True, from_model=True)
    frequency_penalty: float = field(0.0, _PENALTY, "Subtracted for each occurrence in the output.", passed_on=True, from_model=True)
    repetition_penalty: float = field(
        1.0,
        Neutral(Real(_SMALLEST, _LARGEST, f"a positive number in [{_SMALLEST:g}, {_LARGEST:g}]"), 1.0),
        "Divides positive and multiplies negative logits of all tokens seen.",
        passed_on=True,
        from_model=True,
    )
    penalty_last_n: int = field(
        -1,
        Neutral(Whole(-1, MANY, "-1 (all) or an integer in [0, 2^31)"), -1),
        "How many of the last tokens the three penalties see; -1: all.",
        ("repeat_last_n",),
        passed_on=True,
    )
    no_repeat_ngram_size: int = field(
        0,
        Neutral(Whole(0, MANY, "0 (off) or an integer in [1, 2^31)"), 0),
        "Bans tokens that complete an n-gram which prompt or output holds already; 0 is off.",
        passed_on=True,
        from_model=True,
    )
    dry_multiplier: float = field(
        0.0,
        Neutral(Real(0, _LARGEST), 0.0),
        "DRY: subtracts this times dry_base^(length - dry_allowed_length) from a token that would make a repetition longer; 0 is off.",
        passed_on=True,
    )
    dry_base: float = field(
        1.75, Neutral(Real(1, _LARGEST), 1.75), "DRY: how fast its penalty grows with the repetition's length.", passed_on=True
    )
    dry_allowed_length: int = field(
        2, Neutral(Whole(1, MANY, "an integer in [1, 2^31)"), 2), "DRY: shorter repetitions are free.", passed_on=True
    )
    dry_penalty_last_n: int = field(
        -1,
        Neutral(Whole(-1, MANY, "-1 (all) or an integer in [0, 2^31)"), -1),
        "DRY: how many of the last tokens it sees; -1: all (llama.cpp: 64), 0: none.",
        passed_on=True,
    )
    dry_sequence_breakers: str | list[str] | None = field(
        None,
        Maybe(Listed(Text(40), "a string of 1 to 40 bytes or a list of such strings", 64, single=True)),
        f"DRY: no repetition reaches across one of these; None: {', '.join(map(repr, DRY_BREAKERS))}; an empty list: none.",
    )
    typical_p: float = field(
        1.0,
        Neutral(Real(0, 1, "a number in (0, 1]", open_low=True), 1.0),
        "Keeps the tokens whose surprise is nearest to the entropy, up to this probability.",
        ("typical",),
        passed_on=True,
        from_model=True,
    )
    epsilon_cutoff: float = field(
        0.0,
        Neutral(Real(0, _UNTIL_ONE, _OFF_BELOW_ONE), 0.0),
        "Drops tokens less likely than this; 0 is off.",
        passed_on=True,
        from_model=True,
    )
    eta_cutoff: float = field(
        0.0,
        Neutral(Real(0, _UNTIL_ONE, _OFF_BELOW_ONE), 0.0),
        "Drops tokens less likely than min(eta, sqrt(eta) exp(-entropy)); 0 is off.",
        passed_on=True,
        from_model=True,
    )
    top_h: float | None = field(
        None,
        Maybe(Real(0, 1, "a number in (0, 1]", open_low=True)),
        "Keeps the likeliest tokens up to this share of the entropy of the 100 likeliest.",
        from_model=True,
    )
    top_n_sigma: float = field(
        -1.0,
        Neutral(Real(-_LARGEST, _LARGEST, "a finite number"), -1.0),
        "Keeps logits within this many standard deviations of the largest; 0 and less are off.",
        passed_on=True,
    )
    p_less: bool = field(False, Flag(), "Keeps tokens at least as likely as two draws are to be equal.", passed_on=True)
    xtc_probability: float = field(
        0.0,
        Neutral(Real(0, 1), 0.0),
        "How often the likeliest of the tokens above xtc_threshold are dropped, all but the last.",
        passed_on=True,
    )
    xtc_threshold: float = field(
        0.1, Neutral(Real(0, 1), 0.1), "Probability of a top choice for xtc_probability; above 0.5 none is dropped.", passed_on=True
    )
    dynatemp_range: float = field(
        0.0,
        Neutral(Real(0, _LARGEST), 0.0),
        "The temperature follows the entropy, at most this far from `temperature`; 0 is off.",
        passed_on=True,
    )
    dynatemp_exponent: float = field(
        1.0, Neutral(Real(0, _LARGEST), 1.0), "The power of the normalised entropy in dynatemp_range.", passed_on=True
    )
    mirostat: Literal[0, 1, 2] = field(
        0,
        Neutral(Whole(0, 2, "0 (off), 1 or 2"), 0),
        "Cuts unlikely tokens so that the mean surprise becomes mirostat_tau; its version.",
        ("mirostat_mode",),
        passed_on=True,
    )
    mirostat_tau: float = field(5.0, Neutral(Real(0, _LARGEST), 5.0), "Mirostat's target, in bits a token.", passed_on=True)
    mirostat_eta: float = field(0.1, Neutral(Real(0, _LARGEST), 0.1), "Mirostat's rate of learning.", passed_on=True)
    adaptive_p: float = field(
        -1.0,
        Neutral(Real(-_LARGEST, 1, "a number of at most 1"), -1.0),
        "Prefers tokens of about this probability; below 0 it is off.",
        ("adaptive_target",),
        passed_on=True,
    )
    adaptive_p_decay: float = field(
        0.9,
        Neutral(Real(0, 0.99), 0.9),
        "How long adaptive_p remembers: the weight of the tokens before the last.",
        ("adaptive_decay",),
        passed_on=True,
    )
    sampler_order: Sequence[str] | Literal["hf", "llama.cpp"] | None = field(
        None,
        Maybe(
            Either(
                (Choice(tuple(ORDERS)), Listed(Choice(STEPS), f"a list of {', '.join(STEPS)}", len(STEPS))),
                f"{' or '.join(map(repr, ORDERS))}, or a list of {', '.join(STEPS)}",
            )
        ),
        "The order of penalties and filters; None: as in docs/samplers.md.",
    )


@dataclasses.dataclass(kw_only=True)
class RowFields:
    """What makes a row of several, or chooses among rows.

    Parameters
    ----------
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
    """

    guidance_scale: float | None = field(
        None,
        Maybe(Real(-_LARGEST, _LARGEST, "None or a finite number")),
        "Leads away from negative_prompt: log p of the row becomes u + scale (c - u), of the prompt's c and the negative prompt's u; None"
        " and 1 are off.",
    )
    negative_prompt: str | list[int] | list[Mapping[str, Any]] | None = field(
        None,
        Maybe(
            Either(
                (Text(empty=True), TOKEN_IDS, Listed(Object("a message, a dict with 'role'", is_message), "a list of messages", 4096)),
                "None, a string, a list of token ids, or, in chat, a list of messages",
            )
        ),
        "What guidance_scale leads away from; an empty one is beginning-of-text alone; None: the prompt's last token.",
        ("negative_prompt_ids",),
    )
    dola_layers: Literal["low", "high"] | list[int] | None = field(
        None,
        Maybe(
            Either(
                (
                    Choice(("low", "high")),
                    Listed(Whole(0, MANY, "a layer's number, an integer of 0 or more"), "a list of layer numbers", 4096, min_len=1),
                ),
                "None, 'low', 'high' or a list of layer numbers",
            )
        ),
        "Contrasts the last layer with the one of these whose distribution is farthest from its own (DoLa); 0 is the embedding.",
    )
    dola_rule: Literal["paper", "transformers"] = field(
        "paper", Choice(("paper", "transformers")), "Whose rule dola_layers follows: the paper's, or transformers' for a batch of one."
    )
    penalty_alpha: float | None = field(
        None,
        Maybe(Real(0, 1)),
        "Contrastive search among the top_k likeliest tokens: the weight of the likeness to what came before, against the probability.",
    )


@dataclasses.dataclass(kw_only=True)
class EditFields:
    """What changes the model's stream and its rows of logits.

    Parameters
    ----------
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
    """

    steering: Mapping[int, ArrayLike] | None = field(
        None,
        SteeringKind(),
        "{layer: vector [hidden_size]}, added to the residual stream after that layer at every position; -1 is the last layer.",
    )
    logit_bias: Mapping[int, float] | None = field(None, Maybe(Bias(LIMITS["logit_bias"])), "Added to logits; -inf bans.")
    bad_words: str | list[str] | list[list[int]] | None = field(
        None,
        Maybe(
            Listed(
                Either((_WORD, _IDS_OF_WORD), "a string of 1 to 4,096 bytes or a list of token ids"),
                "a string or a list of strings or of lists of token ids",
                LIMITS["bad_words"],
                single=True,
            )
        ),
        "Words that never appear in the output.",
        ("bad_words_ids",),
    )
    allowed_token_ids: list[int] | None = field(
        None, Maybe(Listed(TOKEN_ID, "a list of at least one token id", MAX_ENTRIES, min_len=1)), "All other ids are banned."
    )


@dataclasses.dataclass(kw_only=True)
class OutputFields:
    """What the output holds.

    Parameters
    ----------
    logprobs, prompt_logprobs : int, optional
        0 records the log-probability of each token, n also the n likeliest, -1 the whole vocabulary.
    logprob_token_ids : list of int, optional
        Ids whose log-probabilities come with each token's, besides those of `logprobs`, which is 0 where it is not given.
    detokenize, skip_special_tokens, include_stop_str_in_output : bool
        What text the output holds.
    output_kind : {"cumulative", "delta", "final"}
        What each step of `AsyncLLM.generate` holds: all text so far, the new text, or one output at the end. Other calls
        take it without effect: `stream` gives deltas, `generate` whole results.
    """

    logprob_token_ids: list[int] | None = field(
        None,
        Maybe(Listed(TOKEN_ID, "a list of token ids", LIMITS["logprobs"])),
        "Also the log-probabilities of these ids, at each token.",
        ("token_ids_logprob",),
    )
    logprobs: int | None = field(
        None, _COUNT, "Log-probabilities. 0: of each token; n: also of the n likeliest; -1: of the whole vocabulary."
    )
    prompt_logprobs: int | None = field(None, _COUNT, "The same for the prompt's tokens.")
    detokenize: bool = field(True, Flag(), "Make text of the tokens.", passed_on=True)
    skip_special_tokens: bool = field(True, Flag(), "Leave special tokens out of the text.", passed_on=True)
    output_kind: Literal["cumulative", "delta", "final"] = field(
        "cumulative",
        Choice(("cumulative", "delta", "final"), {"final_only": "final"}),
        "What each step of AsyncLLM.generate holds: all so far, the new part, or one output at the end.",
    )


def described(fields: type) -> str:
    """The parameters that the docstrings of a class's bases describe, in the order of its fields."""
    return "\n".join(inspect.cleandoc(base.__doc__ or "").partition("\n----------\n")[2] for base in reversed(fields.__bases__))
