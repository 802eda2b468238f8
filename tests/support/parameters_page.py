"""What is written from the tables of options: the tables of docs/parameters.md, and in the stub of the core the fields of SamplingParams.

`python tests/support/parameters_page.py` writes both.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import llmi
from llmi import _core
from llmi.base.kinds import Kind, Neutral, Objects
from llmi.engine.options import ENGINE, NO_EFFECT
from llmi.params.beams import BEAMS
from llmi.params.foreign_options import CALL_FOREIGN, CALL_HINTS, ENGINE_FOREIGN, ENGINE_HINTS, Foreign
from llmi.params.options import CALL, DefaultInt, Option
from llmi.params.sampling import SAMPLING
from llmi.requests.combinations import COMBINATIONS, Combination

PAGE = Path(__file__).parents[2] / "docs" / "parameters.md"
STUB = Path(__file__).parents[2] / "python" / "llmi" / "_core" / "__init__.pyi"
_CLASSES = (llmi.LLM, llmi.AsyncLLM, llmi.Tokenizer, llmi.TokenSequence)
_ANYTHING = {
    "hf_overrides": "None or a mapping of keys to JSON values",
    "speculative_config": "None, 'auto', a Drafter, a SpeculativeConfig or a dict",
}


def rule(name: str, kind: Kind) -> str:
    """What a value must be, in the words of the error that refuses another."""
    if name in _ANYTHING:
        return _ANYTHING[name]
    try:
        kind.parse("it", object())
    except llmi.InvalidParamsError as error:
        words = re.fullmatch(r"it must be (.*), not <object object at .*>", str(error), re.DOTALL)
        assert words, f"{name}: {error}"
        text = words[1]
    else:
        raise AssertionError(f"{name} takes anything: it needs a line in _ANYTHING")
    takes_none = not isinstance(kind, Neutral | Objects) and _takes_none(kind)
    if not takes_none or text.startswith("None"):
        return text
    return f"None, or {text}" if " or " in text else f"None or {text}"


def _takes_none(kind: Kind) -> bool:
    try:
        return kind.parse("it", None) is None
    except llmi.InvalidParamsError:
        return False


def code(value: Any) -> str:
    """A value as it is written in Python; an empty tuple of hooks is none."""
    if value == () and isinstance(value, tuple):
        return "none"
    return f"`{int(value) if isinstance(value, DefaultInt) else value!r}`"


def rows(heads: str, lines: Iterable[Iterable[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped."""
    columns = heads.split("; ")
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *cells])


def engine_table() -> str:
    return rows("name; value; default; meaning", ([f"`{o.name}`", rule(o.name, o.kind), code(o.default), o.doc] for o in ENGINE.values()))


def sampling_table(options: Mapping[str, Option] = SAMPLING) -> str:
    def line(option: Option) -> list[str]:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        return [names, rule(option.name, option.kind), "needed" if option.name == "beam_width" else code(option.default), option.doc]

    return rows("name, other names; value; default; meaning", map(line, options.values()))


def call_table() -> str:
    lines = ([f"`{o.name}`", rule(o.name, o.kind), code(o.default), o.doc, users(o.name)] for o in CALL.values())
    return rows("name; value; default; meaning; argument of", lines)


def users(name: str) -> str:
    """The public methods that have an argument of this name."""
    found = []
    for cls in _CLASSES:
        for method in sorted(entry for entry in dir(cls) if not entry.startswith("_")):
            member = getattr(cls, method)
            if inspect.isroutine(member) and name in inspect.signature(member).parameters:
                found.append(f"`{cls.__name__}.{method}`")
    return ", ".join(found)


def inert_table() -> str:
    lines = [(f"`{o.name}`", "LLM", rule(o.name, o.kind), o.doc) for o in NO_EFFECT.values()]
    for where, table in (("LLM", ENGINE_FOREIGN), ("calls", CALL_FOREIGN)):
        lines += [(f"`{f.name}`", where, value_of(f), sentence(f.why)) for f in table.values() if f.inert is not None]
    return rows("name; of; value; reason", lines)


def value_of(foreign: Foreign) -> str:
    """What an argument without effect may be."""
    assert foreign.inert is not None
    try:
        return rule(foreign.name, foreign.inert)
    except AssertionError:
        return "anything"


def sentence(text: str) -> str:
    """With a capital letter, unless it begins with code, and a full stop."""
    return f"{text if re.match(r'[a-z_]+[=.(]', text) else text[0].upper() + text[1:]}."


def refused_table(table: Mapping[str, Foreign]) -> str:
    reasons: dict[str, list[str]] = {}
    for foreign in table.values():
        if foreign.inert is None:
            neutral = " or ".join(code(value) for value in foreign.neutral)
            reasons.setdefault(foreign.why, []).append(f"`{foreign.name}`" + (f" ({neutral})" if neutral else ""))
    lines = ([", ".join(names), sentence(why)] for why, names in reasons.items())
    return rows("names (and the values that change nothing); reason, or what to do instead", lines)


def hints_table(hints: Mapping[str, str]) -> str:
    here: dict[str, list[str]] = {}
    for name, meant in hints.items():
        here.setdefault(meant, []).append(f"`{name}`")
    return rows("unknown names; here", ([", ".join(names), meant if " " in meant else f"`{meant}`"] for meant, names in here.items()))


def combinations_table() -> str:
    def name(feature: str) -> str:
        return f"`{feature}`" if " " not in feature else feature

    def line(entry: Combination) -> list[str]:
        what = "refused" if entry.left_out is None else f"`{entry.left_out[0]}` has no effect"
        return [name(entry.first), name(entry.second), what, re.sub(r"\{(\w+)\}", "...", entry.why)]

    return rows("feature; with; what happens; why (as the error says it, which quotes the values)", map(line, COMBINATIONS))


TABLES: Mapping[str, Callable[[], str]] = {
    "engine": engine_table,
    "sampling": sampling_table,
    "beams": lambda: sampling_table(BEAMS),
    "calls": call_table,
    "combinations": combinations_table,
    "without effect": inert_table,
    "refused by calls": lambda: refused_table(CALL_FOREIGN),
    "refused by LLM": lambda: refused_table(ENGINE_FOREIGN),
    "hints of calls": lambda: hints_table(CALL_HINTS),
    "hints of LLM": lambda: hints_table(ENGINE_HINTS),
}


def page(text: str) -> str:
    """The page with each table between its markers."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
        text, count = re.subn(pattern, lambda match, table=table: f"{match[1]}{table()}\n{match[2]}", text, flags=re.DOTALL)
        assert count == 1, f"docs/parameters.md has {count} places for the table {name!r}"
    return text


def stub(text: str) -> str:
    """The stub of the core with the fields of SamplingParams that the core has."""
    types = {
        name: re.search(r"-> (.+)", member.fget.__doc__)
        for name, member in vars(_core.SamplingParams).items()
        if isinstance(member, property)
    }
    fields = "".join(f"    {name}: {found[1]}\n" for name, found in types.items() if found)
    text, count = re.subn(r"(    # fields: begin.*\n)(?:    \w+: .*\n)*(    # fields: end\n)", rf"\g<1>{fields}\g<2>", text)
    assert count == 1
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    STUB.write_text(stub(STUB.read_text(encoding="utf-8")), encoding="utf-8")
