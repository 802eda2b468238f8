"""Options of engines as flags, made from the one table of them (llmi/engine/options.py)."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import Any

from llmi.base.kinds import Maybe, Whole
from llmi.cli.sampling_flags import number_of
from llmi.engine.options import ENGINE
from llmi.errors import LlmiError
from llmi.params.options import Option


def add_engine_flags(parser: argparse._ActionsContainer, command: str, **defaults: str) -> None:
    """A flag for each option that the command has. defaults: those that are not LLM's."""
    for name, option in ENGINE.items():
        if command not in option.flag_of:
            continue
        default = defaults.get(name, option.default)
        text = re.sub(r"; None: (.*)", r" (default: \1)", option.brief.removesuffix("."))
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=reader(option),
            metavar=_metavar(option),
            default=argparse.SUPPRESS if default is None else default,
            help=text.replace("%", "%%"),
        )


def given_engine_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """LLM's arguments, as far as a command's flags give them."""
    return {name: getattr(arguments, name) for name, option in ENGINE.items() if option.flag_of and hasattr(arguments, name)}


def _is_number(option: Option) -> bool:
    kind = option.kind.kind if isinstance(option.kind, Maybe) else option.kind
    return isinstance(kind, Whole)


def _metavar(option: Option) -> str:
    if option.words:
        return f"{{{','.join(option.words)}}}"
    names = {
        "activation_bits": "{8,16}",
        "speculative_config": "JSON",
        "hf_overrides": "JSON",
        "kv_transfer_config": "JSON",
        "chat_template": "FILE",
        "prefix_cache_dir": "DIR",
    }
    return names.get(option.name, "N" if _is_number(option) else "TEXT")


def reader(option: Option) -> Callable[[str], Any]:
    """From a flag's text to the option's plain form."""

    def read(text: str) -> Any:
        try:
            if option.name == "speculative_config":
                return json.loads(text) if text.lstrip().startswith("{") else text
            if option.name in ("hf_overrides", "kv_transfer_config"):
                given = json.loads(text)
                option.parse(given, "it")
                return given
            return option.parse(number_of(text) if _is_number(option) else text, "it")
        except LlmiError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"it is no JSON: {error}") from None

    return read
