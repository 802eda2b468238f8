"""The fields of SamplingParams, each declared once: name, type, default, valid values, meaning, other names, and whether the core takes it.

SamplingParams, BeamSearchParams, their docstrings, the command line, the server, receipts and docs/parameters.md read them here.
"""

from __future__ import annotations

import dataclasses
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
    Object,
    Real,
    Text,
    Whole,
)
from llmi.params.options import LIMITS, MANY, SEED, DefaultInt, field, number
from llmi.params.repetition import RepetitionKind
from llmi.params.rows import is_message
from llmi.params.sparse import SparseKind
from llmi.params.steering import SteeringKind
from llmi.params.steps import ORDERS, STEPS

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_SMALLEST, _LARGEST = 1e-30, 1e30  # of divisors: logits stay finite floats
_ANY_NUMBER = Real(-_LARGEST, _LARGEST, "a finite number")
_SIZE = Real(0, _LARGEST)
_SHARE = Real(0, 1)
_MASS = Real(0, 1, "a number in (0, 1]", open_low=True)
_COUNT = Maybe(
    Whole(-1, LIMITS["logprobs"], f"None, or how many: an integer in [-1, {LIMITS['logprobs']:,}] (OpenAI's logprobs=True is logprobs=0)")
)
_WORD = Text(LIMITS["stop_bytes"])
_BELOW_ONE = Real(0, 1 - 2.0**-53, "a number in [0, 1)")
_LENGTH = Whole(0, MANY, "0 (off) or an integer in [1, 2^31)")
_LAST_N = Whole(-1, MANY, "-1 (all) or an integer in [0, 2^31)")
#: Candidates of contrastive search.
LEAST_CANDIDATES, MOST_CANDIDATES = 2, 64
#: llama.cpp's own breakers of DRY.
DRY_BREAKERS = ("\n", ":", '"', "*")
_IDS_OF_WORD = Listed(TOKEN_ID, "a list of at least one token id", 4096, min_len=1)


@dataclasses.dataclass(kw_only=True)
class CountField:
    """How many samples."""

    n: int = field(
        1,
        Whole(1, LIMITS["n"]),
        "Continuations per prompt. The prompt is computed once and its cache blocks are shared.",
        ("num_return_sequences",),
    )


