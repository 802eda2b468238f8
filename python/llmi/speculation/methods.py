"""vLLM's speculative_config: its keys, and the drafter of each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmi.base.kinds import Either, Maybe, Object, Place, Real, Text, Whole, parse, show
from llmi.base.log import log
from llmi.base.opening import is_llm
from llmi.errors import InvalidParamsError, UnsupportedCombinationError
from llmi.params.options import nearest
from llmi.speculation.auto import AutoDrafters
from llmi.speculation.draft_model import DraftModel
from llmi.speculation.drafters import Drafter, PromptLookup
from llmi.speculation.eagle import Eagle
from llmi.speculation.medusa import Medusa

Config = Mapping[str, Any]

_SUFFIX_DEPTH = Maybe(Whole(1, 64))
_CACHED = Maybe(Whole(0, 2**31 - 1))
_FACTOR, _PROBABILITY = Maybe(Real(0, 1e6, "a number of 0 or more")), Maybe(Real(0, 1, "a number in [0, 1]"))
_SUFFIX = "suffix_decoding_"
_COMMON = ("method", "model", "num_speculative_tokens", "verification")
_LOOKUP_KEYS = ("prompt_lookup_max", "prompt_lookup_min")
_SUFFIX_KEYS = tuple(_SUFFIX + name for name in ("max_tree_depth", "max_cached_requests", "max_spec_factor", "min_token_prob"))


def _ngram(config: Config) -> Drafter:
    method = config.get("method")
    if method not in (None, "ngram") and config.get("model") is not None and config["model"] not in ("ngram", "[ngram]"):
        raise InvalidParamsError(f"speculative_config: method {method!r} has no model, not {show(config['model'])}", "speculative_config")
    longest, shortest = config.get("prompt_lookup_max"), config.get("prompt_lookup_min")
    return PromptLookup(4 if longest is None else longest, 1 if shortest is None else shortest)


def _suffix(config: Config) -> Drafter:
    """Matches in the request's own text (Oliaro et al., SuffixDecoding, 2024); no cache of other requests' answers."""
    if config.get("model") is not None:
        raise InvalidParamsError(f"speculative_config: method 'suffix' has no model, not {show(config['model'])}", "speculative_config")
    depth = parse(_SUFFIX_DEPTH, "speculative_config's suffix_decoding_max_tree_depth", config.get(_SUFFIX + "max_tree_depth"))
    for name, kind in (("max_spec_factor", _FACTOR), ("min_token_prob", _PROBABILITY), ("max_cached_requests", _CACHED)):
        if parse(kind, f"speculative_config's {_SUFFIX}{name}", config.get(_SUFFIX + name)):
            log.info(
                "speculative_config: %s%s has no effect: drafts come from the request's own text, as long as acceptance and cost say",
                _SUFFIX,
                name,
            )
    return PromptLookup(24 if depth is None else depth, 1)


def _draft_model(config: Config) -> Drafter:
    if config.get("model") is None:
        raise InvalidParamsError("speculative_config: method 'draft_model' needs 'model'", "speculative_config")
    return DraftModel(config["model"])


def _eagle(config: Config) -> Drafter:
    if config.get("model") is None:
        raise InvalidParamsError(
            f"speculative_config: method {config['method']!r} needs 'model', the path of its layer", "speculative_config"
        )
    length = config.get("num_speculative_tokens")
    return Eagle(config["model"], length if isinstance(length, int) else 2)


def _medusa(config: Config) -> Drafter:
    """One token of each head, as many as num_speculative_tokens says; without it, the default tree."""
    if config.get("model") is None:
        raise InvalidParamsError("speculative_config: method 'medusa' needs 'model', the path of its heads", "speculative_config")
    length = config.get("num_speculative_tokens")
    return Medusa(
        config["model"], choices=[(0,) * (depth + 1) for depth in range(length)] if isinstance(length, int) and length > 0 else None
    )


def _auto(config: Config) -> Drafter:
    if config.get("model") is not None:
        raise InvalidParamsError(f"speculative_config: method 'auto' has no model, not {show(config['model'])}", "speculative_config")
    return AutoDrafters()


#: The drafter of each method, and the keys that it has in addition to those of all.
METHODS: dict[str, tuple[Callable[[Config], Drafter], tuple[str, ...]]] = {
    "ngram": (_ngram, _LOOKUP_KEYS),
    "[ngram]": (_ngram, _LOOKUP_KEYS),
    "prompt_lookup": (_ngram, _LOOKUP_KEYS),
    "suffix": (_suffix, _SUFFIX_KEYS),
    "draft_model": (_draft_model, ()),
    "eagle": (_eagle, ()),
    "eagle3": (_eagle, ()),
    "medusa": (_medusa, ()),
    "auto": (_auto, ()),
}
_SHOWN = [name for name in METHODS if name not in ("[ngram]", "prompt_lookup")]


def drafter_of(config: Config) -> Drafter:
    """The drafter that vLLM's keys name.

    Raises
    ------
    InvalidParamsError
        A key is unknown or belongs to another method, or a value is out of its range.
    UnsupportedCombinationError
        llmi has no such method.
    """
    if not config:
        raise InvalidParamsError("speculative_config is empty: None switches speculation off", "speculative_config")
    known = {*_COMMON, *(key for _, keys in METHODS.values() for key in keys)}
    if unknown := [key for key in config if key not in known]:
        names = ", ".join(f"{show(key)}{nearest(str(key), known, {})}" for key in unknown)
        raise InvalidParamsError(f"speculative_config has no key {names}; its keys are {', '.join(sorted(known))}", "speculative_config")
    if config.get("model") is not None:
        parse(Either((Place(), Object("", is_llm)), "a path or an LLM"), "speculative_config's model", config["model"])
    method = config.get("method")
    if method is None:
        model = config.get("model")
        method = "ngram" if model is None or (isinstance(model, str) and model in ("ngram", "[ngram]")) else "draft_model"
    method = parse(Text(64), "speculative_config's method", method)
    if method not in METHODS:
        raise UnsupportedCombinationError(
            f"speculative_config: method {method!r} is unknown: {', '.join(_SHOWN[:-1])} or {_SHOWN[-1]}", "speculative_config", str(method)
        )
    make, own = METHODS[method]
    if foreign := [key for key in config if key not in _COMMON and key not in own and config[key] is not None]:
        raise InvalidParamsError(f"speculative_config: method {method!r} has no {', '.join(foreign)}", "speculative_config")
    return make(config)
