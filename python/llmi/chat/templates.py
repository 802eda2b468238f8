"""A model's chat templates: where its files have them, and which of them a call takes (the rules of transformers 4.57)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmi.errors import ChatTemplateError, TokenizerError
from llmi.models.input_file import is_there, read_json, read_text

DEFAULT = "default"
GGUF_KEY = "tokenizer.chat_template"
_TOOLS = re.compile(r"(?<![\w</])tools(?![\w>])")
_TAG = re.compile(r"\{[{%#]")
_FILE_ENDINGS = (".jinja", ".jinja2", ".j2", ".txt", ".json", ".tmpl")


def of_directory(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name: chat_template.jinja and additional_chat_templates/*.jinja, else those in `settings` (tokenizer_config.json).

    chat_template.json, which processors of several media have, counts where there is no other. Raises TokenizerError.
    """
    templates: dict[str, str] = {}
    file = directory / "chat_template.jinja"
    if is_there(file):
        templates[DEFAULT] = read_text(file, error=TokenizerError)
    else:
        templates |= _of_value(settings.get("chat_template"), directory / "tokenizer_config.json")
    folder = directory / "additional_chat_templates"
    for more in sorted(folder.glob("*.jinja")) if folder.is_dir() else []:
        templates[more.stem] = read_text(more, error=TokenizerError)
    file = directory / "chat_template.json"
    if not templates and is_there(file):
        value = read_json(file, error=TokenizerError)
        templates |= _of_value(value.get("chat_template") if isinstance(value, dict) else value, file)
    return templates


def _of_value(value: object, file: Path) -> dict[str, str]:
    """The value of a key "chat_template": a text, a list of {name, template}, or a dict of texts by name."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value} if value else {}
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        pairs = [(entry.get("name"), entry.get("template")) for entry in value]
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        pairs = [(None, None)]
    result: dict[str, str] = {}
    for name, template in pairs:
        if not isinstance(name, str) or not isinstance(template, str):
            raise TokenizerError(
                f"{file}: chat_template must be a text, or a list of objects with name and template", file, "chat_template"
            )
        if name in result:
            raise TokenizerError(f"{file}: chat_template has two templates named {name!r:.50}", file, "chat_template")
        result[name] = template
    return result


def of_gguf(metadata: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Templates by name: tokenizer.chat_template, and tokenizer.chat_template.NAME for each further one. Raises TokenizerError."""
    templates: dict[str, str] = {}
    for key, value in metadata.items():
        if key != GGUF_KEY and not key.startswith(GGUF_KEY + "."):
            continue
        if not isinstance(value, str):
            raise TokenizerError(f"{path}: {key}: a chat template is a string", path, key)
        if value:
            templates[key[len(GGUF_KEY) + 1 :] or DEFAULT] = value
    names = metadata.get("tokenizer.chat_templates")
    for name in names if isinstance(names, list) else []:
        if name not in templates:
            raise TokenizerError(
                f"{path}: tokenizer.chat_templates names {name!r:.50}, but the file has no {GGUF_KEY}.{name}",
                path,
                "tokenizer.chat_templates",
            )
    return templates


def choose(templates: Mapping[str, str], arguments: Mapping[str, Any], path: Path) -> str:
    """The template for a call with these arguments: "tool_use" for tools, "rag" for documents that the default does not use, else
    "default"."""
    if arguments.get("tools") is not None and "tool_use" in templates:
        return templates["tool_use"]
    default = templates.get(DEFAULT)
    if arguments.get("documents") is not None and "rag" in templates and (default is None or "documents" not in default):
        return templates["rag"]
    if default is not None:
        return default
    if templates:
        raise ChatTemplateError(
            f"{path}: the model has several chat templates and no default: give chat_template=, one of {sorted(templates)}", path
        )
    raise ChatTemplateError(f"{path}: the model has no chat template; give chat_template=, or use generate()", path)


def with_tools_named(template: str, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments, with `tools` under the name that a template has for it: SmolLM3's reads `xml_tools` alone."""
    if kwargs.get("tools") is None or "xml_tools" in kwargs or "xml_tools" not in template or _TOOLS.search(template):
        return kwargs
    return {("xml_tools" if name == "tools" else name): value for name, value in kwargs.items()}


def given_template(given: object, templates: Mapping[str, str]) -> str:
    """The text of a template that a user gave: a name of one of the model's, a file, or the text itself. Raises ChatTemplateError."""
    if isinstance(given, os.PathLike):
        return _of_file(Path(given))
    if not isinstance(given, str):
        raise ChatTemplateError(f"chat_template must be a template, the path of a file with one, or a name, not {type(given).__name__}")
    if given in templates:
        return templates[given]
    if _TAG.search(given) or "\n" in given:
        return given
    if len(given) < 4096 and "\0" not in given and Path(given).is_file():
        return _of_file(Path(given))
    if given.lower().endswith(_FILE_ENDINGS) or "/" in given or os.sep in given:
        raise ChatTemplateError(f"chat_template={given!r:.200} looks like a path, but there is no such file")
    if not given.strip():
        raise ChatTemplateError("chat_template is empty")
    return given  # a text that is the same for all chats: what it does not use is named when it is rendered


def _of_file(path: Path) -> str:
    if path.suffix.lower() == ".json":
        templates = _of_value_or_error(path)
        if DEFAULT not in templates:
            raise ChatTemplateError(f"{path}: it has no chat_template", path)
        return templates[DEFAULT]
    return read_text(path, error=ChatTemplateError)


def _of_value_or_error(path: Path) -> dict[str, str]:
    value = read_json(path, error=ChatTemplateError)
    try:
        return _of_value(value.get("chat_template") if isinstance(value, dict) else None, path)
    except TokenizerError as error:
        raise ChatTemplateError(str(error), path) from None
