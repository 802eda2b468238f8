"""Structured output: what comes out keeps to what was asked for, and nothing else changes."""

from __future__ import annotations

import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import llmi
from llmi import LLM, InvalidParamsError, PromptLookup, SamplingParams, StructuredOutputsParams
from llmi.structured import library
from llmi.structured.constraint import GrammarConstraint
from llmi.structured.grammars import compiled
from llmi.structured.library import Vocabulary
from schema_suite import accepts, byte_vocabulary

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"enum": ["a", "b"]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 500}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"const": None}, {"type": "string", "pattern": "^[a-f]{2,5}$"}]},
    {"type": "object", "properties": {"at": {"type": "string", "format": "date"}}, "required": ["at"], "additionalProperties": False},
    {"$defs": {"leaf": {"type": "boolean"}}, "type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 4},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
@pytest.mark.parametrize("whitespace", ["compact", "one", "any"])
def test_json_fits_its_schema(tiny: LLM, schema: dict[str, Any], whitespace: str) -> None:
    asked = {"json": schema, "whitespace": whitespace}
    outs = tiny.generate([[1], [2, 3]], n=4, seed=5, temperature=1.0, max_tokens=200, structured_outputs=asked)
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    ended = [c for out in outs for c in out.outputs if c.finish_reason == "stop"]
    assert len(ended) >= 4, "too few came to their end to have tested anything"
    for completion in ended:
        value = json.loads(completion.text)
        checker.validate(value)
        assert completion.complete
        if whitespace == "compact":
            assert completion.text == json.dumps(value, separators=(",", ":"), ensure_ascii=False) or "\\" in completion.text
        if whitespace == "one":
            assert completion.text == json.dumps(value, ensure_ascii=False) or "\\" in completion.text
    for completion in (c for out in outs for c in out.outputs if c.finish_reason == "length"):
        assert not completion.complete


@pytest.mark.parametrize(
    "asked, pattern",
    [
        ({"regex": "[0-9]{3}(-[a-c]+)?!"}, "[0-9]{3}(-[a-c]+)?!"),
        ({"choice": ["yes", "no", "yesterday", "näh"]}, "yes|no|yesterday|näh"),
        ({"grammar": 'start: "a" /[b-d]{1,9}/ "!"'}, "a[b-d]{1,9}!"),
        ({"grammar": 'root ::= "x" [0-9]+ ("y" | "z")'}, "x[0-9]+[yz]"),
    ],
)
def test_texts_match(tiny: LLM, asked: dict[str, Any], pattern: str) -> None:
    for completion in tiny.generate([1], n=8, seed=1, max_tokens=120, structured_outputs=asked)[0].outputs:
        assert completion.finish_reason == "stop" or not completion.complete
        if completion.complete:
            assert re.fullmatch(pattern, completion.text), completion.text


def test_a_choice_that_begins_another(tiny: LLM) -> None:
    texts = {c.text for c in tiny.generate([1], n=64, seed=3, max_tokens=9, structured_outputs={"choice": ["ab", "abc"]})[0].outputs}
    assert texts == {"ab", "abc"}


def test_structural_tags(tiny: LLM) -> None:
    tag = {"type": "structural_tag", "triggers": ["<f"], "structures": [{"begin": "<f=a>", "schema": {"const": 7}, "end": "</f>"}]}
    bias = {b"<"[0]: 8.0}
    ids = {word: token for token, word in enumerate(tiny.tokenizer.vocab_bytes)}
    params = SamplingParams(
        n=8, seed=2, max_tokens=60, structured_outputs={"structural_tag": tag}, logit_bias={ids[b"<"]: bias[60], ids[b"f"]: 4.0}
    )
    texts = [c.text for c in tiny.generate([1], params)[0].outputs]
    begun = [text[text.index("<f") :] for text in texts if "<f" in text]
    assert begun, "no text had the trigger"
    for text in begun:
        assert text.startswith("<f=a>7</f>") or "<f=a>7</f>".startswith(text)


def structural(triggers: Any, begin: Any, schema: Any = 7, end: Any = "!") -> dict[str, Any]:
    schema = {"type": "integer", "maximum": 99, "minimum": 0} if schema == 7 else schema
    return {"type": "structural_tag", "structures": [{"begin": begin, "schema": schema, "end": end}], "triggers": triggers}


@pytest.mark.parametrize(
    "trigger, begin", [("<f", "<f=a>"), ("<tool_call>", "<tool_call>"), ("<[5]>", "<[5]>"), ("\x7f", "\x7f"), ("::=", "::=x")]
)
def test_triggers_that_are_text(trigger: str, begin: str) -> None:
    """Text in angle brackets is a special token only if the vocabulary has it."""
    matcher = compiled(StructuredOutputsParams(structural_tag=structural([trigger], begin)), byte_vocabulary())
    for text in ("", "free", f"{begin}7!", f"a{begin}1!{begin}22! b"):
        assert accepts(matcher, text), text
    for text in (trigger, f"{begin}x!", f"{begin}7", f"{begin}100!", f"a{begin}"):
        assert not accepts(matcher, text), text


def test_a_trigger_that_is_a_special_token() -> None:
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), b""], {256: "<tool_call>"}, [])
    matcher = compiled(StructuredOutputsParams(structural_tag=structural(["<tool_call>"], "<tool_call>")), vocabulary)
    for tokens, is_text in (([*b"a", 256, *b"7!"], True), ([256, *b"x!"], False), ([256], False), ([*b"<tool_call>x"], True)):
        place = matcher.deep_copy()
        assert (place.consume_tokens(tokens) and place.is_accepting()) == is_text


