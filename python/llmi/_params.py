"""Sampling parameters: vLLM's names and defaults, Hugging Face's as aliases, nothing dropped or clamped."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from llmi._errors import InvalidParamsError, UnsupportedCombinationError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi._constraint import Constraint
    from llmi._hooks import TokenContext

    F32 = NDArray[np.float32]
    LogitsProcessor = Callable[[TokenContext, F32], F32 | None]
    StoppingCriterion = Callable[[TokenContext], bool | str]

#: Largest values a request may carry, checked before anything is allocated for it.
LIMITS = {"n": 128, "logprobs": 10_000, "stop": 64, "stop_bytes": 4096, "logit_bias": 65_536, "bad_words": 65_536}


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    """How tokens are drawn and when generation stops.

    Mutable; copied and validated when a request is submitted. Order of operations: masks (allowed ids, bad words,
    stop ids before `min_tokens`), bias, penalties, `logits_processors`, temperature, min-p, top-k, top-p.

    Parameters
    ----------
    n : int
        Continuations per prompt; the prompt is computed once and its cache blocks are shared.
    temperature : float
        Logits are divided by it; 0 is greedy (the largest logit, lowest id on ties).
    top_p : float
        In (0, 1]: the smallest set of likeliest tokens whose mass reaches `top_p`, the crossing one included.
    top_k : int
        The k likeliest tokens; 0 keeps all.
    min_p : float
        In [0, 1]: drops tokens less likely than `min_p` times the likeliest.
    seed : int, optional
        64-bit key of the noise. None draws one, which `RequestOutput.seed` records.
    max_tokens : int, optional
        Most tokens to generate; None goes on to the end of the context.
    min_tokens : int
        End-of-text and stop ids are masked, and stop strings not looked at, before so many tokens.
    stop : str or list of str, optional
        Generation ends where one appears in the text; it is cut off unless `include_stop_str_in_output`.
    stop_token_ids : list of int, optional
        Ids that end generation beside the model's own end-of-text ids.
    ignore_eos : bool
        Go on past end-of-text.
    presence_penalty, frequency_penalty : float
        Subtracted from the logits of generated tokens: once, and once per occurrence.
    repetition_penalty : float
        Divides positive and multiplies negative logits of all tokens seen, prompt included (Keskar et al., 2019).
    logit_bias : mapping of int to float, optional
        Added to logits; -inf bans.
    bad_words : list of str, optional
        Words that never appear in the output.
    allowed_token_ids : list of int, optional
        All other ids are banned.
    logprobs, prompt_logprobs : int, optional
        0 records the log-probability of each token, n also the n likeliest, -1 the whole vocabulary.
    structured_outputs : Constraint, optional
        An automaton that says which tokens may come; it works before the logits processors.
    logits_processors : iterable of callables
        `f(context, logits)`: changes logits in place or returns an array. transformers' LogitsProcessor works too.
    stopping_criteria : iterable of callables
        `f(context)` after each token: True, or a string that becomes the stop reason, ends generation. transformers'
        StoppingCriteria and streamers work too.
    sampler : callable, optional
        `f(context, law) -> token_id` draws instead of llmi; `law` holds processed logits, -inf where cut.
    detokenize, skip_special_tokens, include_stop_str_in_output : bool
        What text the output holds.
    output_kind : {"cumulative", "delta", "final"}
        Accepted for compatibility; streams give deltas, results are whole.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 256
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: Constraint[Any] | None = None
    logits_processors: Iterable[LogitsProcessor] = ()
    stopping_criteria: Iterable[StoppingCriterion] = ()
    sampler: Callable[[TokenContext, F32], int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    output_kind: Literal["cumulative", "delta", "final"] = "cumulative"

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with these fields changed; aliases are understood, unknown names raise TypeError."""
        return dataclasses.replace(self, **canonical(changes))

    def validate(self) -> None:
        """Raise InvalidParamsError for the first value out of range or in contradiction."""
        _check(isinstance(self.n, int) and 1 <= self.n <= LIMITS["n"], "n", f"must be an integer in [1, {LIMITS['n']}]", self.n)
        _check(
            _is_number(self.temperature) and self.temperature >= 0,
            "temperature",
            "must be 0 (greedy) or more, and finite",
            self.temperature,
        )
        _check(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", "must lie in (0, 1]", self.top_p)
        _check(_is_int(self.top_k) and self.top_k >= 0, "top_k", "must be 0 (all) or more", self.top_k)
        _check(_is_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", "must lie in [0, 1]", self.min_p)
        _check(self.seed is None or (_is_int(self.seed) and 0 <= self.seed < 2**64), "seed", "must be None or in [0, 2^64)", self.seed)
        _check(
            self.max_tokens is None or (_is_int(self.max_tokens) and self.max_tokens >= 1),
            "max_tokens",
            "must be None or 1 or more",
            self.max_tokens,
        )
        _check(_is_int(self.min_tokens) and self.min_tokens >= 0, "min_tokens", "must be 0 or more", self.min_tokens)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParamsError(f"min_tokens = {self.min_tokens} exceeds max_tokens = {self.max_tokens}", "min_tokens")
        for name in ("presence_penalty", "frequency_penalty"):
            _check(_is_number(getattr(self, name)), name, "must be a finite number", getattr(self, name))
        _check(
            _is_number(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            "must be positive",
            self.repetition_penalty,
        )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _check(
                value is None or (_is_int(value) and -1 <= value <= LIMITS["logprobs"]),
                name,
                f"must be None or in [-1, {LIMITS['logprobs']}]",
                value,
            )
        stops = self.stop_list()
        _check(len(stops) <= LIMITS["stop"], "stop", f"holds more than {LIMITS['stop']} strings", len(stops))
        for stop in stops:
            _check(
                isinstance(stop, str) and 0 < len(stop.encode()) <= LIMITS["stop_bytes"],
                "stop",
                "must hold strings of 1 to 4096 bytes",
                stop,
            )
        if stops and not self.detokenize:
            raise UnsupportedCombinationError("stop strings need detokenize=True", "stop", "detokenize")
        _check(len(self.logit_bias or ()) <= LIMITS["logit_bias"], "logit_bias", "is too large", len(self.logit_bias or ()))
        _check(len(self.bad_words or ()) <= LIMITS["bad_words"], "bad_words", "is too long", len(self.bad_words or ()))
        if self.allowed_token_ids is not None:
            _check(len(self.allowed_token_ids) > 0, "allowed_token_ids", "allows no token", self.allowed_token_ids)
        _check(self.output_kind in ("cumulative", "delta", "final"), "output_kind", "must be cumulative, delta or final", self.output_kind)

        _check(
            self.structured_outputs is None or hasattr(self.structured_outputs, "initial_state"),
            "structured_outputs",
            "must be a Constraint (grammars come in a later version)",
            self.structured_outputs,
        )

    def has_hooks(self) -> bool:
        """Whether Python takes part in decoding."""
        return bool(self.logits_processors or self.stopping_criteria or self.sampler is not None or self.structured_outputs is not None)

    def stop_list(self) -> list[str]:
        """`stop` as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check(condition: bool, name: str, rule: str, value: object) -> None:
    if not condition:
        raise InvalidParamsError(f"{name} {rule} (it is {value!r})", name)


#: Hugging Face's names for the same things.
ALIASES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "stop_strings": "stop",
    "eos_token_id": "stop_token_ids",
    "sequence_bias": "logit_bias",
    "suppress_tokens": "logit_bias",
    "logits_processor": "logits_processors",
}

