"""Which sampling parameters a particle filter applies; all others are refused by name (docs/decisions/0003)."""

from __future__ import annotations

from collections.abc import Mapping

from llmi.base.kinds import show
from llmi.errors import UnsupportedCombinationError
from llmi.params.sampling import FIELDS, SAMPLING, SamplingParams
from llmi.params.steps import is_set
from llmi.requests.resolve import Resolved

_ENDS = "a particle ends at end-of-text or at stop_token_ids, which its text leaves out"
_FOLLOWS = "its distribution follows what each sample drew before; a particle's distribution is that of its history"
_ONE_ROW = "a particle's distribution is made of the model's own row"
_WEIGHT = "a particle has a weight alone"

#: Fields that are refused if they are set, and why.
REFUSED: Mapping[str, str] = {
    "n": "num_particles says how many texts are drawn",
    "stop": _ENDS,
    "stop_regex": _ENDS,
    "repetition_detection": _ENDS,
    "thinking_token_budget": "its mask follows what each sample drew before: give the filter's own constraint",
    "logprob_token_ids": _WEIGHT,
    "include_stop_str_in_output": _ENDS,
    "mirostat": _FOLLOWS,
    "mirostat_tau": "it belongs to mirostat, which is refused",
    "mirostat_eta": "it belongs to mirostat, which is refused",
    "adaptive_p": _FOLLOWS,
    "adaptive_p_decay": "it belongs to adaptive_p, which is refused",
    "guidance_scale": _ONE_ROW,
    "negative_prompt": _ONE_ROW,
    "dola_layers": _ONE_ROW,
    "dola_rule": _ONE_ROW,
    "penalty_alpha": "contrastive search draws nothing, and particles are drawn",
    "structured_outputs": "give the filter's own constraint, whose weights are unbiased",
    "stopping_criteria": "a potential of -inf ends a particle",
    "sampler": "particles are drawn by the filter's own noise",
    "logprobs": _WEIGHT,
    "prompt_logprobs": _WEIGHT,
    "detokenize": "every particle has its text",
    "output_kind": "a run gives one result, at its end",
}

#: All other fields make a distribution of the history, end a text, or say how it is written.
APPLIED = frozenset(FIELDS) - REFUSED.keys()

#: Fields that have more than one value which sets nothing.
_MANY_NEUTRAL = ("stop", "stopping_criteria", "adaptive_p", "guidance_scale")


def check_parameters(resolved: Resolved) -> None:
    """Raises for the first parameter that is set and is not applied."""
    if resolved.beams is not None:
        raise UnsupportedCombinationError(
            "beam_width: beam search does not work with a ParticleFilter: it chooses texts by their scores, and particles are drawn",
            "beam_width",
            "ParticleFilter",
        )
    params = resolved.params
    for name in FIELDS:
        if name not in APPLIED and _is_set(params, name):
            raise _refusal(params, name, REFUSED[name])
    if 0.0 < params.xtc_probability < 1.0:
        why = "its coin is the sample's own, so that equal histories would have different distributions; 0 and 1 work"
        raise _refusal(params, "xtc_probability", why)


def _is_set(params: SamplingParams, name: str) -> bool:
    value, default = getattr(params, name), SAMPLING[name].default
    if name in _MANY_NEUTRAL:
        return is_set(name, value)
    return type(value) is not type(default) or bool(value != default)


def _refusal(params: SamplingParams, name: str, why: str) -> UnsupportedCombinationError:
    message = f"{name} = {show(getattr(params, name))} does not work with a ParticleFilter: {why}"
    return UnsupportedCombinationError(message, name, "ParticleFilter")
