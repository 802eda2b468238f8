"""Chat templates: jinja2 in its immutable sandbox, with limits. The one place that renders a template."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import secrets
import time
from pathlib import Path
from typing import Any

from llmi._errors import ChatTemplateError

MAX_TEMPLATE_BYTES = 256 << 10
MAX_OUTPUT_CHARS = 8 << 20
MAX_SEQUENCE = 1_000_000
MAX_RENDER_S = 5.0
ALLOWED_KWARGS = frozenset(
    {"tools", "documents", "enable_thinking", "date_string", "thinking", "reasoning_effort", "continue_final_message"}
)


@dataclasses.dataclass
class SpecialTokens:
    """Texts that templates refer to."""

    bos: str
    eos: str


@dataclasses.dataclass
class Rendered:
    """The prompt's text, and its pieces: (text, whether special tokens in it are meant)."""

    text: str
    pieces: list[tuple[str, bool]]


@functools.cache
def _environment() -> Any:
    from jinja2 import ext
    from jinja2.exceptions import SecurityError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "*":
                for sequence, count in ((left, right), (right, left)):
                    if hasattr(sequence, "__len__") and isinstance(count, int) and len(sequence) * count > MAX_SEQUENCE:
                        raise SecurityError("a repeated sequence is too long")
            if operator == "**" and (not isinstance(right, int | float) or abs(right) > 1000):
                raise SecurityError("an exponent is too large")
            if operator == "%" and isinstance(left, str) and re.search(r"\d{4,}", left):
                raise SecurityError("a format is too wide")
            return super().call_binop(context, operator, left, right)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols])

    def raise_exception(message: str) -> None:
        raise ChatTemplateError(f"the chat template refuses these messages: {message}")

    def tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment.filters["tojson"] = tojson
    for name in ("center", "indent", "format", "filesizeformat"):  # filters that widen text without bound
        environment.filters.pop(name, None)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda text: time.strftime(text)
    return environment


@functools.lru_cache(maxsize=32)
def _compile(template: str) -> Any:
    return _environment().from_string(template)


def _validate(messages: list[dict[str, Any]]) -> None:
    if not isinstance(messages, list) or not messages:
        raise ChatTemplateError("a chat is a list of at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(f"a message is a dict with 'role' and 'content', not {message!r:.100}")


def _protect(value: Any, pattern: re.Pattern[str] | None, nonce: str, held: list[str]) -> Any:
    """`value` with every special-token string inside it replaced by a marker."""
    if pattern is None:
        return value
    if isinstance(value, str):

        def hold(match: re.Match[str]) -> str:
            held.append(match.group())
            return f"\ue000{nonce}{len(held) - 1:06d}\ue001"

        return pattern.sub(hold, value)
    if isinstance(value, list):
        return [_protect(entry, pattern, nonce, held) for entry in value]
    if isinstance(value, dict):
        return {key: _protect(entry, pattern, nonce, held) for key, entry in value.items()}
    return value


def render(
    template: str | None,
    messages: list[dict[str, Any]],
    specials: SpecialTokens,
    special_texts: list[str],
    add_generation_prompt: bool,
    kwargs: dict[str, Any],
    path: Path,
) -> Rendered:
    """Renders `messages`; what looks like a special token inside them is kept apart as text."""
    from jinja2 import TemplateError

    if not template:
        raise ChatTemplateError(f"{path}: the model has no chat template; give chat_template=, or use generate()", path)
    if len(template.encode()) > MAX_TEMPLATE_BYTES:
        raise ChatTemplateError(f"{path}: the chat template has more than {MAX_TEMPLATE_BYTES:,} bytes", path)
    unknown = sorted(set(kwargs) - ALLOWED_KWARGS)
    if unknown:
        raise ChatTemplateError(f"chat template arguments {unknown} are not allowed ({sorted(ALLOWED_KWARGS)} are)")
    _validate(messages)
    continue_final = bool(kwargs.pop("continue_final_message", False)) if kwargs else False
    held: list[str] = []
    nonce = str(10**11 + secrets.randbelow(9 * 10**11))
    texts = [re.escape(text) for text in sorted(special_texts, key=len, reverse=True) if text]
    pattern = re.compile("|".join(texts)) if texts else None
    safe_messages = [
        {key: value if key == "role" else _protect(value, pattern, nonce, held) for key, value in message.items()} for message in messages
    ]
    end_marker = ""
    if continue_final:
        if not isinstance(safe_messages[-1].get("content"), str):
            raise ChatTemplateError("continue_final_message needs a last message with text")
        end_marker = f"\ue000{nonce}end\ue001"
        safe_messages[-1] = {**safe_messages[-1], "content": safe_messages[-1]["content"].rstrip() + end_marker}
    try:
        stream = _compile(template).generate(
            messages=safe_messages, add_generation_prompt=add_generation_prompt, bos_token=specials.bos, eos_token=specials.eos, **kwargs
        )
        chunks: list[str] = []
        size = 0
        deadline = time.monotonic() + MAX_RENDER_S
        for chunk in stream:
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_OUTPUT_CHARS or time.monotonic() > deadline:
                raise ChatTemplateError(
                    f"{path}: the chat template writes more than {MAX_OUTPUT_CHARS:,} characters or takes over {MAX_RENDER_S} s", path
                )
    except ChatTemplateError:
        raise
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise ChatTemplateError(f"{path}: the chat template failed: {error}", path) from None
    text = "".join(chunks)
    if end_marker:
        cut = text.rfind(end_marker)
        if cut < 0:
            raise ChatTemplateError("the chat template drops the last message, so it cannot be continued")
        text = text[:cut]
    pieces: list[tuple[str, bool]] = []
    plain: list[str] = []
    position = 0
    for match in re.finditer(f"\ue000{nonce}(\\d{{6}})\ue001", text):
        pieces.append((text[position : match.start()], True))
        pieces.append((held[int(match.group(1))], False))
        plain += [text[position : match.start()], held[int(match.group(1))]]
        position = match.end()
    pieces.append((text[position:], True))
    plain.append(text[position:])
    return Rendered("".join(plain), [piece for piece in pieces if piece[0]])
