"""Sampling parameters as text: the flags of the command line and `/set` of a chat, both made from the one table of options."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

from llmi.base.kinds import TOKEN_IDS, Either, Flag, Listed, Maybe, Neutral, Real, Text, Whole
from llmi.errors import InvalidParamsError
from llmi.params.options import Option
from llmi.params.sampling import SAMPLING
from llmi.params.steps import ORDERS

#: Parameters that change nothing that a command prints, or that it cannot print.
NOT_OFFERED = {"n", "logprobs", "prompt_logprobs", "detokenize", "output_kind", "eos_token_id"}
_ORDER = "sampler_order"
_PLAIN = (Real, Whole, Flag)
_WORDS = {"none": None, "true": True, "false": False}


def _bare(option: Option) -> Any:
    kind = option.kind
    while isinstance(kind, Maybe | Neutral):
        kind = kind.kind
    return kind


def _is_texts(kind: object) -> bool:
    """A list whose entries may be text."""
    if not isinstance(kind, Listed):
        return False
    entry = kind.entry
    return isinstance(entry, Text) or (isinstance(entry, Either) and any(isinstance(inner, Text) for inner in entry.kinds))


def offered() -> dict[str, Option]:
    """The parameters that can be given as text: numbers, switches, and lists of texts or of ids."""
    return {
        name: option
        for name, option in SAMPLING.items()
        if name not in NOT_OFFERED and (isinstance(kind := _bare(option), _PLAIN) or _is_texts(kind) or kind is TOKEN_IDS or name == _ORDER)
    }


def parse_text(name: str, text: str, given_as: str) -> Any:
    """A parameter's value as typed, in its plain form. Raises InvalidParamsError that names it as `given_as`."""
    option = offered().get(name)
    if option is None:
        if name in SAMPLING:
            raise InvalidParamsError(f"{given_as} cannot be given as text here", name)
        from llmi.params.options import unknown

        raise InvalidParamsError(str(unknown("unknown sampling parameter", [name], offered(), {})), name)
    kind = _bare(option)
    if text.lower() == "none" and not _is_texts(kind):
        return option.parse(None, given_as)
    if name == _ORDER:
        return option.parse(text if text in ORDERS else text.split(","), given_as)
    if kind is TOKEN_IDS:
        return option.parse([number_of(part) for part in text.split(",")], given_as)
    if _is_texts(kind):
        return option.parse([text], given_as)
    return option.parse(_WORDS[text.lower()] if text.lower() in _WORDS else number_of(text), given_as)


def number_of(text: str) -> Any:
    """The number that a text is, or the text itself, which the parameter's kind then refuses."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        value = json.loads(text)
        return value if isinstance(value, int | float) else text
    return text


def add_flags(parser: argparse.ArgumentParser, defaults: dict[str, str]) -> None:
    """A flag for each parameter, with the default that holds where none is given."""
    group = parser.add_argument_group("sampling (names as in SamplingParams)")
    for name, option in offered().items():
        flag, kind = f"--{name.replace('_', '-')}", _bare(option)
        default = defaults.get(name) or f"the model's, else {option.default}"
        text = f"{option.brief} (default: {default})".replace("%", "%%")
        if isinstance(kind, Flag):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text.partition(" (default")[0])
        elif _is_texts(kind):
            text = f"{option.brief} May be given several times."
            group.add_argument(flag, action="append", metavar="TEXT", default=argparse.SUPPRESS, help=text)
        elif name == _ORDER:
            group.add_argument(flag, metavar="NAME,NAME", default=argparse.SUPPRESS, help=option.brief)
        elif kind is TOKEN_IDS:
            group.add_argument(flag, metavar="ID,ID", default=argparse.SUPPRESS, help=option.brief)
        else:
            group.add_argument(flag, metavar="N" if isinstance(kind, Whole) else "X", default=argparse.SUPPRESS, help=text)


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The parameters that were given as flags. Raises InvalidParamsError that names the flag."""
    result: dict[str, Any] = {}
    for name in offered():
        if not hasattr(arguments, name):
            continue
        value, flag = getattr(arguments, name), f"--{name.replace('_', '-')}"
        result[name] = parse_text(name, value, flag) if isinstance(value, str) else SAMPLING[name].parse(value, flag)
    return result
