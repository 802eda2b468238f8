"""A folder's tokenizer as GGUF's entries: read again, it is the folder's; what GGUF cannot say is refused by name."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from llmi import Tokenizer, TokenizerError
from llmi.base.gguf_entries import named
from llmi.testing.tiny import byte_tokenizer
from llmi.text import sentencepiece_model
from llmi.text.gguf_pre_tokenizers import DEFAULT, GPT2_SPLIT, GROUPS, LLAMA3_SPLIT, O200K_SPLIT, RULES
from llmi.text.to_gguf import gguf_entries
from llmi.text.token_bytes import BYTE_TOKENS
from test_vocabulary_directories import SENTENCEPIECE
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
    if tokenizer._loaded.listed.adds_space and "decoders" in data["decoder"]:
        data["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
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
    assert made.chat_template == folder.chat_template
    ids = [token_id for token_id, text in enumerate(folder._loaded.listed.texts) if text]
    assert [made.vocab_bytes[i] for i in ids] == [folder.vocab_bytes[i] for i in ids]


@pytest.mark.parametrize("name", SLICES)
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


@pytest.mark.parametrize("name", [name for name in SENTENCEPIECE if name != "unigram"])
def test_tokenizer_model_comes_back(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(base64.b64decode(SENTENCEPIECE[name]["model"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    (tmp_path / "config.json").write_text("{}")
    made = back(tmp_path, num_rows=500)
    assert_same(made, Tokenizer(tmp_path), [*CORPUS, *(text for text, _ in SENTENCEPIECE[name]["ids"])])
    assert made.vocab_size == 500


SQUEEZED = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
RIGHT = {"type": "Strip", "strip_left": False, "strip_right": True}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


@pytest.mark.parametrize(
    ("normalizers", "pre_tokenizers"),
    [([], [{"type": "WhitespaceSplit"}, METASPACE]), ([RIGHT, SQUEEZED], [METASPACE])],
    ids=["words, then marks", "marks"],
)
def test_unigrams_of_a_tokenizer_json(normalizers: list[dict[str, Any]], pre_tokenizers: list[dict[str, Any]], tmp_path: Path) -> None:
    """The forms of XLM-R's and T5's."""
    (tmp_path / "tokenizer.model").write_bytes(base64.b64decode(SENTENCEPIECE["unigram with a map"]["model"]))
    data = sentencepiece_model.as_tokenizer_json(
        sentencepiece_model.parse((tmp_path / "tokenizer.model").read_bytes(), tmp_path), tmp_path, True, None
    )
    data["normalizer"] = {"type": "Sequence", "normalizers": [data["normalizer"]["normalizers"][0], *normalizers]}
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": pre_tokenizers}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    assert_same(back(tmp_path, num_rows=500), Tokenizer(tmp_path), CORPUS)
    assert gguf_entries(tmp_path)["tokenizer.ggml.precompiled_charsmap"][:8] == pack("<II", 9, 0)  # llama.cpp reads bytes alone
    del data["normalizer"]["normalizers"][0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match="normalizer"):
        gguf_entries(tmp_path)


Change = Callable[[dict[str, Any]], None]


def added(**flags: Any) -> Change:
    """A token behind all others."""
    token = {"id": 300, "content": "<tool>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return lambda data: data["added_tokens"].append(token | flags)


def pre(*steps: dict[str, Any]) -> Change:
    return lambda data: data.update(pre_tokenizer={"type": "Sequence", "pretokenizers": list(steps)})


def model(**fields: Any) -> Change:
    return lambda data: data["model"].update(fields)


def whole_word(data: dict[str, Any], ignore_merges: bool) -> None:
    """A token that no merges make."""
    data["model"]["vocab"]["hello"] = 260
    data["model"]["ignore_merges"] = ignore_merges


def lowercased(data: dict[str, Any]) -> None:
    data["normalizer"] = {"type": "Lowercase"}


def split(expression: str, **more: Any) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False} | more


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
WORDS = BYTES | {"use_regex": True}
EACH_DIGIT = {"type": "Digits", "individual_digits": True}
HAN = "[一-龥぀-ゟ゠-ヿ]+"
SAID: dict[str, tuple[Change, str]] = {
    "digits": (pre(EACH_DIGIT, WORDS), "smollm"),
    "nested": (pre({"type": "Sequence", "pretokenizers": [EACH_DIGIT]}, WORDS), "smollm"),
    "lines as they are": (pre(split(LLAMA3_SPLIT.replace(r"\r", "\r").replace(r"\n", "\n")), BYTES), "llama-bpe"),
    "characters as they are": (pre(*map(split, (r"\p{N}{1,3}", HAN, RULES["deepseek-v3"].splits[2])), BYTES), "deepseek-v3"),
    "whole words, without effect": (lambda data: (pre(split(O200K_SPLIT), BYTES)(data), model(ignore_merges=True)(data)), "gpt-4o"),
    "whole words": (lambda data: (pre(split(O200K_SPLIT), BYTES)(data), whole_word(data, True)), "granite-embed-multi-97m"),
    "merges of whole words": (lambda data: (pre(split(LLAMA3_SPLIT), BYTES)(data), whole_word(data, False)), "dbrx"),
    "gap": (lambda data: (pre(WORDS)(data), added(id=310)(data)), "gpt-2"),
    "normalized without a normalizer": (lambda data: (pre(WORDS)(data), added(normalized=True, special=False)(data)), "gpt-2"),
}
REFUSED: dict[str, tuple[Change, str]] = {
    "no name": (pre(split("[a-z]+"), BYTES), r"pre_tokenizer: no name of tokenizer\.ggml\.pre cuts words as .*\[a-z\]\+"),
    "llama.cpp's default": (pre(*map(split, DEFAULT.splits), BYTES), "pre_tokenizer: no name"),
    "words are not cut": (pre(BYTES), "pre_tokenizer"),
    "prefix space": (pre(WORDS | {"add_prefix_space": True}), "pre_tokenizer.*add_prefix_space"),
    "removed": (pre(split(GPT2_SPLIT, behavior="Removed"), BYTES), "pre_tokenizer.*Removed"),
    "lower case": (lowercased, "pre_tokenizer.*Lowercase"),
    "composed": (lambda data: (pre(WORDS)(data), data.update(normalizer={"type": "NFC"})), "pre_tokenizer.*NFC"),
    "normalized": (lambda data: (lowercased(data), added(normalized=True)(data)), "added_tokens: '<tool>' has normalized"),
    "lstrip": (added(lstrip=True), "added_tokens: '<tool>' has lstrip"),
    "rstrip": (added(rstrip=True), "added_tokens: '<tool>' has rstrip"),
    "single word": (added(single_word=True), "added_tokens: '<tool>' has single_word"),
    "two around a text": (lambda data: (pre(WORDS)(data), data.update(post_processor=around(0, 1))), "post_processor"),
}


def around(*ids: int) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"SpecialToken": {"id": str(i), "type_id": 0}} for i in ids]
    special = {str(i): {"id": str(i), "ids": [i], "tokens": ["x"]} for i in ids}
    return {
        "type": "TemplateProcessing",
        "single": [*parts, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": special,
    }


def changed(path: Path, change: Change) -> Path:
    """A folder with a vocabulary of bytes and three merges."""
    data = byte_tokenizer(257)
    letters = {"th": ("t", "h"), "the": ("th", "e"), "Ġthe": ("Ġ", "the")}
    data["model"]["vocab"] |= {whole: 257 + place for place, whole in enumerate(letters)}
    data["model"]["merges"] = [list(pair) for pair in letters.values()]
    change(data)
    data["model"]["vocab"] |= {token["content"]: token["id"] for token in data["added_tokens"]}  # else the library chooses the ids
    (path / "tokenizer.json").write_text(json.dumps(data))
    (path / "config.json").write_text(json.dumps({"eos_token_id": 0}))
    return path


@pytest.mark.parametrize("name", SAID)
def test_what_gguf_says_in_another_way(name: str, tmp_path: Path) -> None:
    change, pre_tokenizer = SAID[name]
    folder = changed(tmp_path, change)
    assert gguf_entries(folder)["tokenizer.ggml.pre"][12:].decode() == pre_tokenizer
    assert_same(back(folder), Tokenizer(folder), CORPUS)


@pytest.mark.parametrize("name", REFUSED)
def test_what_gguf_cannot_say_is_refused(name: str, tmp_path: Path) -> None:
    change, problem = REFUSED[name]
    with pytest.raises(TokenizerError, match=problem):
        gguf_entries(changed(tmp_path, change))


def spelled(path: Path, normalizer: Any, pre_tokenizer: Any, merges: list[str]) -> Path:
    """A vocabulary of SentencePiece's kind, of a few letters, with bytes."""
    texts = ["<unk>", *BYTE_TOKENS, *"▁abc", *("".join(merge.split()) for merge in merges)]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if normalizer["type"] == "Sequence" else []
    data = byte_tokenizer(1) | {
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": {"type": "Sequence", "decoders": [MARKED, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "added_tokens": [],
    }
    vocab = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    data["model"] |= {"vocab": vocab, "merges": merges, "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps(data))
    (path / "config.json").write_text("{}")
    return path


MARKED = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPENDED = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, MARK]}
AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
MERGES = ["a b", "▁ ab", "a a", "aa a", "a aa", "ab c"]


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "merges", "kind"),
    [
        (PREPENDED, None, MERGES, "llama"),
        (MARK, AT_SPACES, MERGES, "llama"),
        (MARK, AT_SPACES, [*MERGES[:4], "ab c", "a aa"], "gemma4"),  # the two ways to one text are apart: no scores say so
        (MARK, AT_SPACES, MERGES[:4], "gemma4"),  # one of the two ways alone
    ],
    ids=["Llama", "Gemma", "apart", "one way"],
)
def test_merges_become_scores_where_they_can(normalizer: Any, pre_tokenizer: Any, merges: list[str], kind: str, tmp_path: Path) -> None:
    folder = spelled(tmp_path / "m", normalizer, pre_tokenizer, merges)
    assert gguf_entries(folder)["tokenizer.ggml.model"][12:].decode() == kind
    assert_same(back(folder), Tokenizer(folder), [*CORPUS, "aaaaaaa abab  abcaaa"])


