"""Structured output as a parameter: a JSON schema, a regular expression, a choice or a grammar."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

from llmi.base.kinds import Choice, Flag, entries_of, parse, refuse, show
from llmi.errors import InvalidParamsError
from llmi.params.other_libraries import fields_of_outlines, is_character_parser

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
WHITESPACE = ("compact", "one", "any")
#: Longest text of a schema or grammar, in bytes.
MAX_TEXT = 1 << 20
#: vLLM's other fields, and what to give instead.
_FOREIGN = {
    "disable_any_whitespace": "give whitespace='compact' (the default) or 'any'",
    "whitespace_pattern": "give whitespace='compact', 'one' or 'any'",
    "disable_additional_properties": "objects that list their properties have no others, unless open_objects is true: leave it out",
    "disable_fallback": "nothing falls back here: leave it out",
    "backend": "llguidance is the one engine of grammars: leave it out",
}
_NAME = "structured_outputs"


@dataclasses.dataclass(frozen=True, eq=True)
class StructuredOutputsParams:
    """What the output must be. Exactly one of the first six fields is set; the names are vLLM's.

    Attributes
    ----------
    json : dict, str or pydantic model, optional
        A JSON schema (of drafts 7 or 2020-12), its text, or a class with `model_json_schema()`.
    json_object : bool
        Any JSON object.
    regex : str, optional
        A regular expression that the whole output matches: Rust's syntax, without lookaround and backreferences.
    choice : list of str, optional
        The output is one of these texts.
    grammar : str, optional
        A grammar in llguidance's dialect of Lark, with a rule `start`; or in GBNF, with a rule `root`.
    structural_tag : dict or str, optional
        vLLM's form: `{"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}`. The text is free until
        a trigger comes; then it keeps to the structure that begins so.
    whitespace : {"compact", "one", "any"}
        Of JSON: none at all, one space after `,` and `:`, or as the standard allows.
    lenient : bool
        Schema keywords that the grammar engine does not know have no effect, with a warning in the log. By default they are refused.
    open_objects : bool
        An object of a JSON schema that lists properties, and says nothing of others, may have any others, as the standard has it. By
        default it has none: small models make names up until the limit.
    after_thinking : bool
        The constraint starts behind the model's thinking: behind the token or text that ends it (`</think>`), if the prompt opens a block
        of thinking or the output begins with one. Else it starts at once.

    Raises
    ------
    InvalidParamsError
        None or several of the six are set, or a value is of another kind. What the grammar itself gets wrong is found when a
        request is prepared.

    Examples
    --------
    >>> StructuredOutputsParams(regex="[0-9]{3}")
    StructuredOutputsParams(regex='[0-9]{3}')
    """

    json: str | dict[str, Any] | None = None
    json_object: bool = False
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    whitespace: Literal["compact", "one", "any"] = "compact"
    lenient: bool = False
    open_objects: bool = False
    after_thinking: bool = False

    def __post_init__(self) -> None:
        settle: dict[str, Callable[[object], object]] = {
            "json": _schema,
            "json_object": lambda value: parse(Flag(), f"{_NAME}.json_object", value),
            "regex": lambda value: _text("regex", value),
            "choice": _choice,
            "grammar": lambda value: _text("grammar", value),
            "structural_tag": lambda value: _json_text("structural_tag", value),
            "whitespace": lambda value: parse(Choice(WHITESPACE), f"{_NAME}.whitespace", value),
            "lenient": lambda value: parse(Flag(), f"{_NAME}.lenient", value),
            "open_objects": lambda value: parse(Flag(), f"{_NAME}.open_objects", value),
            "after_thinking": lambda value: parse(Flag(), f"{_NAME}.after_thinking", value),
        }
        for name, rule in settle.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, rule(value))
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            what = " and ".join(given) if given else "none"
            raise InvalidParamsError(f"{_NAME} takes exactly one of {', '.join(KINDS)}, not {what}", _NAME)
        if self.kind not in ("json", "json_object") and self.whitespace != "compact":
            raise InvalidParamsError(f"{_NAME}.whitespace is for json and json_object, not for {self.kind}", _NAME)
        if self.kind != "json" and self.lenient:
            raise InvalidParamsError(f"{_NAME}.lenient is for json, not for {self.kind}", _NAME)
        if self.kind not in ("json", "structural_tag") and self.open_objects:
            raise InvalidParamsError(f"{_NAME}.open_objects is for json and structural_tag, not for {self.kind}", _NAME)

    @classmethod
    def of(cls, term: object, **fields: object) -> StructuredOutputsParams:
        """What a term of outlines says (Regex, JsonSchema, CFG, and what is made of them), with other fields such as `whitespace`.

        Raises InvalidParamsError for any other object. The term itself may be given as `structured_outputs`, too.
        """
        read = fields_of_outlines(term)
        if read is None:
            raise refuse(_NAME, "a term of outlines", term)
        values: dict[str, Any] = {**read, **fields}
        return cls(**values)

    @property
    def kind(self) -> str:
        """Which of the six is set."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    def as_dict(self) -> dict[str, Any]:
        """The fields that are set, as strict JSON."""
        fields = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        return {name: value for name, (value, default) in fields.items() if value != default}

    def __hash__(self) -> int:
        return hash(self._text)

    @property
    def num_chars(self) -> int:
        """Characters of all fields, as JSON."""
        return len(self._text)

    @functools.cached_property
    def _text(self) -> str:
        """Made once: grammars are looked up by it."""
        return json.dumps(self.as_dict())

    def __repr__(self) -> str:
        return f"StructuredOutputsParams({', '.join(f'{name}={show(value)}' for name, value in self.as_dict().items())})"


