"""Grammars whose terminals may force one byte without an end, which the library would follow."""

from __future__ import annotations

import json
import re

#: The tokens of Lark as the library reads it; a text in which something else stands is not judged.
_TOKENS = re.compile(
    r"""
    (?P<comment>(?:\#|//)[^\n]*) | (?P<newline>\n) | (?P<space>[ \t\r]+)
    | (?P<string>"(?:\\.|[^"\\\n])*"i?) | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    | (?P<directive>%[a-z]+) | (?P<name>[!?_]{0,2}[A-Za-z][\w-]*) | (?P<special><[^<>\s]+>) | (?P<reference>@[\w-]+)
    | (?P<number>[+-]?\d[\w.]*) | (?P<op>->|\.\.|::|[+*?~&{}|()\[\]:=,._\#])
    """,
    re.VERBOSE | re.ASCII | re.DOTALL,
)
#: In a regular expression: what is repeated, and how. Sets of several bytes alone leave a choice after each byte. A class without an end is
#: the rest.
_REPEATED = re.compile(r"(?P<atom>\\.|\[(?:\^?\]?(?:\\.|[^\]\\])*+\]|.*)|.)(?P<repeat>[+*]|\{\d*+,\})?", re.DOTALL)
_SETS = (".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S")
_RANGE = re.compile(r"(?:[a-y]-z|[A-Y]-Z|0-9|a-f|A-F|\\[dws])(?:[^\\\[\]&~-]|\\.|(?<=\w)-(?=\w))*+")
_LISTED = re.compile(r"\^?(?:[^\\\[\]&~-]|\\[nrtf.\-\]\[/\\])+")
_BLANK = re.compile(r"\s*")
_COLON = re.compile(r"[ \t]*:")
NO_FORCING = '\n%llguidance {"no_forcing": true}\n'


def without_endless_forcing(lark: str) -> str:
    """The grammar, with the library's `no_forcing` where a terminal may repeat one text, as `A: /a+/` does.

    Where nothing but the repeated byte can follow, as in `start: A "a"`, the library collects forced bytes before a mask, and there is no
    last one. Without forcing the mask is computed as for any other place: the text goes on to its own limit. Forced tokens are then no
    drafts, and a text may be spelled in other tokens than the tokenizer's; the language is the same.
    """
    return lark + NO_FORCING if _may_be_endless(lark) else lark


def _may_be_endless(lark: str) -> bool:
    is_terminal, at_line_start, place = False, True, 0
    while place < len(lark):
        token = _TOKENS.match(lark, place)
        if token is None:
            return True
        kind, text, place = token.lastgroup, token.group(), token.end()
        if kind in ("comment", "space"):
            continue
        if kind == "directive":
            if text in ("%json", "%llguidance"):
                place = _end_of_json(lark, place)
            elif text not in ("%ignore", "%import"):
                return True
            is_terminal = text == "%ignore"
        elif kind == "name" and at_line_start:  # a rule with attributes is compiled as a terminal
            is_terminal = not (text.lstrip("!?_")[:1].islower() and _COLON.match(lark, place))
        elif (kind == "regex" and _repeats_a_text(text[1 : text.rindex("/")])) or (
            kind == "op" and (text in "~&" or (is_terminal and text in "+*{"))
        ):
            return True
        at_line_start = kind == "newline"
    return False


def _end_of_json(text: str, place: int) -> int:
    """Where the JSON value ends that begins after white space at `place`; `place` if there is none."""
    blank = _BLANK.match(text, place)
    try:
        return json.JSONDecoder().raw_decode(text, blank.end() if blank else place)[1]
    except (ValueError, RecursionError):
        return place


def _repeats_a_text(regex: str) -> bool:
    return any(found["repeat"] is not None and not _is_set(found["atom"]) for found in _REPEATED.finditer(regex))


def _is_set(atom: str) -> bool:
    """Whether a part of a regular expression surely stands for several bytes."""
    if atom in _SETS:
        return True
    inner = atom[1:-1]
    if not atom.startswith("["):
        return False
    return _RANGE.fullmatch(inner) is not None or (
        _LISTED.fullmatch(inner) is not None and (inner.startswith("^") or len({*inner} - {"\\"}) > 1)
    )