def test_a_space_in_front_of_the_first_text_alone_is_refused(tmp_path: Path) -> None:
    first = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    with pytest.raises(TokenizerError, match=r"normalizer: .*prepend_scheme.*first.*marks spaces in another way"):
        gguf_entries(spelled(tmp_path / "m", PREPENDED["normalizers"][1], first, MERGES))


def test_what_every_gguf_file_changes_is_named(tmp_path: Path) -> None:
    """Tokens that look like markup, and ends of a turn."""

    def change(data: dict[str, Any]) -> None:
        pre(WORDS)(data)
        added(id=300, content="<|fim|>", special=False)(data)
        added(id=301, content="<|im_end|>")(data)

    with pytest.warns(UserWarning, match=r"take <\|fim\|> for control tokens.*; .*also end a text at <\|im_end\|>"):
        made = back(changed(tmp_path, change))
    assert made.eos_token_ids == {0, 301} and made.special_tokens == {0: "<eos>", 300: "<|fim|>", 301: "<|im_end|>"}


def test_rows_ends_and_templates(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        pre(WORDS)(data)
        added(content="<stop>")(data)
        added(id=301, content="<|im_end|>")(data)

    folder = changed(tmp_path, change)
    with pytest.raises(TokenizerError, match="the tokenizer has 302 ids, and the model's embedding 300 rows"):
        gguf_entries(folder, num_rows=300)
    (folder / "config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": [0, 301, 300]}))
    templates = [{"name": "default", "template": "{{ bos_token }}a"}, {"name": "tool_use", "template": "b"}]
    settings: dict[str, Any] = {"chat_template": templates, "bos_token": "<eos>", "pad_token": "<stop>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    made = back(folder, num_rows=400)
    assert made._loaded.chat_templates == {"default": "{{ bos_token }}a", "tool_use": "b"} and made.eos_token_ids == {0, 300, 301}
    assert (
        made.vocab_bytes[399] == b"[PAD399]" and made.decode(made.encode("[PAD399]")) == "[PAD399]" and 399 not in made.encode("[PAD399]")
    )
    entries = gguf_entries(folder)
    assert [entries[f"tokenizer.ggml.{name}_token_id"][4:] for name in ("eos", "eot", "padding")] == [pack("<I", i) for i in (0, 300, 300)]
    templates[1]["template"] = "{{ pad_token }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(TokenizerError, match=r"special tokens of the chat template: .*pad_token"):
        gguf_entries(folder)