@dataclasses.dataclass(kw_only=True)
class DrawFields:
    """What a token's distribution is, and where generation stops."""

    temperature: float = number(
        1.0,
        Real(_SMALLEST, _LARGEST, f"0 (greedy) or a number in [{_SMALLEST:g}, {_LARGEST:g}]", zero=True),
        "Logits are divided by it; 0 is greedy: the largest logit, the lowest id on ties.",
        from_model=True,
    )
    top_p: float = number(
        1.0, _MASS, "Keeps the smallest set of likeliest tokens whose mass reaches this, the crossing one included.", from_model=True
    )
    top_k: int = number(
        0,
        Whole(-1, MANY, "0 or -1 (both: all) or an integer in [1, 2^31)"),
        "Keeps the k likeliest tokens; 0 and -1 keep all.",
        passed_on=False,
        from_model=True,
    )
    min_p: float = number(0.0, _SHARE, "Drops tokens less likely than this times the likeliest.", from_model=True)
    seed: int | None = field(None, SEED, "64-bit key of the noise; None and -1 draw a random one, which the output records.")
    max_tokens: int | None = field(
        DefaultInt(256),
        Maybe(Whole(0, MANY, "None, 0 or an integer in [1, 2^31)")),
        "Most tokens to generate; None: to the end of the context; 0, with prompt_logprobs: none, the prompt is scored. A number that does"
        " not fit into the context is refused, the default shortened.",
        ("max_new_tokens",),
        from_model=True,
    )
    min_tokens: int = number(
        0,
        Whole(0, MANY),
        "Before this many tokens neither end-of-text nor a stop ends generation. Their ids are masked, stop strings are ignored.",
        ("min_new_tokens",),
    )
    stop: str | list[str] | None = field(
        None,
        Maybe(Listed(_WORD, "a string or a list of strings", LIMITS["stop"], single=True)),
        "Generation ends where one of these appears in the text. It is cut off unless include_stop_str_in_output. The text of a special"
        " token ends generation at that token.",
        ("stop_strings",),
    )
    stop_regex: str | list[str] | None = field(
        None,
        Maybe(Listed(Text(LIMITS["stop_regex_bytes"]), "a string or a list of strings", LIMITS["stop_regex"], single=True)),
        "Generation ends at the first character with which one of these regular expressions matches a part of the text. The text is cut"
        " where that part begins, unless include_stop_str_in_output. The syntax is Python's, without look-around, backreferences, $ and"
        " word boundaries; the time is linear in the text. stop_reason is the expression. A stream holds back what may become a match.",
    )
    stop_token_ids: list[int] | None = field(
        None, Maybe(TOKEN_IDS), "Ids that end generation, in addition to end-of-text.", from_model=True
    )
    eos_token_id: int | list[int] | None = field(
        None,
        Maybe(Listed(TOKEN_ID, "a token id or a list of token ids", MAX_ENTRIES, single=True)),
        "Replaces the model's end-of-text ids; an empty list: none. stop_reason is the id.",
    )
    repetition_detection: Mapping[str, int] | None = field(
        None,
        Maybe(RepetitionKind()),
        "Generation ends where a pattern of min_pattern_size (1) to max_pattern_size tokens has come min_count times in a row. As in vLLM:"
        ' finish_reason is "stop", stop_reason "repetition_detected". Not before min_tokens.',
    )
    thinking_token_budget: int | None = field(
        None,
        Maybe(Whole(-1, MANY, "None, -1 (both: no limit) or an integer in [0, 2^31)"), none=(-1,)),
        "Most tokens of a block of thinking, counted in the output: then the mark that ends it follows. 0 ends it at once.",
    )
    ignore_eos: bool = field(False, Flag(), "Continue past end-of-text.", passed_on=True)
    include_stop_str_in_output: bool = field(
        False, Flag(), "Keep the stop string, or what stop_regex matched, in the text.", passed_on=True
    )
    presence_penalty: float = number(0.0, _ANY_NUMBER, "Subtracted once from the logits of generated tokens.", from_model=True)
    frequency_penalty: float = number(0.0, _ANY_NUMBER, "Subtracted for each occurrence in the output.", from_model=True)
    repetition_penalty: float = number(
        1.0,
        Real(_SMALLEST, _LARGEST, f"a positive number in [{_SMALLEST:g}, {_LARGEST:g}]"),
        "Divides positive and multiplies negative logits of all tokens seen, prompt included (Keskar et al., 2019).",
        from_model=True,
    )
    penalty_last_n: int = number(-1, _LAST_N, "How many of the last tokens the three penalties see; -1: all, 0: none.", ("repeat_last_n",))
    no_repeat_ngram_size: int = number(
        0, _LENGTH, "Bans tokens that complete an n-gram which prompt or output holds already; 0 is off.", from_model=True
    )
    dry_multiplier: float = number(
        0.0,
        _SIZE,
        "DRY: subtracts this times dry_base^(length - dry_allowed_length) from a token that would make a repetition longer; 0 is off.",
    )
    dry_base: float = number(1.75, Real(1, _LARGEST), "DRY: how fast its penalty grows with the repetition's length.")
    dry_allowed_length: int = number(2, Whole(1, MANY, "an integer in [1, 2^31)"), "DRY: shorter repetitions are free.")
    dry_penalty_last_n: int = number(-1, _LAST_N, "DRY: how many of the last tokens it sees; -1: all (llama.cpp: 64), 0: none.")
    dry_sequence_breakers: str | list[str] | None = field(
        None,
        Maybe(Listed(Text(40), "a string of 1 to 40 bytes or a list of such strings", 64, single=True)),
        f"DRY: no repetition reaches across one of these; None: {', '.join(map(repr, DRY_BREAKERS))}; an empty list: none.",
    )
    typical_p: float = number(
        1.0,
        _MASS,
        "Keeps the tokens whose surprise is nearest to the entropy, up to this probability (Meister et al., 2022).",
        ("typical",),
        from_model=True,
    )
    epsilon_cutoff: float = number(0.0, _BELOW_ONE, "Drops tokens less likely than this; 0 is off (Hewitt et al., 2022).", from_model=True)
    eta_cutoff: float = number(
        0.0, _BELOW_ONE, "Drops tokens less likely than min(eta, sqrt(eta) exp(-entropy)); 0 is off (Hewitt et al., 2022).", from_model=True
    )
    top_h: float | None = field(
        None,
        Maybe(_MASS),
        "Keeps the likeliest tokens up to this share of the entropy of the 100 likeliest (Potraghloo et al., 2025).",
        from_model=True,
    )
    top_n_sigma: float = number(
        -1.0, _ANY_NUMBER, "Keeps logits within this many standard deviations of the largest; 0 and less are off (Tang et al., 2024)."
    )
    p_less: bool = field(
        False,
        Flag(),
        "Keeps tokens at least as likely as two draws are to be equal: the sum of all squared probabilities (Tan et al., 2025).",
        passed_on=True,
    )
    xtc_probability: float = number(
        0.0,
        _SHARE,
        "How often the likeliest of the tokens above xtc_threshold are dropped, all but the last. The coin of a position is a function of"
        " seed, sample and position.",
    )
    xtc_threshold: float = number(0.1, _SHARE, "Probability of a top choice for xtc_probability; above 0.5 none is dropped.")
    dynatemp_range: float = number(0.0, _SIZE, "The temperature follows the entropy, at most this far from `temperature`; 0 is off.")
    dynatemp_exponent: float = number(1.0, _SIZE, "The power of the normalised entropy in dynatemp_range.")
    mirostat: Literal[0, 1, 2] = number(
        0,
        Whole(0, 2, "0 (off), 1 or 2"),
        "Cuts unlikely tokens so that the mean surprise becomes mirostat_tau; its version (Basu et al., 2021). It takes the place of all"
        " other filters but temperature.",
        ("mirostat_mode",),
    )
    mirostat_tau: float = number(5.0, _SIZE, "Mirostat's target, in bits a token.")
    mirostat_eta: float = number(0.1, _SIZE, "Mirostat's rate of learning.")
    adaptive_p: float = number(
        -1.0,
        Real(-_LARGEST, 1, "a number of at most 1"),
        "Prefers tokens of about this probability; below 0 it is off. As in llama.cpp, the average of those drawn is corrected for.",
        ("adaptive_target",),
    )
    adaptive_p_decay: float = number(
        0.9, Real(0, 0.99), "How long adaptive_p remembers: the weight of the tokens before the last.", ("adaptive_decay",)
    )
    sampler_order: Sequence[str] | Literal["hf", "llama.cpp"] | None = field(
        None,
        Maybe(
            Either(
                (Choice(tuple(ORDERS)), Listed(Choice(STEPS), f"a list of {', '.join(STEPS)}", len(STEPS))),
                f"{' or '.join(map(repr, ORDERS))}, or a list of {', '.join(STEPS)}",
            )
        ),
        "The order of penalties and filters; None: as in docs/samplers.md. Masks, no_repeat_ngram_size and logit_bias come first.",
    )


