"""How a text is written into a grammar."""

from __future__ import annotations

import json


def literal(text: str) -> str:
    """A text as Lark writes it: JSON's form, and DEL, which JSON may hold raw and Lark may not."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
