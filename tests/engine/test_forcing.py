"""Grammars that could force one byte for ever: the library would collect forced bytes without an end, so it must not force there."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmi import LLM
from llmi.structured.forcing import without_endless_forcing

ENDLESS = [
    'start: "x" /[a]{2,}/ "a"',
    'start: A "a"\nA: /a+/',
    'start: A A\nA: "a"+',
    'start: A "x"\nA: B*\nB: "x"',
    "start: /(ab)*/",
    "start: /[a-z&&a]+/",
    r"start: /[^\x00-\x60\x62-\xff]+/",
    "start: /[z-z]+/",
    "start: /[aa]*/",
    'b[suffix="x"]: "a"+',
    "%ignore / +/",
    r"start: /\n+/",
    "start: /[[a]]+/",
    'start: %lark { start: "a" }',
    "start: $",
    'start: A\nA: "a"~3..',
    "start: /[a-]+/",
    'start: a\na: A\nA: ("b" "c"){2,}',
    "start: /(?i)a+/",
]
CHOICES = [
    'start: "x" "a"+', "start: /[0-9]+/", "start: /[a-zA-Z_][a-zA-Z0-9_]*/", 'start: x*\nx: "y"', 'start: /[^"]*/', r"start: /[ \t]+/",
    "start: /[\\d.]+/ // a+\n", 'start: "a+" /a{3}/', '%ignore /[ \\t\\n]+/\nstart: "a"', '%import common.INT\nstart: INT ("," INT)*',
    'start: %json {"a":["+",1]} "x"', '# A: "a"+\nstart: "x"', "start: /[a-z]{2,}/", "start: /.+/", r"start: /\s*\w+/",
]  # fmt: skip


@pytest.fixture(scope="module")
def llm(tiny_path: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(tiny_path("llama", vocab_size=257), kv_cache_memory_bytes=1 << 22, max_model_len=64) as llm:
        yield llm


@pytest.mark.parametrize("grammar", ENDLESS)
def test_terminals_that_repeat_a_text(grammar: str) -> None:
    assert without_endless_forcing(grammar).endswith('%llguidance {"no_forcing": true}\n')


@pytest.mark.parametrize("grammar", CHOICES)
def test_each_byte_leaves_a_choice(grammar: str) -> None:
    assert without_endless_forcing(grammar) == grammar


@pytest.mark.skipif(importlib.util.find_spec("llguidance") is None, reason="needs the extra structured")
@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('start: /[xy]/ A "a"\nA: /a+/', "a" * 11),
        ('start: A A\nA: "a"+', "a" * 12),
        ('%llguidance {"no_forcing": false}\nstart: A "a"\nA: /a+/', "a" * 12),
        ('start: A "b"\nA: /a+/', "ab"),
        ('root ::= [xy] as "c"\nas ::= "a"+ | "d"', "a" * 11),
        ('root ::= [ ]* as "b"\nas ::= [a]+', "b"),
    ],
)
def test_such_a_grammar_ends(llm: LLM, grammar: str, text: str) -> None:
    """By length where nothing but the repeated byte can follow; else as any other."""
    [output] = llm.generate(
        ["1"], max_tokens=12, logit_bias={98 + text.endswith("b"): 100.0}, temperature=0, structured_outputs={"grammar": grammar}
    )[0].outputs
    assert output.text.endswith(text) and output.complete == text.endswith("b")
