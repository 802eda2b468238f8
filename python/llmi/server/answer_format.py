"""What an answer must be, from the objects that name a format: response_format, text.format and output_config.format."""

from __future__ import annotations

from typing import Any

from llmi.server.nested import flag_at, ignore_others, refuse_others, text_or_null, wrong

#: Kinds of a format, with the keys that each has besides `type`; None: the grammar's own reader knows them.
_KINDS: dict[str, tuple[str, ...] | None] = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("name", "description", "strict", "schema"),
    "grammar": ("grammar",),
    "structural_tag": None,
}


def constraint_of(where: str, value: object, ignored: list[str], kinds: tuple[str, ...]) -> object:
    """The constraint that a format names, in the form of structured_outputs; None: the answer is free.

    `json_object` with a `schema` is llama.cpp's way to write `json_schema`. A description is for readers, and named in `ignored`.
    Raises ApiError for a key that the kind does not have, and for a kind that is not in `kinds`.
    """
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise wrong(where, "must be an object with a type")
    kind = value["type"]
    if kind not in kinds:
        raise wrong(f"{where}.type", f"is {kind[:40]!r}, not one of {', '.join(kinds)}", "unsupported")
    if kind == "json_schema" and where == "response_format":
        nested = value.get("json_schema")
        if nested is not None or "schema" not in value:  # vLLM takes both forms
            refuse_others(where, value, ("type", "json_schema"))
            return _schema_of(f"{where}.json_schema", nested, ignored)
    if (names := _KINDS[kind]) is not None:
        refuse_others(where, value, ("type", *names))
    if kind == "text":
        return None
    if kind == "grammar":
        return {"grammar": value.get("grammar")}
    if kind == "structural_tag":
        return {"structural_tag": value}
    if kind == "json_object" and value.get("schema") is None:
        return {"json_object": True}
    return _schema_of(where, {name: entry for name, entry in value.items() if name != "type"}, ignored)


def _schema_of(where: str, value: object, ignored: list[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("schema"), dict | bool):
        raise wrong(f"{where}.schema", "must be a JSON schema")
    names = ("name", "description", "strict", "schema")
    refuse_others(where, value, names)
    text_or_null(f"{where}.name", value.get("name"))
    text_or_null(f"{where}.description", value.get("description"))
    flag_at(f"{where}.strict", value.get("strict"))  # an answer keeps to the schema in any case
    ignore_others(ignored, where, value, "name", "strict", "schema")
    return {"json": value["schema"]}
