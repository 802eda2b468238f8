"""Calls of Llama 3.1 to 3.3: the answer is one JSON object {"name": ..., "parameters": ...}. The templates refuse several calls."""

from __future__ import annotations

import json

from llmi.tools.form import ToolFormat, json_call, read_json
from llmi.tools.hermes import KEYS

LLAMA = ToolFormat(
    name="llama3_json",
    opens="",
    closes="",
    several=False,
    knows=lambda template: '{"name": function name, "parameters": dictionary of argument name and its value}' in template,
    call=json_call("name", "parameters"),
    read=lambda body, names: read_json(body, names, KEYS),
    beginnings=lambda name: (f'{{"name": {json.dumps(name)},',),
)