class StructuredKind:
    """A Constraint, StructuredOutputsParams, or a mapping of its fields."""

    says = (
        f"a Constraint, StructuredOutputsParams, a dict with one of {', '.join(KINDS)}, a term of outlines or a parser of"
        " lm-format-enforcer"
    )

    def parse(self, name: str, value: object) -> Any:
        """The value in its plain form. Raises InvalidParamsError that names the argument."""
        if isinstance(value, StructuredOutputsParams) or (hasattr(value, "initial_state") and not isinstance(value, type)):
            return value
        if is_character_parser(value):
            return value
        if fields_of_outlines(value) is not None:
            return StructuredOutputsParams.of(value)
        if not isinstance(value, Mapping):
            raise refuse(name, self.says, value)
        known = {field.name for field in dataclasses.fields(StructuredOutputsParams)}
        for key in value:
            if key in _FOREIGN and value[key] not in (None, False):
                raise InvalidParamsError(f"{name}.{key} is not offered: {_FOREIGN[key]}", name)
            if key not in known and key not in _FOREIGN:
                raise InvalidParamsError(f"{name} has no field {show(key)}: give one of {', '.join(KINDS)}", name)
        return StructuredOutputsParams(**{key: entry for key, entry in value.items() if key in known})


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise refuse(f"{_NAME}.{name}", "a text", value)
    _check_text(name, value)
    return value


def _check_text(name: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidParamsError(f"{_NAME}.{name} holds half a character (a lone surrogate) at {error.start}", _NAME) from None
    if size > MAX_TEXT:
        raise InvalidParamsError(f"{_NAME}.{name} has {size:,} bytes, at most {MAX_TEXT:,} are taken", _NAME)
    if "\0" in text:
        raise InvalidParamsError(f"{_NAME}.{name} holds a NUL character at {text.index(chr(0))}", _NAME)


def _choice(value: object) -> list[str]:
    entries = None if isinstance(value, str) else entries_of(f"{_NAME}.choice", value)
    if not entries:
        raise refuse(f"{_NAME}.choice", "a list of at least one text", value)
    total = 0
    for index, entry in enumerate(entries):
        total += len(_text(f"choice[{index}]", entry))
        if total > MAX_TEXT:
            raise InvalidParamsError(f"{_NAME}.choice has more than {MAX_TEXT:,} characters", _NAME)
    if len(set(entries)) < len(entries):
        twice = collections.Counter(entries).most_common(1)[0][0]
        raise InvalidParamsError(f"{_NAME}.choice holds {show(twice)} twice", _NAME)
    return entries


def _schema(value: object) -> dict[str, Any]:
    if hasattr(value, "model_json_schema"):  # a pydantic model
        value = value.model_json_schema()
    plain = _json_text("json", value)
    if isinstance(plain, bool):
        return {} if plain else {"not": {}}
    schema: dict[str, Any] = plain
    return schema


def _json_text(name: str, value: object) -> Any:
    """A JSON object (or, as a schema, a boolean), from text or as it is; a copy that nobody else holds."""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidParamsError(f"{_NAME}.{name} is no JSON: {error}", _NAME) from None
    try:
        plain = json.loads(value, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidParamsError(f"{_NAME}.{name} is no JSON: {error}", _NAME) from None
    if not isinstance(plain, dict) and not (name == "json" and isinstance(plain, bool)):
        raise refuse(f"{_NAME}.{name}", "a JSON object", plain)
    _check_text(name, json.dumps(plain, ensure_ascii=False))
    return plain


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = collections.Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {show(twice)} comes twice in one object")
    return result


def _finite(number: str) -> float:
    value = float(number)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{number} is over the largest float64")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
