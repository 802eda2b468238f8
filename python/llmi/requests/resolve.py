"""A request's parameters and seed: what the call gave, over the model's own defaults."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from llmi.base.kinds import show
from llmi.base.log import log
from llmi.errors import InvalidParamsError
from llmi.params.beams import BEAM_FIELDS, BEAMS, SHARED, BeamSearchParams, Params, canonical_beams, means_beams
from llmi.params.sampling import FIELDS, SAMPLING, SamplingParams, canonical
from llmi.params.steps import FILTERS, STEPS, idle, is_set, order_of


@dataclasses.dataclass
class Resolved:
    """Parameters of one request, and where each value came from; `no_effect` were given and change nothing.

    beams: beam search's own, if it is one; `params` has the rest then, and `n`.
    """

    params: SamplingParams
    sources: dict[str, str]
    no_effect: dict[str, Any]
    beams: BeamSearchParams | None = None

    def copy(self) -> Resolved:
        """A copy for the next prompt: max_tokens is settled for each."""
        return Resolved(dataclasses.replace(self.params), dict(self.sources), dict(self.no_effect), self.beams)

    def values(self) -> dict[str, Any]:
        """All fields of the request's SamplingParams or BeamSearchParams."""
        if self.beams is None:
            return {name: getattr(self.params, name) for name in FIELDS}
        return {name: getattr(self.beams if name in BEAMS else self.params, name) for name in BEAM_FIELDS}

    def shown(self) -> dict[str, tuple[Any, str]]:
        """As `RequestOutput.params_resolved` shows them."""
        shown = {name: (value, self.sources[name]) for name, value in self.values().items()}
        for name in idle({name: getattr(self.params, name) for name in FIELDS}):
            if self.sources.get(name, "default") != "default":
                shown[name] = (shown[name][0], "no effect")
        return shown | {name: (value, "no effect") for name, value in self.no_effect.items()}


def resolve_params(explicit: object, overrides: Mapping[str, Any], model_defaults: Mapping[str, Any], to_the_end: bool = False) -> Resolved:
    """The parameters of one request.

    An explicit SamplingParams or BeamSearchParams replaces the model's defaults; keyword overrides are laid over them. to_the_end: where
    nobody gives max_tokens it is the end of the context.
    """
    no_effect: dict[str, Any] = {}
    if explicit is not None:
        if overrides:
            names = ", ".join(overrides)
            raise InvalidParamsError(f"give sampling_params or keyword parameters ({names}), not both", "sampling_params")
        if isinstance(explicit, BeamSearchParams):
            return _given_beams(explicit)
        if not isinstance(explicit, SamplingParams):
            what = "SamplingParams or BeamSearchParams"
            raise InvalidParamsError(f"sampling_params must be {what}, not {show(explicit)}", "sampling_params")
        explicit._materialise()
        params = dataclasses.replace(explicit)
        params._settle()
        given = {
            name
            for name in FIELDS
            if getattr(params, name) != SAMPLING[name].default or type(getattr(params, name)) is not type(SAMPLING[name].default)
        }
        sources = {name: "user" if name in given else "default" for name in FIELDS}
    elif means_beams(overrides):
        return _beams_by_keywords(overrides, model_defaults, to_the_end)
    else:
        changes, no_effect = canonical(overrides, "generate")
        unless_given = {"max_tokens": None} if to_the_end else {}
        if changes.get("penalty_alpha") is not None:
            model_defaults = {name: value for name, value in model_defaults.items() if name != "temperature"}
            if changes.get("temperature", 0.0) is None:
                del changes["temperature"]
        params = SamplingParams(**{**unless_given, **model_defaults, **changes})
        outranked = _outranked(params, changes, model_defaults)
        for name in outranked:
            setattr(params, name, SAMPLING[name].default)
        no_effect |= outranked
        try:
            params._settle()
        except InvalidParamsError as error:
            if error.parameter == "min_tokens" and "min_tokens" in model_defaults and "min_tokens" not in changes:
                raise InvalidParamsError(f"{error} (min_tokens comes from the model's generation_config.json)", "min_tokens") from None
            raise
        sources = {name: "user" if name in changes else "model" if name in model_defaults else "default" for name in FIELDS}
        if changes.get("temperature") == 0.0 and "temperature" in overrides and overrides["temperature"] != 0:
            log.info("do_sample=False: greedy; temperature = %s is not used", show(overrides["temperature"]))
    return Resolved(params, sources, no_effect)


def _given_beams(explicit: BeamSearchParams) -> Resolved:
    """An explicit BeamSearchParams."""
    explicit._materialise()
    beams = dataclasses.replace(explicit)
    sources = dict.fromkeys(BEAM_FIELDS, "default")
    params = beams._settle()
    for name in BEAM_FIELDS:
        default = BEAMS[name].default if name in BEAMS else SAMPLING[name].default
        value = getattr(explicit if name == "n" else beams, name)
        if value != default or type(value) is not type(default):
            sources[name] = "user"
    return Resolved(params, sources, {}, beams)


def _beams_by_keywords(overrides: Mapping[str, Any], model_defaults: Mapping[str, Any], to_the_end: bool) -> Resolved:
    """Beam search by a call's keywords. The model's own temperature and filters hold where candidates are drawn, as in transformers."""
    changes, no_effect = canonical_beams(overrides, "generate")
    draws = BEAMS["do_sample"].parse(changes.get("do_sample"))
    own = {name: value for name, value in model_defaults.items() if name in SHARED and name not in changes}
    left_out = {name for name in own if name in FILTERS and (not draws or own[name] == 0)}
    no_effect |= {name: own[name] for name in left_out if is_set(name, own[name])}
    own = {name: value for name, value in own.items() if name not in left_out}
    beams = BeamSearchParams(**{**({"max_tokens": None} if to_the_end else {}), **own, **changes})
    outranked = _outranked(beams, changes, own)
    for name in outranked:
        setattr(beams, name, SAMPLING[name].default)
    no_effect |= outranked
    params = beams._settle()
    sources = {name: "user" if name in changes else "model" if name in own else "default" for name in BEAM_FIELDS}
    return Resolved(params, sources, no_effect, beams)


def _outranked(params: Params, changes: Mapping[str, Any], model_defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The model's own filters and penalties that the call's mirostat replaces, or that its sampler_order leaves out."""
    mirostat = SAMPLING["mirostat"].parse(params.mirostat) if "mirostat" in changes else 0
    order = SAMPLING["sampler_order"].parse(params.sampler_order) if "sampler_order" in changes else None
    left_out = {name for name in FILTERS if name not in ("temperature", "mirostat")} if mirostat else set()
    if order is not None:
        left_out |= {*STEPS} - {*order_of(order)}
    return {name: value for name, value in model_defaults.items() if name in left_out and name not in changes and is_set(name, value)}


def take_options(generate_args: dict[str, Any], *names: str) -> dict[str, Any]:
    """Takes a call's own options out of its keywords; the rest are SamplingParams fields."""
    return {name: generate_args.pop(name) for name in names if name in generate_args}


def derive_seed(engine_seed: int | None, index: int) -> int:
    """A request's own seed: a hash of the engine's and its index in the call, or drawn if there is none."""
    if engine_seed is None:
        return secrets.randbits(64)
    digest = hashlib.blake2b(f"{engine_seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
