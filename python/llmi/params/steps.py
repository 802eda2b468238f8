"""The steps between a row of logits and its law: their names, their orders, and which of them some parameters set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

#: Steps that run before the user's processors unless an order names them after a filter.
PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty", "dry_multiplier")
#: All names of sampler_order, in the default order. `temperature` is dynatemp_range's name too.
STEPS = (
    *PENALTIES, "top_n_sigma", "temperature", "min_p", "top_k", "top_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h", "p_less",
    "xtc_probability", "adaptive_p", "mirostat",
)  # fmt: skip
FILTERS = tuple(name for name in STEPS if name not in PENALTIES)
#: The orders that have a name: transformers 5.24, and llama.cpp's default chain.
ORDERS: Mapping[str, tuple[str, ...]] = {
    "hf": (
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "temperature",
        "top_h",
        "top_k",
        "top_p",
        "min_p",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
    ),
    "llama.cpp": (
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "dry_multiplier",
        "top_n_sigma",
        "top_k",
        "typical_p",
        "top_p",
        "min_p",
        "xtc_probability",
        "temperature",
        "adaptive_p",
        "mirostat",
    ),
}
#: Parameters that say how a step works, and change nothing without it.
COMPANIONS: Mapping[str, str] = {
    "xtc_threshold": "xtc_probability", "dynatemp_exponent": "dynatemp_range", "mirostat_tau": "mirostat", "mirostat_eta": "mirostat",
    "adaptive_p_decay": "adaptive_p", "dry_base": "dry_multiplier", "dry_allowed_length": "dry_multiplier",
    "dry_penalty_last_n": "dry_multiplier", "dry_sequence_breakers": "dry_multiplier",
}  # fmt: skip
#: The same for the parameters that make a row of several (llmi/params/rows.py).
ROW_COMPANIONS: Mapping[str, str] = {"negative_prompt": "guidance_scale", "dola_rule": "dola_layers"}
_IS_SET: Mapping[str, Callable[[object], bool]] = {
    "repetition_penalty": lambda value: value != 1,
    "temperature": lambda value: value not in (0, 1),
    "top_k": lambda value: value not in (0, -1),
    "top_p": lambda value: value != 1,
    "typical_p": lambda value: value != 1,
    "top_h": lambda value: value is not None,
    "top_n_sigma": lambda value: isinstance(value, float) and value > 0,
    "adaptive_p": lambda value: isinstance(value, float) and value >= 0,
    "guidance_scale": lambda value: value not in (None, 1),
}


def is_set(name: str, value: object) -> bool:
    """Whether a step's parameter, in its plain form, sets the step."""
    return _IS_SET.get(name, bool)(value)


def asked_for(values: Mapping[str, object]) -> list[str]:
    """The steps that parameters set, in the default order."""
    dynamic = bool(values["dynatemp_range"]) and values["temperature"] != 0
    return [name for name in STEPS if is_set(name, values[name]) or (name == "temperature" and dynamic)]


def order_of(value: str | Sequence[str]) -> tuple[str, ...]:
    """The names of a sampler_order."""
    return ORDERS[value] if isinstance(value, str) else tuple(value)


def idle(values: Mapping[str, object]) -> list[str]:
    """The parameters that change nothing, whatever they are: filters at temperature 0, and the companions of steps that are off."""
    greedy = values["temperature"] == 0
    names = [*(name for name in FILTERS if name != "temperature"), "dynatemp_range"] if greedy else []
    if greedy and values["penalty_alpha"] is not None:
        names.remove("top_k")  # the number of candidates
    for name, owner in {**COMPANIONS, **ROW_COMPANIONS}.items():
        if owner in names or not is_set(owner, values[owner]):
            names.append(name)
    return names
