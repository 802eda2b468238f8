"""Grammars in GBNF have the same language in Lark: compared text by text with what their parts mean, on small alphabets."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from llmi import InvalidParamsError, StructuredOutputsParams
from llmi.structured.budget import Budget
from llmi.structured.gbnf import GbnfError, is_gbnf, lark_of_gbnf
from llmi.structured.grammars import compiled
from schema_suite import accepts, byte_vocabulary

#: A part of a grammar: ("text", letters), ("class", letters), ("rule", name), ("seq" or "alt", parts), ("times", part, least, most or
#: None).
Part = tuple[Any, ...]
LETTERS = "abé"
LONGEST = 4
TEXTS = ["".join(letters) for size in range(LONGEST + 1) for letters in itertools.product(LETTERS, repeat=size)]


def joined(first: frozenset[str], second: frozenset[str]) -> frozenset[str]:
    return frozenset(a + b for a in first for b in second if len(a) + len(b) <= LONGEST)


def texts_of(part: Part, rules: dict[str, frozenset[str]]) -> frozenset[str]:
    """The texts of a part, up to the longest, where those of rules are known."""
    kind, *inner = part
    if kind == "text":
        return frozenset({inner[0]} if len(inner[0]) <= LONGEST else ())
    if kind == "class":
        return frozenset(inner[0])
    if kind == "rule":
        return rules[inner[0]]
    if kind == "alt":
        return frozenset().union(*(texts_of(entry, rules) for entry in inner[0]))
    if kind == "seq":
        result = frozenset({""})
        for entry in inner[0]:
            result = joined(result, texts_of(entry, rules))
        return result
    one, least, most = texts_of(inner[0], rules), inner[1], inner[2]
    result, power = frozenset(), frozenset({""})
    for count in range((least + LONGEST if most is None else most) + 1):
        result |= power if count >= least else frozenset()
        power = joined(power, one)
    return result


def language(grammar: dict[str, Part]) -> frozenset[str]:
    """Grows the texts of all rules until none is new."""
    rules: dict[str, frozenset[str]] = dict.fromkeys(grammar, frozenset())
    while (grown := {name: texts_of(part, rules) for name, part in grammar.items()}) != rules:
        rules = grown
    return rules["root"]


def written(part: Part) -> str:
    kind, *inner = part
    if kind == "text":
        return f'"{inner[0]}"'.replace("é", "\\u00e9")
    if kind == "class":
        others = "".join(letter for letter in LETTERS if letter not in inner[0])
        return f"[{inner[0]}]" if len(others) > 1 or not others else f"[^{others}]"
    if kind == "rule":
        return str(inner[0])
    if kind in ("alt", "seq"):
        return "(" + (" | " if kind == "alt" else " ").join(map(written, inner[0])) + ")"
    marks = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    least, most = inner[1:]
    return written(inner[0]) + marks.get((least, most), f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}")


def random_part(rng: random.Random, names: list[str], depth: int) -> Part:
    kind = rng.choice(["text", "class", "rule"] + ["alt", "seq", "seq", "times"] * (depth < 3))
    if kind == "text":
        return kind, "".join(rng.choices(LETTERS, k=rng.randrange(3)))
    if kind == "class":
        return kind, "".join(sorted(rng.sample(LETTERS, rng.randint(1, 2))))
    if kind == "rule":
        return kind, rng.choice(names)
    if kind == "times":
        inner = random_part(rng, names, depth + 1) if rng.random() < 0.5 else ("class", rng.choice(["a", "ab", "bé", "é"]))
        return kind, inner, *rng.choice([(0, None), (1, None), (0, 1), (2, 2), (1, 2), (2, None)])
    return kind, [random_part(rng, names, depth + 1) for _ in range(rng.randint(1, 3))]


def matcher_of(text: str) -> Any:
    return compiled(StructuredOutputsParams(grammar=text), byte_vocabulary())


@pytest.mark.parametrize("seed", range(8))
def test_random_grammars_have_the_same_texts(seed: int) -> None:
    rng = random.Random(seed)
    num_compared = 0
    for _ in range(12):
        names = ["root", "word-2", "C"]
        grammar = {name: random_part(rng, names, 0) for name in names}
        wanted = language(grammar)
        text = "# a comment\n" + "".join(f"{name} ::= {written(part)} # {name}\n" for name, part in grammar.items())
        if not wanted:
            continue  # no text, or none as short
        matcher = matcher_of(text)
        assert {entry for entry in TEXTS if accepts(matcher, entry)} == wanted, text
        num_compared += 1
    assert num_compared >= 4


#: (grammar, texts of its language, texts that are none)
CASES: list[tuple[str, list[str], list[str]]] = [
    ('root ::= word "s"\nword ::= [a-z]+', ["cats", "ss"], ["s", "cat", "s1"]),
    ('root ::= "\\u00e9ab" | "\\x41\\U0001F600" | "\\"\\\\\\n\\t\\r\\[\\]"', ["éab", "A😀", '"\\\n\t\r[]'], ["\ue9ab", "A"]),
    ("root ::= [\\u00e0-\\u00ff] [^\\x00-\\x60]", ["éa", "àé"], ["ea", "éA"]),
    ("root ::= [a&&b]+", ["&", "ab&"], ["&&c"]),
    ("root ::= [a-c--1]+", ["b", "-", "1", "./"], ["2", "d"]),
    ("root ::= [-a] [a-] [\\]^/[]", ["-a]", "a-^", "aa/", "--["], ["b-]"]),
    ('root ::= . "b"', ["\nb", "éb", "bb"], ["b", "aab"]),
    ('root ::= "a" |', ["a", ""], ["aa"]),
    ('root ::= "start: ::= "', ["start: ::= "], ["start: "]),
    ('root ::= ("ab"\n  | "c"  # or c\n)+ "d" |\n  "e"', ["abcd", "cd", "e"], ["d", "abe"]),
    ('root ::= "a" {2} [b-c] { 1 , 2 } "d" {1,}', ["aabd", "aabcdd"], ["abd", "aabcbd"]),
    ('root ::= "ab"* "c"?*', ["ababcc", ""], ["aab"]),
    ("root ::= ws ws\nws ::= [ab]+", ["aa", "abab"], ["a"]),
    ("root ::= [^é]* [é]", ["é", "abé", "ñé"], ["ab", "aéé"]),
    ("root ::= [^é]* [éè]", ["é", "abé", "abèè", "ñè"], ["ab", "abéé"]),
    ('root ::= ([a-c] | "x" [0-9a-f]{2})* "a"', ["a", "bxcaa", "xaaa"], ["xaa", "b"]),
    ('root ::= ([ab]+ ";")* [b-d]{0,2} "d"', ["ab;bd", "a;d", "ddd"], ["ab;", "ddddd"]),
    ('root ::= root "+" "x" | "x"', ["x", "x+x+x"], ["x+"]),
    ('# only a comment\n\r\n  root ::= [@] x-1\r\nx-1 ::= "@x-1@"\r\n', ["@@x-1@"], ["@x-1"]),
]


@pytest.mark.parametrize("grammar, right, wrong", CASES, ids=range(len(CASES)))
def test_what_a_grammar_says(grammar: str, right: list[str], wrong: list[str]) -> None:
    matcher = matcher_of(grammar)
    assert [text for text in right if not accepts(matcher, text)] == []
    assert [text for text in wrong if accepts(matcher, text)] == []


REFUSED = {
    'root ::= "a" other-rule': "line 1: the rule 'other-rule' is not defined",
    'root ::= "a"\nx ::= "b"\nx ::= "c"': "line 3: the rule 'x' is defined twice",
    'start ::= "a"': "it has no rule 'root'",
    'root ::= "\\q"': "is no escape",
    'root ::= "\\u12"': "is no escape",
    'root ::= "\\uD800"': "is no character",
    "root ::= [\\U00110000]": "is no character",
    "root ::= [z-a]": "the range from 'z' to 'a' is empty",
    "root ::= []": "the class is empty",
    'root ::= "a': "the text or class has no end",
    "root ::= [a": "the text or class has no end",
    'root ::= ("a"': r"'\)' is missing",
    'root ::= "a")': r"'\)' cannot stand here",
    'root ::= "a"{3,2}': r"\{3,2\} ends below its beginning",
    'root ::= "a"{x}': "a repetition is",
    "root ::= *": r"'\*' cannot stand here",
    'root ::= "a"\nx': "line 2: '::=' must follow a rule's name",
    'root ::= "a"\n| "b"': r"line 2: a rule's name is expected, not '\|'",
    "root ::= <[7]>": "'<' cannot stand here",
    "root ::= " + "(" * 20_000: "nested too deep|is missing",
}


@pytest.mark.parametrize("grammar", REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_gbnf_is_refused_by_name(grammar: str) -> None:
    with pytest.raises(GbnfError, match=REFUSED[grammar]):
        lark_of_gbnf(grammar, Budget("the grammar"))
    with pytest.raises(InvalidParamsError, match="the grammar is no GBNF"):
        matcher_of(grammar)


def test_lark_with_the_sign_inside_texts_is_lark() -> None:
    for grammar in ('start: "a ::= b"', '?start: "a ::= b"', '// root ::= x\nstart: "a ::= b"', '\n start: X\nX: "a ::= b"'):
        assert not is_gbnf(grammar)
        assert accepts(matcher_of(grammar), "a ::= b")


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""


def test_the_letters_of_a_json_string_are_one_terminal() -> None:
    """With a terminal for each of them a mask takes 40 times as long."""
    assert any("]+/" in line and "10ffff" in line for line in lark_of_gbnf(JSON, Budget("the grammar")).splitlines())
    matcher = matcher_of(JSON)
    assert accepts(matcher, '{"a":{"b\\u00e9é": [1, -2.5e3, null]}, "c":""}') and not accepts(matcher, "{\"a\":'b'}")


def test_large_grammars_are_taken() -> None:
    """Those with too many places to look for repetitions, too."""
    words = " | ".join(f'"w{index:04}"' for index in range(1000))
    matcher = matcher_of(f"root ::= (word [ ]+)* word\nword ::= {words}")
    assert accepts(matcher, "w0001  w0999 w0500") and not accepts(matcher, "w0001w0002")
