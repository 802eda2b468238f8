"""From StructuredOutputsParams to a grammar of the library, and what is refused on the way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

from llmi.base.log import log
from llmi.errors import InvalidParamsError
from llmi.params.structured import StructuredOutputsParams
from llmi.structured.budget import Budget
from llmi.structured.forcing import without_endless_forcing
from llmi.structured.gbnf import GbnfError, is_gbnf, lark_of_gbnf
from llmi.structured.lark_text import literal
from llmi.structured.library import Matcher, Vocabulary, load
from llmi.structured.strict_schema import strict_schema
from llmi.structured.structural_tag import tag_grammar
from llmi.structured.thinking import behind
from llmi.structured.trial import Limits, try_out

_SEPARATORS: dict[str, dict[str, object]] = {
    "compact": {"whitespace_flexible": False},
    "one": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "any": {},
}
#: Without `u`: names of properties could be written in two ways, and the library compares texts.
_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}
#: What a budget's error calls each kind.
_NAMES = {
    "json": "the JSON schema",
    "json_object": "the JSON schema",
    "regex": "the regular expression",
    "choice": "the choice",
    "grammar": "the grammar",
    "structural_tag": "the structural tag",
}


def refused(what: str) -> InvalidParamsError:
    """The error of a grammar that cannot be enforced."""
    return InvalidParamsError(f"structured_outputs: {what}", "structured_outputs")


def grammar_of(params: StructuredOutputsParams, special: Mapping[str, int] = MappingProxyType({}), budget: Budget | None = None) -> str:
    """The grammar's text in the library's own form. special: the special tokens of the vocabulary. Raises InvalidParamsError.

    budget: of the request, where it has several grammars; None: one of its own.
    """
    budget = Budget(_NAMES[params.kind]) if budget is None else budget
    try:
        return _grammar_of(params, special, budget)
    except RecursionError:
        raise refused(f"{_NAMES[params.kind]} is nested too deep") from None
    except ValueError as error:
        raise error if isinstance(error, InvalidParamsError) else refused(_explain(params, str(error))) from None


def _grammar_of(params: StructuredOutputsParams, special: Mapping[str, int], budget: Budget) -> str:
    matcher = load().LLMatcher
    if params.kind in ("json", "json_object"):
        schema = {"type": "object"} if params.json is None else _strict(params, budget)
        options = {**_SEPARATORS[params.whitespace], **_ESCAPES, "lenient": params.lenient}
        return str(matcher.grammar_from_json_schema(json.dumps(schema), overrides=options))
    if params.kind == "regex":
        return str(matcher.grammar_from_regex(params.regex or ""))
    if params.kind == "choice":
        texts = " | ".join(map(literal, params.choice or ()))
        return str(matcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {texts}"))  # one terminal: rules are limited to 2,000 at one place
    if params.kind == "structural_tag":

        def rule(schema: str | dict[str, object]) -> str:
            return json_rule(StructuredOutputsParams(json=schema, open_objects=params.open_objects), budget)

        return str(matcher.grammar_from_lark(tag_grammar(params.structural_tag, special, rule)))
    return str(matcher.grammar_from_lark(_lark(params.grammar or "", budget)))


def compiled(
    params: StructuredOutputsParams, vocabulary: Vocabulary, prelude: str = "", budget: Budget | None = None, limits: Limits | None = None
) -> Matcher:
    """A matcher at the beginning of the grammar's language, or of what comes before it (thinking.py). Raises InvalidParamsError, for JSON
    schemas with JSON pointers. limits: of a trial in a process of its own; None: there is no trial.
    """
    try:
        grammar = behind(prelude, grammar_of(params, vocabulary.special, budget))
        if limits is not None:
            try_out(grammar, vocabulary.num_tokens, vocabulary.special, limits)
        matcher = vocabulary.matcher(grammar, params.kind)
    except ValueError as error:  # from the library
        raise error if isinstance(error, InvalidParamsError) else refused(_explain(params, str(error))) from None
    if matcher.is_error():
        raise refused(_explain(params, str(matcher.get_error())))
    if params.lenient or params.kind in ("grammar", "structural_tag"):  # nothing else lets the compiler leave something out
        for warning in vocabulary.warnings(grammar):
            log.warning("structured_outputs: %s", warning)
    return matcher


def _lark(grammar: str, budget: Budget) -> str:
    if not is_gbnf(grammar):
        return without_endless_forcing(grammar)
    try:  # whose terminals always leave a choice (gbnf_runs.py)
        return lark_of_gbnf(grammar, budget)
    except GbnfError as error:
        raise refused(f"the grammar is no GBNF: {error}") from None


def json_rule(params: StructuredOutputsParams, budget: Budget) -> str:
    """The body of a rule for JSON that fits params' schema. Raises InvalidParamsError."""
    grammar = json.loads(grammar_of(params, budget=budget))
    return f"%json {json.dumps(grammar['grammars'][0]['json_schema'])}"


def _strict(params: StructuredOutputsParams, budget: Budget) -> dict[str, object]:
    """The schema as it can be enforced. Raises InvalidParamsError with the places of what cannot; lenient logs them instead."""
    schema = cast("dict[str, object]", params.json)
    if "x-guidance" in schema:
        raise refused("x-guidance sets options of the grammar library: give whitespace= and lenient=")
    strict, problems = strict_schema(schema, budget, open_objects=params.open_objects)
    if problems and not params.lenient:
        listed = ", ".join(map(str, problems[:8])) + f" and {len(problems) - 8} more" * (len(problems) > 8)
        raise refused(f"these keywords of the JSON schema cannot be enforced: {listed} (lenient=True leaves them out of account)")
    for problem in problems:
        log.warning("structured_outputs: left out of account: %s", problem)
    return strict


def _explain(params: StructuredOutputsParams, message: str) -> str:
    return f"{params.kind} cannot be enforced: {' '.join(message.split())[:400]}"
