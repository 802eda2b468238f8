"""The arguments `tools` and `tool_choice`: checked, and in plain form."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from llmi.base.kinds import entries_of, show
from llmi.errors import InvalidParamsError

MAX_TOOLS = 1024
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}")


@dataclasses.dataclass(frozen=True)
class Function:
    """A tool: what a model may call. parameters: a JSON schema of its arguments; None where they are any object."""

    index: int
    name: str
    description: str
    parameters: dict[str, Any] | None
    given: dict[str, Any]  # as the template gets it

    @property
    def where(self) -> str:
        """As errors name its parameters."""
        return f"tools[{self.index}].function.parameters"


@dataclasses.dataclass(frozen=True)
class Choice:
    """kind: "none", "auto", "required" or "named"; name: of the function, then."""

    kind: str
    name: str = ""


def functions_of(tools: object) -> list[Function]:
    """The functions in OpenAI's form, [{"type": "function", "function": {"name", "description", "parameters", "strict"}}].

    None and [] are no tools. Raises InvalidParamsError that names the entry.
    """
    if tools is None:
        return []
    entries = None if isinstance(tools, Mapping) else entries_of("tools", tools)
    if entries is None:
        raise InvalidParamsError(f"tools must be a list of dicts with type and function, not {show(tools)}", "tools")
    if len(entries) > MAX_TOOLS:
        raise InvalidParamsError(f"tools has {len(entries):,} entries, at most {MAX_TOOLS:,} are taken", "tools")
    functions: list[Function] = []
    places: dict[str, int] = {}
    for index, entry in enumerate(entries):
        function = _function(index, entry)
        if (other := places.setdefault(function.name, index)) != index:
            raise InvalidParamsError(f"tools[{index}].function.name: {function.name!r} is the name of tools[{other}] already", "tools")
        functions.append(function)
    return functions


def _function(index: int, entry: object) -> Function:
    where = f"tools[{index}]"
    if not isinstance(entry, Mapping):
        _refuse(where, f'must be a dict such as {{"type": "function", "function": {{...}}}}, not {show(entry)}')
    body = entry.get("function")
    if entry.get("type", "function") != "function" or not isinstance(body, Mapping):
        _refuse(where, f"needs type = 'function' and a dict as function; it has the keys {show(sorted(map(str, entry)))}")
    if unknown := sorted(set(body) - {"name", "description", "parameters", "strict", "return", "returns", "response"}):
        _refuse(f"{where}.function", f"has no field {show(unknown[0])}: name, description, parameters and strict are known")
    name, description, strict = body.get("name"), body.get("description"), body.get("strict")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        _refuse(f"{where}.function.name", f"must be 1 to 256 letters, digits and _ . : / -, not {show(name)}")
    if description is not None and not isinstance(description, str):
        _refuse(f"{where}.function.description", f"must be a text, not {show(description)}")
    if strict is not None and not isinstance(strict, bool):
        _refuse(f"{where}.function.strict", f"must be True or False, not {show(strict)}")
    schema = _schema(f"{where}.function.parameters", body.get("parameters"))
    given = {key: value for key, value in body.items() if key != "parameters"} | (
        {} if "parameters" not in body else {"parameters": schema}
    )
    return Function(index, name, description or "", None if strict is False else schema, {"type": "function", "function": given})


def _schema(where: str, value: object) -> dict[str, Any]:
    """A schema of an object, as a copy in plain JSON. None: no arguments."""
    if value is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(value, Mapping):
        _refuse(where, f"must be a JSON schema of an object, not {show(value)}")
    try:
        text = json.dumps(value, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(where, f"is no JSON: {error}")
    schema: dict[str, Any] = json.loads(text)
    if schema.get("type", "object") != "object":
        _refuse(where, f"must be of type 'object', since arguments have names; it is of type {show(schema['type'])}")
    return {"type": "object", **schema}


def _refuse(where: str, what: str) -> NoReturn:
    raise InvalidParamsError(f"{where} {what}", "tools")


def choice_of(value: object, functions: list[Function]) -> Choice:
    """`tool_choice`: None is "auto" with tools and "none" without. Raises InvalidParamsError."""
    if value is None:
        return Choice("auto" if functions else "none")
    kind = value if isinstance(value, str) else "named"
    if kind == "named":
        kind, name = "named", _named(value)
    elif kind not in ("none", "auto", "required"):
        raise _wrong_choice(value)
    if kind != "none" and not functions:
        raise InvalidParamsError(f"tool_choice = {show(value)} needs tools: none were given", "tool_choice")
    if kind != "named":
        return Choice(kind)
    if name not in {function.name for function in functions}:
        known = ", ".join(function.name for function in functions)
        raise InvalidParamsError(f"tool_choice names the function {show(name)}; the tools are {known:.200}", "tool_choice")
    return Choice("named", name)


def _named(value: object) -> str:
    function = value.get("function") if isinstance(value, Mapping) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise _wrong_choice(value)
    return name


def _wrong_choice(value: object) -> InvalidParamsError:
    rule = "'none', 'auto', 'required' or {'type': 'function', 'function': {'name': ...}}"
    return InvalidParamsError(f"tool_choice must be {rule}, not {show(value)}", "tool_choice")
