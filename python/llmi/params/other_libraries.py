"""Objects of outlines and of lm-format-enforcer, as `structured_outputs` takes them. Neither is imported here: whoever has such an object
has done it."""

from __future__ import annotations

import sys
from typing import Any

from llmi.errors import InvalidParamsError


def fields_of_outlines(value: object) -> dict[str, Any] | None:
    """The fields of StructuredOutputsParams that say the same as a term of outlines; None for any other object.

    Raises InvalidParamsError for what they cannot say.
    """
    dsl = sys.modules.get("outlines.types.dsl")
    if dsl is None or not isinstance(value, dsl.Term):
        return None
    if isinstance(value, dsl.CFG):
        return {"grammar": value.definition}
    if not isinstance(value, dsl.JsonSchema):
        return {"regex": dsl.to_regex(value)}
    if value.whitespace_pattern is not None:
        raise InvalidParamsError(
            f"structured_outputs: whitespace_pattern = {value.whitespace_pattern!r} of outlines' JsonSchema is not offered: leave it out,"
            " and give StructuredOutputsParams.of(schema, whitespace='compact'), 'one' or 'any'",
            "structured_outputs",
        )
    return {"json": value.schema}


def is_character_parser(value: object) -> bool:
    """Whether it is a parser of lm-format-enforcer."""
    module = sys.modules.get("lmformatenforcer.characterlevelparser")
    return module is not None and isinstance(value, module.CharacterLevelParser)