@dataclasses.dataclass(kw_only=True)
class RowFields:
    """What makes a row of several, or chooses among rows."""

    guidance_scale: float | None = field(
        None,
        Maybe(Real(-_LARGEST, _LARGEST, "None or a finite number")),
        "Leads away from negative_prompt: log p of the row becomes u + scale (c - u), of the prompt's c and the negative prompt's u; None"
        " and 1 are off. Classifier-free guidance (Sanchez et al., 2024), before the masks. A sample is two sequences.",
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
        "Contrasts the last layer with the one of these whose distribution is farthest from its own (DoLa, Chuang et al., 2024); 0 is the"
        " embedding. Only tokens that have a tenth of the largest probability stay. 'low' and 'high' are every other layer of a half.",
    )
    dola_rule: Literal["paper", "transformers"] = field(
        "paper",
        Choice(("paper", "transformers")),
        "Whose rule dola_layers follows: the paper's, or transformers' for a batch of one. The latter has inner layers without the final"
        " norm, and another divergence.",
    )
    penalty_alpha: float | None = field(
        None,
        Maybe(_SHARE),
        "Contrastive search among the top_k likeliest tokens: the weight of the likeness to what came before, against the probability (Su"
        " et al., 2022). It takes the token v of the top_k (2 to 64) likeliest with the largest (1 - penalty_alpha) p(v) - penalty_alpha"
        " c(v): p is the softmax of the processed row, c the largest cosine of v's last hidden state, after the final norm, with that of a"
        " token of prompt or output. It draws nothing: temperature is 0 where it is not given, and n is 1. 0 is greedy.",
    )


