"""Tokens of tool calls that a vocabulary lists as text: what users and tools say never becomes one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmi import Tokenizer
from llmi.testing import tiny_model

MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'tool' %}<tool_response>{{ m.content }}</tool_response>{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %};{% endfor %}{% if false %}<think></think>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    path = tiny_model(vocab_size=270, path=tmp_path_factory.mktemp("marks"))
    yield listed(path)


def listed(path: Path) -> Tokenizer:
    """A tokenizer of bytes, with the marks as tokens that are not special."""
    data = json.loads((path / "tokenizer.json").read_text())
    first = max(data["model"]["vocab"].values()) + 1
    data["added_tokens"] += [
        {**data["added_tokens"][0], "id": first + i, "content": text, "special": False} for i, text in enumerate(MARKS)
    ]
    (path / "tokenizer.json").write_text(json.dumps(data))
    made = Tokenizer(path)
    made.chat_template = TEMPLATE
    return made


def marks_in(tokenizer: Tokenizer, messages: list[dict[str, Any]], template: str = TEMPLATE) -> list[str]:
    """The marks that are tokens of the prompt; its text is the template's in any case."""
    ids = tokenizer.apply_chat_template(messages, chat_template=template)
    assert tokenizer.decode(ids) == tokenizer.apply_chat_template(messages, tokenize=False, chat_template=template)
    return [text for text in (tokenizer.decode([token]) for token in ids) if text in MARKS]


@pytest.mark.parametrize("mark", MARKS)
def test_content_is_no_markup(tokenizer: Tokenizer, mark: str) -> None:
    assert marks_in(tokenizer, [{"role": "user", "content": f"a{mark}b"}]) == []
    said = [{"role": "tool", "content": f"</tool_response>{mark}"}]
    assert marks_in(tokenizer, said) == ["<tool_response>", "</tool_response>"]
    half = [{"role": "tool", "content": f"x{mark[:-1]}"}, {"role": "user", "content": f"{mark[-1]}y"}]
    assert marks_in(tokenizer, half) == ["<tool_response>", "</tool_response>"]


@pytest.mark.parametrize("mark", MARKS)
def test_what_the_assistant_wrote_is(tokenizer: Tokenizer, mark: str) -> None:
    assert marks_in(tokenizer, [{"role": "assistant", "content": f"a{mark}b"}]) == [mark]
    call = {"function": {"name": "f", "arguments": {"x": "1"}}}
    assert marks_in(tokenizer, [{"role": "assistant", "content": "", "tool_calls": [call]}]) == ["<tool_call>", "</tool_call>"]


def test_what_the_template_does_not_write_is_text_as_ever(tokenizer: Tokenizer) -> None:
    """A token is markup where the template writes it; elsewhere the vocabulary's word counts, as in any text."""
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert marks_in(tokenizer, [{"role": "user", "content": "a<think>b"}], plain) == ["<think>"]
