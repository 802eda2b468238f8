"""Calls of Hermes, Qwen 2.5, Qwen 3, SmolLM3 and others: <tool_call>, a line of JSON, </tool_call>."""

from __future__ import annotations

import re

from llmi.tools.form import ToolFormat, json_call, read_json

KEYS = {"name": "name", "arguments": "arguments", "parameters": "arguments"}

HERMES = ToolFormat(
    name="hermes",
    opens="<tool_call>",
    closes="</tool_call>",
    between="\n",
    knows=lambda template: "<tool_call>" in template and re.search(r"<function=|<arg_key>", template) is None,
    call=json_call("name", "arguments", "\n", "\n"),
    read=lambda body, names: read_json(body, names, KEYS),
)
