"""What transformers 5.24 writes for the templates of test_chat_templates.py. To write the file anew, where it is installed:

PYTHONPATH=tests/support:tests/chat python tests/support/recorded_templates.py
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "data" / "chat_templates.json"
Case = tuple[str, list[dict[str, Any]], dict[str, Any]]  # template, messages, arguments


def recorded(template: str, messages: list[dict[str, Any]], arguments: dict[str, Any]) -> str:
    """Its text. KeyError if the case has changed: then the file is to be written anew."""
    return _read()[_key(template, messages, arguments)]


def _key(*case: Any) -> str:
    return hashlib.sha256(json.dumps(case).encode()).hexdigest()[:16]


@functools.cache
def _read() -> dict[str, str]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    from template_parity import reference
    from test_chat_templates import CASES

    FILE.write_text(json.dumps({_key(*case): reference(*case) for case in CASES}, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