def test_a_real_model_with_speculation_and_receipts(smollm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=48, logprobs=2, structured_outputs={"json": PERSON})
    plain = smollm.generate(["A person:", "People: "], params)
    assert smollm.generate(["A person:", "People: "], params, speculative_config=PromptLookup()) == plain
    assert all(c.complete for out in plain for c in out.outputs)
    receipt = plain[0].receipt()
    assert receipt.fields["grammar_engine"] == f"llguidance {importlib.metadata.version('llguidance')}"
    assert llmi.replay(receipt, smollm)
    receipt.fields["grammar_engine"] = "llguidance 0.1"
    with pytest.raises(InvalidParamsError, match=r"llguidance 0\.1, here it is llguidance"):
        llmi.replay(receipt, smollm)


def test_raw_and_processed_logprobs(tiny: LLM) -> None:
    free = tiny.generate([1, 2], seed=1, max_tokens=1, logprobs=-1)[0].outputs[0].logprobs
    kept = tiny.generate([1, 2], seed=1, max_tokens=1, logprobs=-1, structured_outputs={"regex": "[a-c]z"})[0].outputs[0].logprobs
    assert free is not None and kept is not None
    assert {t: e.logprob for t, e in free[0].items()} == {t: e.logprob for t, e in kept[0].items()}
    allowed = {t for t, e in kept[0].items() if np.isfinite(e.processed_logprob)}
    assert {tiny.tokenizer.vocab_bytes[t] for t in allowed} >= {b"a", b"b", b"c"}
    assert all(tiny.tokenizer.vocab_bytes[t][:1] in (b"a", b"b", b"c") for t in allowed)


def test_the_mask_outlives_processors_and_stop_strings_cut(tiny: LLM) -> None:
    def everything(context: Any, logits: Any) -> None:
        logits[:] = 0.0

    out = tiny.generate([1], n=4, seed=1, max_tokens=40, logits_processors=[everything], structured_outputs={"regex": "[ab]{3}"})[0]
    assert all(re.fullmatch("[ab]{3}", c.text) for c in out.outputs)
    cut = tiny.generate([1], seed=1, max_tokens=40, stop=["b"], structured_outputs={"regex": "aab[ab]{3}"})[0].outputs[0]
    assert (cut.text, cut.finish_reason, cut.stop_reason, cut.complete) == ("aa", "stop", "b", False)


