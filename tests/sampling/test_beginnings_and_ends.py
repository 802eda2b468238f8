"""Which tokens begin a prompt, once and never twice, and which end a turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmi.text.end_markers import END_MARKERS, ends
from test_vocabulary_files import GGML, byte_level, gguf, read

BOS, BEGIN = 0, 1
CHAT = [{"role": "user", "content": "he <bos> x"}]
TEMPLATES = {
    "writes none": "<|a|>{{ messages[0].content }}",
    "writes one": "{{ bos_token }}<|a|>{{ messages[0].content }}",
    "writes its name": "<bos><|a|>{{ messages[0].content }}",
    "writes two": "{{ bos_token }}{{ bos_token }}<|a|>{{ messages[0].content }}",
    "writes it later": "<|a|>{{ bos_token }}{{ messages[0].content }}",
}


def vocabulary(path: Path, *names: str, **changes: Any) -> Path:
    """Bytes and a few control tokens, the first of which begins a text."""
    base = byte_level()[GGML + "tokens"][1:]
    specials = ["<bos>", "<|a|>", *names]
    types = [3] * len(specials) + [1] * len(base)
    ids = {"bos_token_id": ("u32", BOS), "eos_token_id": ("u32", 1)}
    return gguf(path, byte_level(tokens=specials + base, token_type=("i32", types), **{**ids, **changes}))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("wanted", [True, False])
def test_a_chat_begins_as_the_model_wants_it(name: str, wanted: bool, tmp_path: Path) -> None:
    """By the ids of each prompt: never two, and none only where none is due."""
    tokenizer, _ = read(vocabulary(tmp_path / "v.gguf", add_bos_token=("bool", wanted)))
    ids: Any = tokenizer.apply_chat_template(CHAT, chat_template=TEMPLATES[name])
    begins = [*ids, -1].index(BEGIN)
    written = {"writes one": 1, "writes its name": 1, "writes two": 2}.get(name, 0)
    assert ids[:begins] == [BOS] * (1 if wanted else written)
    assert ids.count(BOS) == begins + (name == "writes it later")  # the user's stays text
    assert tokenizer.decode(ids).endswith("he <bos> x")


def test_a_text_that_is_read_as_markup_begins_once(tmp_path: Path) -> None:
    tokenizer, _ = read(vocabulary(tmp_path / "v.gguf", add_bos_token=("bool", True)))
    plain = tokenizer.encode("he", add_special_tokens=False)
    for text in ("he", "<bos>he", "<bos><bos>he"):
        assert tokenizer.encode_prompt(text, parse_special=True) == [BOS, *plain]
    assert tokenizer.encode_prompt("<bos>he", parse_special=False)[:1] == [BOS]
    assert tokenizer.encode_prompt("<bos>he", parse_special=False).count(BOS) == 1


@pytest.mark.parametrize("text", END_MARKERS)
def test_each_text_that_ends_a_turn(text: str, tmp_path: Path) -> None:
    tokenizer, _ = read(vocabulary(tmp_path / "v.gguf", text))
    assert tokenizer.eos_token_ids == {1, 2}


def test_there_are_22_of_them() -> None:
    assert len(set(END_MARKERS)) == len(END_MARKERS) == 22


@pytest.mark.parametrize(
    ("texts", "ending"),
    [
        (["<|end|>", "<|return|>", "<|call|>"], ["<|return|>", "<|call|>"]),  # gpt-oss
        (["<|end|>", "<|flush|>", "<|calls|>"], ["<|flush|>", "<|calls|>"]),  # Solar
        (["<|end|>", "<|return|>"], ["<|end|>", "<|return|>"]),
        (["<|end|>", "<|endoftext|>"], ["<|end|>", "<|endoftext|>"]),  # Phi
        (["<eos>", "<turn|>", "<|tool_response>", "</s>"], ["<eos>", "<turn|>", "<|tool_response>"]),  # Gemma 4
        (["</s>", "<|plamo:eos|>"], []),
        (["</s>", "<unk>"], ["</s>"]),
        (["<|channel|>", "<|message|>", "<think>"], []),
    ],
)
def test_ends_beside_others(texts: list[str], ending: list[str]) -> None:
    assert [texts[token_id] for token_id in ends(dict(enumerate(texts)))] == ending
