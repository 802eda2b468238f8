"""Structured output: grammars of llguidance as constraints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llmi.params.constraint import Constraint
from llmi.params.other_libraries import is_character_parser
from llmi.params.structured import StructuredOutputsParams
from llmi.structured.compiling import Deadline
from llmi.structured.thinking import prelude_of
from llmi.text.tokenizer import Tokenizer

#: Seconds that a request that arrives online waits for its grammar. Limits of bytes and of the library's work end a compilation earlier
#: on a machine that is not overloaded, so what is refused is the same everywhere.
DEADLINE_S = 2.0


def constraint_of(
    value: object, tokenizer: Tokenizer, prompt: Callable[[], str | None], *, deadline: Deadline | None = None
) -> Constraint[Any] | None:
    """The automaton of `structured_outputs` in its plain form: a Constraint as it is, None as None, StructuredOutputsParams compiled.

    A parser of lm-format-enforcer is walked by its own library.

    prompt: gives the text before the output, special tokens included; called where the constraint starts after thinking.
    deadline: of the wait for a compilation; None waits for its end.
    Raises InvalidParamsError for a grammar that cannot be enforced, MissingExtraError without the library, GrammarTimeoutError.
    """
    if is_character_parser(value):
        from llmi.structured.character_parser import CharacterParserConstraint  # noqa: PLC0415 (loads grammars)

        return CharacterParserConstraint(value, tokenizer)
    if not isinstance(value, StructuredOutputsParams):
        return cast("Constraint[Any] | None", value)
    from llmi.structured.constraint import grammar_constraint  # noqa: PLC0415 (loads grammars)

    prelude = prelude_of(tokenizer, prompt()) if value.after_thinking else ""
    return grammar_constraint(value, tokenizer, prelude, deadline=deadline)
