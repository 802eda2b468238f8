"""Structured output: grammars of llguidance as constraints."""

from __future__ import annotations

from typing import Any, cast

from llmi.params.constraint import Constraint
from llmi.params.structured import StructuredOutputsParams
from llmi.text.tokenizer import Tokenizer


def constraint_of(value: object, tokenizer: Tokenizer) -> Constraint[Any] | None:
    """The automaton of `structured_outputs` in its plain form: a Constraint as it is, StructuredOutputsParams compiled, None as None.

    Raises InvalidParamsError for a grammar that cannot be enforced, MissingExtraError without the library.
    """
    if not isinstance(value, StructuredOutputsParams):
        return cast("Constraint[Any] | None", value)
    from llmi.structured.constraint import grammar_constraint

    return grammar_constraint(value, tokenizer)