#: Parameters that other engines have and that this version refuses by name, unless they are at their neutral value.
REFUSED = {
    "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None, "top_n_sigma": -1.0, "xtc_probability": 0.0,
    "dynatemp_range": 0.0, "mirostat": 0, "dry_multiplier": 0.0, "guidance_scale": None, "negative_prompt": None,
    "penalty_alpha": None, "dola_layers": None, "sampler_order": None, "no_repeat_ngram_size": 0,
    "num_beams": 1, "beam_width": None, "bad_words_ids": None,
}  # fmt: skip

FIELDS = tuple(field.name for field in dataclasses.fields(SamplingParams))


def canonical(params: Mapping[str, Any]) -> dict[str, Any]:
    """Field names for `params`: aliases translated, contradictions and unknown names refused."""
    result: dict[str, Any] = {}
    source: dict[str, str] = {}

    def put(name: str, value: Any, given_as: str) -> None:
        if name in result and result[name] != value:
            raise InvalidParamsError(f"{source[name]} and {given_as} contradict each other: {result[name]!r} and {value!r}", name)
        result[name] = value
        source[name] = given_as

    for name, value in params.items():
        if name in FIELDS:
            put(name, value, name)
        elif name == "do_sample":
            if value is False:
                put("temperature", 0.0, "do_sample=False")
            elif params.get("temperature") == 0:
                raise InvalidParamsError("do_sample=True and temperature=0 contradict each other", "do_sample")
        elif name == "eos_token_id":
            put("stop_token_ids", [value] if isinstance(value, int) else list(value), name)
        elif name == "suppress_tokens":
            put("logit_bias", {int(token): -math.inf for token in value}, name)
        elif name in ALIASES:
            put(ALIASES[name], value, name)
        elif name in REFUSED:
            if value != REFUSED[name]:
                raise UnsupportedCombinationError(f"{name} is not available in this version of llmi", name, "generate")
        else:
            known = [*FIELDS, *ALIASES, "do_sample"]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"unknown sampling parameter {name!r}{hint}")
    return result