def test_sequences_of_the_lab(tiny: LLM) -> None:
    params = SamplingParams(seed=4, structured_outputs={"regex": "[0-9]{2}x"})
    with tiny.sequence([1]) as sequence, sequence.fork() as other:
        for seq in (sequence, other):
            for _ in range(3):
                seq.extend([seq.sample(params)])
            assert re.fullmatch("[0-9]{2}x", seq.output_text)


def test_a_sequence_that_is_constrained_rolled_back_and_forked(tiny: LLM) -> None:
    def drawn(seq: llmi.TokenSequence, count: int) -> str:
        before = len(seq.output_text)
        for _ in range(count):
            seq.extend([seq.sample(SamplingParams(seed=4))])
        return seq.output_text[before:]

    ids = {word: token for token, word in enumerate(tiny.tokenizer.vocab_bytes)}
    with tiny.sequence([1]) as sequence:
        sequence.extend([ids[b"h"]])
        sequence.constrain({"regex": "[0-9]x[a-c]{3}"})
        assert re.fullmatch("[0-9]x[a-c]{2}", drawn(sequence, 4))
        with sequence.fork() as fork:
            assert re.fullmatch("[a-c]", drawn(fork, 1)) and fork.sample() in tiny.tokenizer.eos_token_ids
        sequence.rollback(3)
        assert re.fullmatch("x[a-c]{3}", drawn(sequence, 4))
        with pytest.raises(llmi.UnsupportedCombinationError, match="constraint of its own"):
            sequence.probs(SamplingParams(structured_outputs={"regex": "a"}))
        sequence.constrain(None)
        assert np.count_nonzero(sequence.probs(SamplingParams())) > 100


def test_a_constrained_sequence_is_no_prompt_of_a_request(tiny: LLM) -> None:
    """A request reads its tokens alone: the constraint would be lost."""
    with tiny.sequence([1]) as sequence:
        sequence.constrain({"regex": "[0-9]x"})
        for prompt in (sequence, sequence.fork()):
            with pytest.raises(llmi.UnsupportedCombinationError, match="a request would not: give structured_outputs="):
                tiny.generate([prompt], max_tokens=2)
        kept, refused = tiny.generate([[1], sequence], max_tokens=2, on_error="return")
        assert kept.error is None and isinstance(refused.error, llmi.UnsupportedCombinationError)
        sequence.constrain(None)
        assert (
            tiny.generate([sequence], max_tokens=2, temperature=0)[0].token_ids
            == tiny.generate([1], max_tokens=2, temperature=0)[0].token_ids
        )


