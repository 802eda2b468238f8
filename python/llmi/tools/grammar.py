"""The grammar of an answer: free until a call begins, or calls alone."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from typing import Any

from llmi.errors import InvalidParamsError
from llmi.params.structured import StructuredOutputsParams
from llmi.structured.budget import Budget
from llmi.structured.grammars import json_rule
from llmi.structured.lark_text import literal
from llmi.tools.form import ToolFormat
from llmi.tools.functions import Choice, Function

ANY = "(?s:.*)"
_SPACES = r"[ \t\n\r]*"  # as the parser leaves it out (form.SPACE)
_PUNCTUATION = set(string.punctuation) - set("<>_")  # which a backslash makes plain


class GrammarRules:
    """Rules in the library's dialect of Lark, as formats add them.

    special: token ids of the texts that are special tokens. budget: of all schemas of the request.
    """

    def __init__(self, special: Mapping[str, int], budget: Budget) -> None:
        self._special = special
        self.budget = budget
        self._pattern = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}  # of rules by their bodies
        self._json: dict[str, str] = {}

    def is_special(self, text: str) -> bool:
        """Whether a text is a special token."""
        return text in self._special

    def text(self, text: str) -> str:
        """The expression of a text; special tokens in it are the tokens."""
        parts: list[str] = []
        at = 0
        for match in self._pattern.finditer(text):
            parts += [literal(text[at : match.start()]), f"<[{self._special[match.group()]}]>"]
            at = match.end()
        parts.append(literal(text[at:]))
        return " ".join(part for part in parts if part != '""') or '""'

    def json(self, schema: dict[str, Any], where: str) -> str:
        """The expression of JSON that fits a schema. Raises InvalidParamsError that names the place."""
        key = json.dumps(schema)
        if key not in self._json:
            try:
                self._json[key] = self.rule(json_rule(StructuredOutputsParams(json=schema, whitespace="one"), self.budget))
            except InvalidParamsError as error:
                raise InvalidParamsError(f"{where}: {plain_reason(error)}", "tools") from None
        return self._json[key]

    def quoted(self, mark: str, regex: str) -> str:
        """The expression of a text that matches, with a mark on both sides, which is not in it."""
        if self.is_special(mark):
            return self.rule(f"{self.text(mark)} /{regex}/ {self.text(mark)}")
        return self.rule(f"{literal(mark)} (/{regex}/ & ~/{ANY}{in_regex(mark)}{ANY}/) {literal(mark)}", terminal=True)

    def rule(self, body: str, terminal: bool = False) -> str:
        """The name of a rule with this body."""
        if body not in self._names:
            self._names[body] = self.reserve(terminal)
            self.define(self._names[body], body)
        return self._names[body]

    def reserve(self, terminal: bool = False) -> str:
        """A name that is not taken."""
        name = f"{'T' if terminal else 'r'}{len(self._rules)}"
        self._rules[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        """Gives a reserved rule its body."""
        self._rules[name] = body

    def __str__(self) -> str:
        return "".join(f"{name}: {body}\n" for name, body in self._rules.items())


def in_regex(text: str) -> str:
    """A text as a regular expression between slashes writes it."""
    return "".join(f"\\{letter}" if letter in _PUNCTUATION else letter for letter in text)


def plain_reason(error: InvalidParamsError) -> str:
    """What an error of a grammar says, in words of tools."""
    text = str(error).removeprefix("structured_outputs: ").replace(" (lenient=True leaves them out of account)", "")
    return f"{text} (strict: false takes any arguments)"


def answer_grammar(
    form: ToolFormat, functions: list[Function], choice: Choice, several: bool, special: Mapping[str, int], budget: Budget, think: str = ""
) -> str:
    """The grammar of an answer, in Lark. think: how a free text must not begin. Raises InvalidParamsError."""
    rules = GrammarRules(special, budget)
    called = [function for function in functions if choice.kind != "named" or function.name == choice.name]
    bodies = [(head, rules.rule(rest)) for head, rest in (form.call(function, rules) for function in called)]
    call = rules.rule(" | ".join(f"{rules.text(head)} {rest}" for head, rest in bodies))
    opens, closes, between = (rules.text(text) for text in (form.opens, form.closes, form.between))
    is_list = several and form.several and choice.kind != "named"
    more = f"({between} {opens} {call} {closes})*" if is_list else ""
    if choice.kind != "auto":
        return f"start: {opens} {rules.text(form.first)} {call} {closes} {more} {rules.text(form.last)}\n{rules}"
    banned = [f"{_SPACES}{in_regex(think)}{ANY}"] if think and not rules.is_special(think) else []
    if form.opens:
        head = f"head: FREE {opens}" if rules.is_special(form.opens) else f"head[lazy]: FREE {opens}"
        calls = f"head {rules.text(form.first)} {call}"
    else:
        # What opens a call is one terminal, which holds a whole beginning: with less of it the free text would be the longer match.
        head = ""
        opened = [f"{rules.rule(f'/{_SPACES}/ {literal(form.first + text)}', terminal=True)} {rest}" for text, rest in bodies]
        calls = f"({' | '.join(opened)})"
        beginnings = [text for function in functions for text in form.beginnings(function.name)]
        banned.append(f"{_SPACES}({'|'.join(map(in_regex, beginnings))}){ANY}")
    free = f"FREE: /{ANY}/" + "".join(f" & ~/{text}/" for text in banned)
    return f"start: free | {calls} {closes} {more} {rules.text(form.last)}\nfree: FREE\n{free}\n{head}\n{rules}"
