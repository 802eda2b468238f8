"""What an option is: its kind, default and meaning; and the table of the options of calls."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from inspect import cleandoc, formatannotation, signature
from typing import Annotated, Any, Protocol, TypeGuard, TypeVar, get_origin

from llmi.base.kinds import (
    FLOAT32_MAX,
    Choice,
    Either,
    Flag,
    Kind,
    Maybe,
    Neutral,
    Real,
    Text,
    Whole,
    callable_object,
    entries_of,
    parse,
)
from llmi.errors import InvalidParamsError

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
MANY = 2**31 - 1

T = TypeVar("T")


class DefaultInt(int):
    """A default that nobody gave: it may be shortened, where a number that a user gave is refused."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One argument: its valid values, its default, its meaning (the first sentence says enough for a flag), and its names in other engines.

    passed_on: the core takes the value unchanged, under this name (csrc/engine/options.h, csrc/sampling/params.h).
    from_model: a model's generation_config.json may set it under this name.
    flag_of: the commands that have a flag for this option of an engine.
    type: its annotation, as a docstring shows it.
    """

    name: str
    kind: Kind
    default: object
    doc: str
    aliases: tuple[str, ...] = ()
    passed_on: bool = False
    from_model: bool = False
    flag_of: tuple[str, ...] = ()
    type: str = ""

    @property
    def brief(self) -> str:
        """The first sentence of its meaning."""
        return re.split(r"(?<=\.) ", self.doc, maxsplit=1)[0]

    @property
    def words(self) -> tuple[str, ...]:
        """The words of which it may be one."""
        kind = self.kind
        while isinstance(kind, Maybe | Neutral):
            kind = kind.kind
        return getattr(kind.kinds[0] if isinstance(kind, Either) else kind, "words", ())

    def described(self) -> str:
        """Its entry in a docstring."""
        words = f", one of {', '.join(self.words)}" if self.words and "Literal" not in self.type else ""
        return f"{self.name} : {self.type}{words}\n{textwrap.indent(textwrap.fill(self.doc, 116), '    ')}"

    def parse(self, value: object, given_as: str = "") -> Any:
        """The value in its plain form. Raises InvalidParamsError that names the argument as it was given."""
        return parse(self.kind, given_as or self.name, value)


def table(*options: Option) -> dict[str, Option]:
    """Options by name."""
    return {option.name: option for option in options}


def about(
    kind: Kind,
    doc: str,
    aliases: tuple[str, ...] = (),
    *,
    passed_on: bool = False,
    from_model: bool = False,
    flag_of: tuple[str, ...] = (),
) -> dict[str, object]:
    """An option's kind, text and uses: metadata of a dataclass's field or of an `Annotated` argument, which has name and default."""
    return {"kind": kind, "doc": doc, "aliases": aliases, "passed_on": passed_on, "from_model": from_model, "flag_of": flag_of}


def field(default: T, kind: Kind, doc: str, aliases: tuple[str, ...] = (), *, passed_on: bool = False, from_model: bool = False) -> T:
    """A field of a dataclass that is an Option."""
    return dataclasses.field(default=default, metadata=about(kind, doc, aliases, passed_on=passed_on, from_model=from_model))


def number(default: T, kind: Kind, doc: str, aliases: tuple[str, ...] = (), *, passed_on: bool = True, from_model: bool = False) -> T:
    """A field whose default changes nothing. None means the default, as in transformers."""
    return field(default, Neutral(kind, default), doc, aliases, passed_on=passed_on, from_model=from_model)


def options_of(fields: type) -> dict[str, Option]:
    """The options that a dataclass's fields declare, by name."""
    return table(
        *(
            Option(
                field.name, default=None if field.default is dataclasses.MISSING else field.default, type=str(field.type), **field.metadata
            )
            for field in dataclasses.fields(fields)
        )
    )


def options_of_arguments(function: Callable[..., object]) -> dict[str, Option]:
    """The options that a function's annotated arguments declare, by name. The annotations are plain types afterwards."""
    declared = {}
    for name, argument in signature(function).parameters.items():
        if get_origin(argument.annotation) is Annotated:
            hint, [metadata] = argument.annotation.__origin__, argument.annotation.__metadata__
            function.__annotations__[name] = hint = getattr(hint, "__forward_arg__", hint)
            declared[name] = Option(
                name, default=argument.default, type=hint if isinstance(hint, str) else formatannotation(hint), **metadata
            )
    return declared


class Documented:
    """A docstring that describes options. Its text is made when it is read, which `import llmi` need not wait for."""

    def __init__(self, doc: str | None, options: Mapping[str, Option]) -> None:
        self._doc = doc
        self._options = options

    def __get__(self, instance: object, owner: type | None = None) -> str | None:
        if self._doc is None:  # python -OO
            return None
        text, *rest = re.split(r"\n\n(?=(?:Raises|Examples)\n-)", cleandoc(self._doc))
        parameters = "\n".join(["Parameters", "----------", *(option.described() for option in self._options.values())])
        return "\n\n".join([text, parameters, *rest])


class Streamer(Protocol):
    """A transformers streamer."""

    def put(self, value: object) -> object:
        """The prompt's token ids [1, len], then each new one [1]."""

    def end(self) -> object:
        """No more will come."""


def is_streamer(value: object) -> TypeGuard[Streamer]:
    """Whether `value` is a transformers streamer: an object with put() and end()."""
    return callable_object(getattr(value, "put", None)) and callable_object(getattr(value, "end", None)) and not isinstance(value, type)


SEED = Maybe(Whole(-1, 2**64 - 1, "None, -1 (both: drawn) or an integer in [0, 2^64)"), none=(-1,))

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
    Option("max_length", Maybe(Whole(2, MANY, "None or an integer in [2, the model's context]")), None, "Tokens in one window."),
    Option(
        "stride", Maybe(Whole(1, MANY, "None or an integer of 1 or more")), None, "Tokens from the beginning of one window to the next."
    ),
    Option("num_tokens", Whole(0, MANY, "an integer of 0 or more"), 0, "How many tokens to take back."),
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
        Maybe(Whole(0, MANY, "None or an integer of 0 or more")),
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
