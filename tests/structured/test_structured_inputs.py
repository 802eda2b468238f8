"""Hard and hostile inputs of structured output: each is refused before anything runs, by the argument's name, or ends alone."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llmi
from llmi import LLM, AsyncLLM, ConstraintError, InvalidParamsError, SamplingParams


def nested(depth: int, around: Callable[[Any], Any], inner: Any) -> Any:
    for _ in range(depth):
        inner = around(inner)
    return inner


RECURSIVE = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
#: What is asked, and a part of the message. Limits are of bytes and of the library's work, so that they are the same on every machine.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "300 nested objects": (
        {"json": nested(300, lambda x: {"properties": {"a": x}, "required": ["a"]}, {})},
        "nested too deep|cannot be enforced|no JSON",
    ),
    "5,000 nested arrays": ({"json": '{"items":' * 5000 + "{}" + "}" * 5000}, "no JSON|nested too deep"),
    "parentheses": ({"regex": "(" * 30000 + "a" + ")" * 30000}, "cannot be enforced"),
    "a bound of 400 digits": ({"json": {"type": "integer", "minimum": 10**400}}, "'minimum'"),
    "an infinite bound": ({"json": '{"maximum": Infinity}'}, "Infinity is not JSON"),
    "a bound that overflows": ({"json": '{"maximum": 1e999}'}, "1e999 is over the largest float64"),
    "multiples of zero": ({"json": {"multipleOf": 0}}, "multiple of"),
    "no integer between": ({"json": {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}}, "nsatisfiable"),
    "contradicting bounds": ({"json": {"type": "number", "minimum": 2, "maximum": 1}}, "nsatisfiable"),
    "contradicting items": ({"json": {"type": "array", "minItems": 2, "maxItems": 1}}, "nsatisfiable"),
    "a required name that is false": ({"json": {"type": "object", "required": ["a"], "properties": {"a": False}}}, "nsatisfiable"),
    "references in a circle": ({"json": RECURSIVE}, "no output matches|cannot be enforced"),
    "a reference to nothing": ({"json": {"$ref": "#/$defs/nothing"}}, "cannot be enforced"),
    "a reference to a file": ({"json": {"$ref": "file:///etc/passwd#/a"}}, "cannot be enforced"),
    "a type that is none": ({"json": {"type": "txt"}}, "Invalid type"),
    "a pattern that is none": ({"json": {"pattern": "["}}, "'pattern'"),
    "a pattern without texts": ({"json": {"type": "string", "pattern": "^a$", "const": "b"}}, "nsatisfiable"),
    "a key twice, deep": ({"json": '{"properties": {"a": {"type": "null", "type": "string"}}}'}, "the key 'type' comes twice"),
    "a half character": ({"json": {"const": "\ud800"}}, "half a character"),
    "a name of 1 MB": ({"json": {"properties": {"x" * (1 << 20): {}}}}, "at most 1,048,576"),
    "200,000 choices": ({"choice": [f"{i:06}" for i in range(200_000)]}, "more than 1,048,576 characters"),
    "a choice twice among many": ({"choice": [*map(str, range(50_000)), "49999"]}, "holds '49999' twice"),
    "an empty choice alone": ({"choice": [7]}, "must be a text"),
    "100,000 rules": ({"grammar": 'start: "a"\n' + "".join(f'r{i}: "x"\n' for i in range(100_000))}, "bytes, at most|cannot be enforced"),
    "left recursion without an end": ({"grammar": 'start: start "a"'}, "no output matches"),
    "a rule of nothing but itself": ({"grammar": "start: a\na: b\nb: a"}, "no output matches"),
    "an undefined rule": ({"grammar": "start: foo"}, "unknown name"),
    "no grammar": ({"grammar": "\\"}, "cannot be enforced"),
    "an import": ({"grammar": "%import other.X\nstart: X"}, "cannot be enforced"),
    "a trigger without a structure": (
        {"structural_tag": {"type": "structural_tag", "triggers": ["<"], "structures": []}},
        "structures is empty",
    ),
    "a schema in a tag": (
        {
            "structural_tag": {
                "type": "structural_tag",
                "triggers": ["<"],
                "structures": [{"begin": "<a>", "schema": {"contains": {}, "uniqueItems": True}, "end": ""}],
            }
        },
        r"structures\[0\].schema: .*'contains'",
    ),
    "an empty language": ({"regex": r"[^\s\S]+"}, "no output matches"),
    "a word boundary": ({"json": {"pattern": r"\bx"}}, "word boundaries"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_runs(tiny: LLM, name: str) -> None:
    asked, message = REFUSED[name]
    good = SamplingParams(seed=1, max_tokens=6, structured_outputs={"regex": "[a-c]{2}"})
    try:
        params = SamplingParams(structured_outputs=asked)
    except InvalidParamsError as error:
        found: object = error
    else:
        outs = tiny.generate([[1], [2]], [good, params], on_error="return")
        assert re.fullmatch("[a-c]{2}", outs[0].outputs[0].text)
        found = outs[1].error
        assert not any(completion.token_ids for completion in outs[1].outputs)
    assert isinstance(found, InvalidParamsError) and re.search(message, str(found)), found
    assert str(found.parameter).startswith("structured_outputs") and len(str(found)) < 1200


#: Large and odd, and taken.
TAKEN: dict[str, tuple[dict[str, Any], str]] = {
    "an automaton of many states": ({"regex": ".*a.{400}"}, r"[\s\S]*"),
    "counts of counts": ({"regex": "(a{0,1000}b{0,1000}){0,100}"}, "[ab]*"),
    "20,000 choices": ({"choice": [f"{i:05}" for i in range(20_000)]}, "[01][0-9]{4}"),
    "an empty choice": ({"choice": ["", "ab"]}, "(ab)?"),
    "a choice with DEL": ({"choice": ["a\x7fb"]}, "a\x7fb"),
    "one that begins others": ({"choice": ["a", "ab", "abc"]}, "a(b(c)?)?"),
    "ambiguous rules": ({"grammar": 'start: a | b\na: "x" a | "x"\nb: "x"+'}, "x+"),
    "left recursion": ({"grammar": 'start: start "a" | "b"'}, "ba*"),
    "true": ({"json": True}, r"[\s\S]*"),
    "nothing said": ({"json": {}}, r"[\s\S]*"),
    "a name with NUL": (
        {"json": {"type": "object", "properties": {"a\0": {"const": 1}}, "required": ["a\0"], "additionalProperties": False}},
        r'\{"a\\u0000":1\}',
    ),
    "one number": ({"json": {"type": "number", "minimum": 0.5, "maximum": 0.5}}, "0.50*"),
    "unions in unions": (
        {"json": nested(8, lambda x: {"anyOf": [{"type": "array", "items": x, "maxItems": 1}, {"const": 7}]}, {"const": 3})},
        r"\[*[37]?\]*",
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_large_and_odd_languages(tiny: LLM, name: str) -> None:
    asked, pattern = TAKEN[name]
    for completion in tiny.generate([1], n=3, seed=1, max_tokens=24, structured_outputs=asked)[0].outputs:
        assert completion.complete or completion.finish_reason == "length"
        assert not completion.complete or re.fullmatch(pattern, completion.text), completion.text


def test_a_request_that_cannot_go_on_ends_alone(tiny: LLM) -> None:
    """The end is banned by a bias, or wanted later than the language has it: that request fails, and its neighbour does not notice."""
    good = SamplingParams(seed=1, max_tokens=12, structured_outputs={"regex": "[a-c]{6}"})
    alone = tiny.generate([1], good)[0].outputs[0].token_ids
    end = next(iter(tiny.tokenizer.eos_token_ids))
    for fields in ({"logit_bias": {end: -np.inf}}, {"min_tokens": 9}):
        bad = SamplingParams(seed=2, max_tokens=12, structured_outputs={"choice": ["ab"]}, **fields)
        outs = tiny.generate([[1], [1]], [good, bad], on_error="return")
        assert outs[0].outputs[0].token_ids == alone
        (name,) = fields
        assert isinstance(outs[1].error, ConstraintError) and re.search(f"structured_outputs.*{name}", str(outs[1].error))
        assert outs[1].outputs[0].text == "ab"


def test_a_sampler_keeps_to_the_mask(tiny: LLM) -> None:
    """A token that the mask forbids, the end of the text among them, ends the request alone, before it is part of the output."""
    end = next(iter(tiny.tokenizer.eos_token_ids))
    letter = {word: token for token, word in enumerate(tiny.tokenizer.vocab_bytes)}
    good = SamplingParams(seed=1, max_tokens=12, structured_outputs={"regex": "[a-c]{6}"}, sampler=lambda context, law: int(law.argmax()))
    alone = tiny.generate([1], good)[0].outputs[0].token_ids
    for tokens, text in (([end], ""), ([letter[b"a"], end], "a"), ([letter[b"E"]], ""), ([letter[b"a"], letter[b"E"]], "a")):
        wanted = iter(tokens)
        bad = SamplingParams(
            max_tokens=12, structured_outputs={"regex": "[a-z]{3}"}, sampler=lambda context, law, wanted=wanted: next(wanted)
        )
        outs = tiny.generate([[1], [1]], [good, bad], on_error="return")
        assert outs[0].outputs[0].token_ids == alone
        assert isinstance(outs[1].error, ConstraintError)
        assert re.search(f"the sampler chose token id {tokens[-1]}, which structured_outputs does not allow", str(outs[1].error))
        assert outs[1].outputs[0].text == text and outs[1].outputs[0].token_ids == tokens[:-1]


class Always(llmi.Verification):
    """Accepts each draft."""

    def accept_probability(self, token_id: int, target_probs: Any, draft_probs: Any) -> float:
        return 1.0


class Judge(llmi.Verification):
    """Accepts each draft as a whole."""

    def verify(self, context: Any) -> tuple[list[int], int]:
        return list(range(len(context.draft))), context.target_token(len(context.draft))


@pytest.mark.parametrize("verification", [Always(), Judge()])
def test_a_verification_keeps_to_the_mask(tiny: LLM, verification: llmi.Verification) -> None:
    letter = {word: token for token, word in enumerate(tiny.tokenizer.vocab_bytes)}

    class Wrong(llmi.Drafter):
        def propose(self, context: llmi.DraftContext) -> Any:
            return [letter[b"E"]]

    config = llmi.SpeculativeConfig(Wrong(), 1, verification)
    params = SamplingParams(max_tokens=12, structured_outputs={"regex": "[a-z]{3}"})
    out = tiny.generate([[1]], params, speculative_config=config, on_error="return")[0]
    assert isinstance(out.error, ConstraintError) and letter[b"E"] not in out.outputs[0].token_ids
    assert f"the verification chose token id {letter[b'E']}, which structured_outputs does not allow" in str(out.error)


def test_length_cuts_and_nothing_is_repaired(tiny: LLM) -> None:
    out = tiny.generate([1], seed=3, max_tokens=5, structured_outputs={"json": {"type": "string", "minLength": 40}})[0].outputs[0]
    assert out.finish_reason == "length" and not out.complete and out.text.startswith('"') and not out.text.endswith('"')


def test_two_vocabularies(tiny: LLM, smollm: LLM) -> None:
    asked = {"json": {"type": "array", "items": {"enum": ["alpha", 1, None]}, "minItems": 2, "maxItems": 2}}
    for llm in (tiny, smollm, tiny):
        out = llm.generate([[1]], seed=2, max_tokens=40, structured_outputs=asked)[0].outputs[0]
        assert len(json.loads(out.text)) == 2


def test_a_reader_that_leaves(tiny_path: Callable[..., Path]) -> None:
    """Cancelled while its grammar is being compiled: the others go on, and the next request finds it compiled."""
    asked = {"choice": [f"{i:05}" for i in range(5000)]}

    async def main() -> str:
        async with AsyncLLM(tiny_path("llama")) as server:

            async def text(params: SamplingParams) -> str:
                return [output.outputs[0].text async for output in server.generate([1], params)][-1]

            left = asyncio.create_task(text(SamplingParams(max_tokens=9, structured_outputs=asked)))
            await asyncio.sleep(0)
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
            return await text(SamplingParams(seed=1, max_tokens=9, structured_outputs=asked))

    assert re.fullmatch("0[0-4][0-9]{3}", asyncio.run(main()))