def test_states_are_values(tiny: LLM) -> None:
    """Two states that follow one, in any order, and states of trials: each has read its own tokens."""
    constraint = GrammarConstraint(StructuredOutputsParams(regex="(a[0-4]|b[5-9])+"), library.vocabulary_of(tiny.tokenizer))
    ids = {word: token for token, word in enumerate(tiny.tokenizer.vocab_bytes)}
    first = constraint.initial_state()
    a, b = constraint.advance(first, ids[b"a"]), constraint.advance(first, ids[b"b"])
    for state, low in ((b, 5), (a, 0), (b, 5)):
        digits = {tiny.tokenizer.vocab_bytes[t] for t in np.flatnonzero(constraint.allowed(state))}
        assert {d for d in digits if len(d) == 1} == {str(low + i).encode() for i in range(5)}
        assert constraint.is_final(constraint.advance(state, ids[str(low).encode()]))
    with pytest.raises(llmi.ConstraintError, match="cannot go on after token"):
        constraint.advance(a, ids[b"z"])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"json": {"properties": {"a/b": {"type": "array", "uniqueItems": True}}}}, r"/properties/a~1b: 'uniqueItems' \(lenient"),
    ({"json": {"not": {}}}, "/: 'not'"),
    ({"json": False}, "'not'"),
    ({"json": {"$ref": "#"}}, "no output matches the json"),
    ({"json": {"$ref": "http://example.org/a"}}, "cannot be enforced: Resource"),
    ({"json": {"$ref": "file:///etc/passwd"}}, "cannot be enforced"),
    ({"json": {"enum": []}}, "Unsatisfiable"),
    ({"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "Unsatisfiable"),
    ({"json": {"type": "string", "format": "zzz"}}, "unknown format 'zzz'"),
    ({"json": '{"a": 1, "a": 2}'}, "the key 'a' comes twice"),
    ({"json": '{"a": NaN}'}, "NaN is not JSON"),
    ({"json": {"x-guidance": {}}}, "x-guidance"),
    ({"json": "[1]"}, "must be a JSON object"),
    ({"json": "{" * 100_000}, "is no JSON"),
    ({"json": {"description": "x" * (1 << 20)}}, "at most 1,048,576"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"regex": r"(a)\1"}, "backreferences"),
    ({"regex": r"[^\s\S]"}, "no output matches the regex"),
    ({"regex": "\ud800"}, "half a character"),
    ({"regex": "a\0"}, "NUL"),
    ({"regex": 7}, "must be a text"),
    ({"choice": []}, "at least one text"),
    ({"choice": "yes"}, "at least one text"),
    ({"choice": ["a", "a"]}, "holds 'a' twice"),
    ({"grammar": "start: foo"}, "unknown name"),
    ({"grammar": 'start: start "a"'}, "no output matches the grammar"),
    ({"grammar": 'root ::= "a" undefined-rule'}, "structured_outputs"),
    ({"structural_tag": {"type": "structural_tag"}}, "has the fields"),
    ({"structural_tag": structural([""], "<f")}, r"structural_tag\.triggers\[0\] must be a text of at least one character"),
    ({"structural_tag": structural(["<f", 7], "<f")}, r"structural_tag\.triggers\[1\] must be a text"),
    ({"structural_tag": structural(7, "<f")}, r"structural_tag\.triggers must be a list of texts, not 7"),
    ({"structural_tag": structural("<f", "<f")}, r"structural_tag\.triggers must be a list of texts"),
    ({"structural_tag": structural(["<f", "<g"], "<f")}, r"structural_tag\.triggers\[1\] = '<g' begins no structure"),
    ({"structural_tag": structural(["<f", "<"], "<f")}, r"structures\[0\]\.begin starts with 2 of the triggers"),
    ({"structural_tag": structural(["<f"], 7)}, r"structures\[0\]\.begin must be a text, not 7"),
    ({"structural_tag": structural(["<f"], "<f", end=None)}, r"structures\[0\]\.end must be a text"),
    ({"structural_tag": structural(["<f"], "<f", schema=None)}, r"structures\[0\]\.schema must be a JSON schema"),
    ({"structural_tag": structural(["<f"], "<f", schema={"contains": {}})}, r"structures\[0\]\.schema: .*'contains'"),
    ({"structural_tag": {**structural(["<f"], "<f"), "structures": 7}}, r"structural_tag\.structures must be a list"),
    ({"json": {}, "regex": "a"}, "exactly one of .* not json and regex"),
    ({}, "exactly one of .* not none"),
    ({"regex": "a", "whitespace": "any"}, "whitespace is for json"),
    ({"regex": "a", "lenient": True}, "lenient is for json"),
    ({"json": {}, "whitespace_pattern": " "}, "whitespace_pattern is not offered"),
    ({"json": {}, "grmar": "x"}, "no field 'grmar'"),
]


@pytest.mark.parametrize("asked, message", REFUSED, ids=range(len(REFUSED)))
def test_refusals_name_the_parameter(tiny: LLM, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParamsError, match=message) as caught:
        tiny.generate([1], structured_outputs=asked, max_tokens=2)
    assert caught.value.parameter == "structured_outputs" or str(caught.value.parameter).startswith("structured_outputs.")


def test_one_bad_grammar_ends_one_prompt(tiny: LLM) -> None:
    good, bad = SamplingParams(max_tokens=3, structured_outputs={"regex": "a"}), SamplingParams(structured_outputs={"regex": "(?=a)"})
    outs = tiny.generate([[1], [2]], [good, bad], on_error="return")
    assert outs[0].outputs[0].text == "a" and isinstance(outs[1].error, InvalidParamsError)


