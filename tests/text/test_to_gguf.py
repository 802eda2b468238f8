"""A folder's tokenizer as GGUF's entries: read again, it is the folder's; what GGUF cannot say is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmi import Tokenizer
from llmi.base.gguf_entries import named
from llmi.testing.tiny import byte_tokenizer
from llmi.text.gguf_pre_tokenizers import GROUPS, RULES
from llmi.text.to_gguf import gguf_entries
from test_vocabulary_files import byte_level, gguf
from test_vocabulary_slices import SLICES, written

CORPUS: list[str] = json.loads((Path(__file__).parents[1] / "data" / "tokenizer_corpus.json").read_text())


def back(folder: Path, num_rows: int | None = None) -> Tokenizer:
    """What the entries of a folder are to llmi."""
    entries = gguf_entries(folder, num_rows=num_rows)
    head = b"GGUF\x03\0\0\0" + bytes(8) + len(entries).to_bytes(8, "little")
    (folder / "made.gguf").write_bytes(head + b"".join(named(name) + entry for name, entry in entries.items()))
    return Tokenizer(folder / "made.gguf")


def folder_of(path: Path, tokenizer: Tokenizer) -> Path:
    """A GGUF file's tokenizer as Hugging Face's files."""
    data = json.loads(tokenizer._loaded.build().to_str())
    texts = tokenizer._loaded.listed.texts
    parts = [*tokenizer._loaded.prefix, "A", *tokenizer._loaded.suffix]
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}} if i == "A" else {"SpecialToken": {"id": str(i), "type_id": 0}} for i in parts],
        "pair": [],
        "special_tokens": {str(i): {"id": str(i), "ids": [i], "tokens": [texts[i]]} for i in parts if i != "A"},
    }
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps(data))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ bos_token }}x"})
    )
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": sorted(tokenizer.eos_token_ids)}
    (path / "config.json").write_text(json.dumps({"vocab_size": len(texts), "model_type": "none", **ids}))
    return path


def assert_same(made: Tokenizer, folder: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        for special in (False, True):
            ids = folder.encode(text, parse_special=special)
            assert made.encode(text, parse_special=special) == ids, text
            assert made.decode(ids) == folder.decode(ids)
    assert (made.bos_token_id, made.eos_token_ids, made.special_tokens) == (
        folder.bos_token_id,
        folder.eos_token_ids,
        folder.special_tokens,
    )
    assert made.vocab_bytes[: folder.vocab_size] == folder.vocab_bytes and made.chat_template == folder.chat_template


@pytest.mark.parametrize("name", [name for name, entry in SLICES.items() if entry["vocabulary"]["model"] == "gpt2"])
def test_a_real_vocabulary_comes_back(name: str, tmp_path: Path) -> None:
    source = Tokenizer(written(tmp_path / "v.gguf", SLICES[name]["vocabulary"]))
    folder = folder_of(tmp_path / "m", source)
    assert_same(back(folder), Tokenizer(folder), [*CORPUS, *(text for text, _ in SLICES[name]["cases"])])


@pytest.mark.parametrize("names", [names for names, rule in GROUPS if rule.byte_level and names != "default"])
def test_each_way_to_cut_words_is_found(names: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", Tokenizer(gguf(tmp_path / "v.gguf", byte_level(pre=names.split()[0]))))
    name = gguf_entries(folder)["tokenizer.ggml.pre"][12:].decode()
    assert RULES[name].splits == RULES[names.split()[0]].splits and RULES[name].compose == RULES[names.split()[0]].compose


@pytest.mark.parametrize("vocab_size", [100, 256, 257, 300])
def test_tiny_models_have_bytes(vocab_size: int, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_tokenizer(vocab_size)))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    made = back(tmp_path, num_rows=512)
    assert_same(made, Tokenizer(tmp_path), CORPUS)
    assert made.vocab_size == 512
