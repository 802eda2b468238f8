"""structured_outputs takes the objects of outlines and of lm-format-enforcer, made by the real packages."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import BaseModel

import llmi
from llmi import LLM, InvalidParamsError, StructuredOutputsParams

pytest.importorskip("outlines", reason="the extra `outlines` brings outlines")
pytest.importorskip("lmformatenforcer", reason="the extra `lm-format-enforcer` brings lm-format-enforcer")

import outlines.types as terms
from lmformatenforcer import CharacterLevelParser, JsonSchemaParser, RegexParser, SequenceParser, StringParser, UnionParser
from outlines.types.dsl import Term, either

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 9}, "dog": {"type": "boolean"}},
    "required": ["age", "dog"],
    "additionalProperties": False,
}


DOG = {"type": "object", "properties": {"dog": {"type": "boolean"}}, "required": ["dog"]}


class Person(BaseModel):
    age: int


TERMS: dict[str, tuple[Term, StructuredOutputsParams]] = {
    "regex": (terms.Regex("[0-9]{3}"), StructuredOutputsParams(regex="([0-9]{3})")),
    "combined": (either("cat", "dog") + terms.Regex("[0-9]"), StructuredOutputsParams(regex="(cat|dog)([0-9])")),
    "schema": (terms.JsonSchema(SCHEMA), StructuredOutputsParams(json=SCHEMA)),
    "model": (terms.JsonSchema(Person), StructuredOutputsParams(json=Person)),
    "grammar": (terms.CFG('start: "a" "b"'), StructuredOutputsParams(grammar='start: "a" "b"')),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_of_outlines_is_its_own_parameter(tiny: LLM, name: str) -> None:
    term, same = TERMS[name]
    assert StructuredOutputsParams.of(term) == same
    asked = {"max_tokens": 40, "seed": 5, "temperature": 1.5}
    out = tiny.generate("ab", structured_outputs=term, **asked)[0]
    assert out == tiny.generate("ab", structured_outputs=same, **asked)[0] and out.outputs[0].token_ids
    assert llmi.replay(out.receipt(), tiny), "a declared grammar is in the receipt"


def test_what_a_term_cannot_say_is_refused() -> None:
    with pytest.raises(InvalidParamsError, match=r"whitespace_pattern = '\[ \]\*' .* whitespace="):
        StructuredOutputsParams.of(terms.JsonSchema(SCHEMA, whitespace_pattern="[ ]*"))
    assert StructuredOutputsParams.of(terms.JsonSchema(SCHEMA), whitespace="one").whitespace == "one"
    for wrong in (Person, "[0-9]", re.compile("a"), None):
        with pytest.raises(InvalidParamsError, match="a term of outlines"):
            StructuredOutputsParams.of(wrong)


def word(texts: list[str]) -> CharacterLevelParser:
    return UnionParser([StringParser(text) for text in texts])


PARSERS = {
    "regex": (lambda: RegexParser("(a|b)[0-9]{2,4}"), "(a|b)[0-9]{2,4}"),
    "schema": (lambda: JsonSchemaParser(DOG), r"\s*\{\s*\"dog\"\s*:\s*(true|false)\s*\}\s*"),
    "sequence": (lambda: SequenceParser([word(["yes", "no"]), RegexParser("!+")]), "(yes|no)!+"),
    "characters of several bytes": (lambda: word(["é你", "é", "ß", "日本", "日"]), "é你?|ß|日本?"),
}


@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_of_lm_format_enforcer_masks_the_output(tiny: LLM, name: str) -> None:
    make, pattern = PARSERS[name]
    params = {"max_tokens": 250, "seed": 3, "temperature": 1.2, "n": 4}
    outputs = tiny.generate("ab", structured_outputs=make(), **params)[0].outputs
    for output in outputs:
        assert output.complete == (output.finish_reason == "stop")
        if output.complete:
            assert re.fullmatch(pattern, output.text), output.text
    assert any(output.complete for output in outputs)
    drafted = tiny.generate("ab", structured_outputs=make(), speculative_config=llmi.PromptLookup(), **params)[0].outputs
    assert [output.token_ids for output in drafted] == [output.token_ids for output in outputs]


def test_the_masks_are_the_automatons_own(tiny: LLM) -> None:
    """By its characters: each token that the mask allows can be read, and no other one of whole characters."""
    parser = RegexParser("(a|ab|b)[ab]{0,2}")
    trace = tiny.generate("ab", structured_outputs=parser, max_tokens=8, seed=1, trace=True)[0].outputs[0].trace
    assert trace is not None
    readable = {
        token
        for token, text in enumerate(tiny.tokenizer.vocab_bytes)
        if text and token not in tiny.tokenizer.special_tokens and re.fullmatch(rb"(a|ab|b)[ab]{0,2}", text)
    }
    first = min(trace.allowed_counts())
    assert trace.allowed_counts()[first] == len(readable) > 1


def test_a_parser_keeps_its_own_configuration(tiny: LLM) -> None:
    from lmformatenforcer import CharacterLevelParserConfig

    parser = JsonSchemaParser(SCHEMA, CharacterLevelParserConfig(max_consecutive_whitespaces=0))
    output = tiny.generate("ab", structured_outputs=parser, max_tokens=80, seed=9, temperature=2.0)[0].outputs[0]
    assert not any(character.isspace() for character in output.text) and (not output.complete or json.loads(output.text))
