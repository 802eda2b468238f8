"""Structural tags: text that is free until a trigger comes, which a structure must follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NoReturn

from llmi.base.kinds import show
from llmi.errors import InvalidParamsError
from llmi.structured.lark_text import literal

_FIELDS = {"type", "structures", "triggers"}
_STRUCTURE = {"begin", "schema", "end"}


def tag_grammar(tag: object, special: Mapping[str, int], json_rule: Callable[[str | dict[str, object]], str]) -> str:
    """The grammar of a structural tag, in Lark.

    Parameters
    ----------
    tag : dict
        vLLM's form: `{"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}`.
    special : mapping of str to int
        The special tokens of the vocabulary: a trigger that is one of them is that token, any other is text.
    json_rule : function of a JSON schema
        The body of a rule for it. Raises InvalidParamsError.

    Raises
    ------
    InvalidParamsError
        A part is missing or of another kind, a trigger begins no structure, or a structure does not begin with one trigger.
    """
    if not isinstance(tag, dict) or set(tag) != _FIELDS or tag["type"] != "structural_tag":
        _refuse("", f"has the fields {', '.join(sorted(_FIELDS))}, and type = 'structural_tag', not {show(tag)}")
    triggers = _triggers(tag["triggers"])
    structures = tag["structures"]
    if not isinstance(structures, list) or not structures:
        _refuse(".structures", f"{'is empty' if structures == [] else 'must be a list'}: it needs at least one structure")
    used: set[str] = set()
    rules: list[str] = []
    counts, sizes = Counter(triggers), {len(trigger) for trigger in triggers}
    for index, structure in enumerate(structures):
        trigger = _trigger_of(structure, index, counts, sizes)
        used.add(trigger)
        try:
            schema = json_rule(structure["schema"])
        except InvalidParamsError as error:
            _refuse(f".structures[{index}].schema", f": {error}")
        head = f"head_{index}: TEXT <[{special[trigger]}]>" if trigger in special else f"head_{index}[lazy]: TEXT {literal(trigger)}"
        rest = literal(structure["begin"][len(trigger) :])
        rules.append(f"tag_{index}: head_{index} {rest} json_{index} {literal(structure['end'])}\n{head}\njson_{index}: {schema}\n")
    if unused := [trigger for trigger in triggers if trigger not in used]:
        _refuse(f".triggers[{triggers.index(unused[0])}]", f"= {show(unused[0])} begins no structure")
    choice = " | ".join(f"tag_{index}" for index in range(len(rules)))
    return f"start: ({choice})* rest\nrest: TEXT\nTEXT: /(?s:.*)/\n{''.join(rules)}"


def _triggers(triggers: object) -> list[str]:
    if not isinstance(triggers, list):
        _refuse(".triggers", f"must be a list of texts, not {show(triggers)}")
    for index, trigger in enumerate(triggers):
        if not isinstance(trigger, str) or not trigger:
            _refuse(f".triggers[{index}]", f"must be a text of at least one character, not {show(trigger)}")
    return triggers


def _trigger_of(structure: object, index: int, triggers: Counter[str], sizes: set[int]) -> str:
    """The one trigger with which a structure begins, after its fields are checked. sizes: of the triggers."""
    place = f".structures[{index}]"
    if not isinstance(structure, dict) or set(structure) != _STRUCTURE:
        _refuse(place, f"has the fields {', '.join(sorted(_STRUCTURE))}, not {show(structure)}")
    for name in ("begin", "end"):
        if not isinstance(structure[name], str):
            _refuse(f"{place}.{name}", f"must be a text, not {show(structure[name])}")
    if not isinstance(structure["schema"], (dict, bool, str)):
        _refuse(f"{place}.schema", f"must be a JSON schema, not {show(structure['schema'])}")
    begins: set[str] = {structure["begin"][:size] for size in sizes} & triggers.keys()
    if (count := sum(triggers[trigger] for trigger in begins)) != 1:
        _refuse(f"{place}.begin", f"starts with {count} of the triggers, not with one")
    return begins.pop()


def _refuse(place: str, what: str) -> NoReturn:
    raise InvalidParamsError(f"structured_outputs: structural_tag{place}{'' if what.startswith(':') else ' '}{what}", "structured_outputs")