def test_lenient_says_what_it_leaves_out(tiny: LLM, caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "array", "items": {"enum": [1]}, "maxItems": 2, "uniqueItems": True}
    out = tiny.generate([1], seed=1, max_tokens=20, structured_outputs={"json": schema, "lenient": True})[0].outputs[0]
    assert out.complete and "uniqueItems" in caplog.text


def test_other_ends_of_text(tiny: LLM) -> None:
    """A request's own end-of-text ids end its texts, and the model's are then not allowed."""
    out = tiny.generate([1], n=4, seed=1, max_tokens=9, eos_token_id=5, structured_outputs={"regex": "[ab]{2}"})[0]
    assert all(re.fullmatch("[ab]{2}", c.text) and c.token_ids[-1] == 5 for c in out.outputs)


def test_a_vocabulary_without_an_end_and_forced_bytes() -> None:
    vocabulary = Vocabulary([b"a", b"b", b"ab", b"\xff\xfe", b""], {4: "<x>"}, [])
    assert vocabulary("abab") == [2, 2] and vocabulary(b"a\xff\xfe") == [0, 3] and vocabulary("az") == [0]
    constraint = GrammarConstraint(StructuredOutputsParams(regex="ab"), vocabulary)
    assert np.flatnonzero(constraint.allowed(constraint.initial_state())).tolist() == [2]


def test_another_library_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "version_text", lambda: "9.0.0")
    with pytest.raises(llmi.EngineError, match=r"llguidance 9\.0\.0 is outside the tested versions"):
        library.load.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(Vocabulary, "mask", lambda self, matcher: np.zeros(self.num_tokens, np.bool_))
    with pytest.raises(llmi.EngineError, match="gives another answer"):
        library.load.__wrapped__()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(llmi.MissingExtraError, match=r"this needs llguidance: pip install 'llmi\[structured\]'"):
        library.load.__wrapped__()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from llmi.cli.commands import main

    schema = tmp_path / "person.json"
    schema.write_text(json.dumps(PERSON))
    assert main(["generate", "-p", "A person:", "--json-schema", str(schema), "--max-tokens", "40"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out.removeprefix("A person:")), PERSON)
    assert main(["generate", "-p", "x", "--regex", "a", "--choice", "b"]) == 2
    assert "--regex and --choice cannot be given together" in capsys.readouterr().err
    assert main(["generate", "-p", "x", "--grammar", str(tmp_path / "none.lark")]) == 2


def test_a_trace_shows_the_mask(tiny: LLM, tmp_path: Path) -> None:
    asked = {"regex": "[0-4]{2}x[a-c]"}
    out = tiny.generate([1, 2], seed=4, max_tokens=20, structured_outputs=asked, trace=True, speculative_config=PromptLookup())[0].outputs[
        0
    ]
    trace, words = out.trace, tiny.tokenizer.vocab_bytes
    assert trace is not None and re.fullmatch("[0-4]{2}x[a-c]", out.text)
    allowed = [
        sum(word[:1] in b"01234" and re.fullmatch(b"[0-4]{1,2}|[0-4]{2}x|[0-4]{2}x[a-c]", word) is not None for word in words if word)
    ]
    assert trace.explain(2).num_allowed == allowed[0] and trace.allowed_counts()[2] == allowed[0]
    for position, token in enumerate(out.token_ids, 2):
        page = trace.explain(position)
        assert page.is_allowed and page.to_dict()["token_id"][0] == token
        assert f"the mask allowed {page.num_allowed} token" in repr(page) and "the token is one of them" in page._repr_html_()
    assert trace.explain(1 + len(out.token_ids)).num_allowed == 1, "only the end is left"
    trace.save(tmp_path / "t.npz")
    assert repr(llmi.DecodeTrace.load(tmp_path / "t.npz").explain(3)) == repr(trace.explain(3))
    free = tiny.generate([1, 2], seed=4, max_tokens=4, trace=True)[0].outputs[0].trace
    assert free is not None and free.explain(3).num_allowed is None and "mask" not in repr(free.explain(3)) and free.allowed_counts() == {}