@dataclasses.dataclass(kw_only=True)
class EditFields:
    """What changes the model's stream and its rows of logits."""

    steering: Mapping[int, ArrayLike] | None = field(
        None,
        SteeringKind(),
        "{layer: vector [hidden_size]}, added in fp32 to the residual stream after that layer at every position; -1 is the last layer. 0 is"
        " the embedding's output. Positions are those of prompt, output and negative prompt (Turner et al., 2023). Hidden states and"
        " drafters that read them see the steered stream, draft models do not, and cached blocks serve requests with the same steering"
        " alone.",
    )
    sparse_attention: Mapping[str, Any] | None = field(
        None,
        SparseKind(),
        "{'method': 'streaming', 'sinks': 4, 'window': 508}: each row of prompt and output sees the first 4 positions and the last 508, its"
        " own included (Xiao et al., 2024). Positions stay absolute, and blocks that the window has passed are given back. What a row sees"
        " depends on its own tokens alone, so batch, chunks and prefix hits change no bit; cached blocks serve requests with the same"
        " numbers alone. On the CPU, for models without windows, sinks, states or latents of their own. {'method': 'blocks', 'tokens': 512,"
        " 'sinks': 16, 'recent': 64}: 512 tokens in blocks of 16, the first 16, the last 64, and for each KV head the blocks with the"
        " largest bound of a product with the row's queries (Quest: Tang et al., 2024). It keeps all blocks, and reads few.",
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
        "Words that never appear in the output. Given as token ids they are transformers' bad_words_ids.",
        ("bad_words_ids",),
    )
    allowed_token_ids: list[int] | None = field(
        None, Maybe(Listed(TOKEN_ID, "a list of at least one token id", MAX_ENTRIES, min_len=1)), "All other ids are banned."
    )


@dataclasses.dataclass(kw_only=True)
class OutputFields:
    """What the output holds."""

    logprob_token_ids: list[int] | None = field(
        None,
        Maybe(Listed(TOKEN_ID, "a list of token ids", LIMITS["logprobs"])),
        "Also the log-probabilities of these ids, at each token. logprobs is then 0 where it is not given.",
        ("token_ids_logprob",),
    )
    logprobs: int | None = field(
        None, _COUNT, "Log-probabilities; 0: of each token, n: also of the n likeliest, -1: of the whole vocabulary."
    )
    prompt_logprobs: int | None = field(None, _COUNT, "The same for the prompt's tokens.")
    detokenize: bool = field(True, Flag(), "Make text of the tokens.", passed_on=True)
    skip_special_tokens: bool = field(True, Flag(), "Leave special tokens out of the text.", passed_on=True)
    output_kind: Literal["cumulative", "delta", "final"] = field(
        "cumulative",
        Choice(("cumulative", "delta", "final"), {"final_only": "final"}),
        "What each step of AsyncLLM.generate holds: all so far, the new part, or one output at the end. Other calls take it without effect:"
        " `stream` gives deltas, `generate` whole results.",
    )
