"""What stands beside tokenizer.json: each key is used as transformers 4.57 uses it, changes nothing, or is named in one warning."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from llmi import Tokenizer, testing

VOCAB = 320  # of the model
SPECIALS = ("<s>", "</s>", "<unk>", "<bos>", "<eos>", "<|endoftext|>")
TEXTS = [
    "",
    "hi",
    " hi  you",
    "a<s>b</s>",
    "<s>",
    "x <extra> y",
    "x<extra>y",
    "<extra> <extra>",
    "EXTRA extra",
    "né\n\tz",
    "<s> </s> end",
    "▁a b",
]


def token(content: str, token_id: int | None = None, **flags: Any) -> dict[str, Any]:
    entry = {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags
    return entry if token_id is None else {"id": token_id, **entry}


def byte_level(vocab_size: int = 257) -> dict[str, Any]:
    """A byte-level tokenizer.json with six special tokens behind its bytes."""
    data: dict[str, Any] = testing._byte_tokenizer(vocab_size)
    for text in [text for text in SPECIALS if text not in data["model"]["vocab"]]:
        data["model"]["vocab"][text] = len(data["model"]["vocab"])
        data["added_tokens"].append(token(text, data["model"]["vocab"][text]))
    return data


def sentencepiece(*, metaspace: bool = False) -> dict[str, Any]:
    """One of SentencePiece's kind: with normalizers, or with the pre-tokenizer of newer files."""
    texts = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abehiouxyz<>/",
        "▁a",
        "hi",
        "▁hi",
        "<bos>",
        "<eos>",
        "<|endoftext|>",
    ]
    vocab = {text: index for index, text in enumerate(texts)}
    prefix = {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
    }
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    steps = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [token(text, vocab[text]) for text in SPECIALS],
        "normalizer": None if metaspace else prefix, "pre_tokenizer": space if metaspace else None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [*steps, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                  "byte_fallback": True, "ignore_merges": False, "vocab": vocab, "merges": ["▁ a", "h i", "▁ hi"]},
    }  # fmt: skip


def template(data: dict[str, Any], before: tuple[str, ...], after: tuple[str, ...]) -> dict[str, Any]:
    """The post-processor that wraps a text in these tokens."""
    vocab = data["model"]["vocab"]
    single: list[Any] = [{"SpecialToken": {"id": text, "type_id": 0}} for text in before]
    single += [{"Sequence": {"id": "A", "type_id": 0}}, *({"SpecialToken": {"id": text, "type_id": 0}} for text in after)]
    special = {text: {"id": text, "ids": [vocab[text]], "tokens": [text]} for text in before + after}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }


def write(
    directory: Path, data: Any, settings: Any = None, *, specials: Any = None, added: Any = None, generation: Any = None, **config: Any
) -> Path:
    """A model directory; None: the file is not there."""
    directory.mkdir(exist_ok=True)
    base = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None}
    files = {"tokenizer.json": data, "tokenizer_config.json": settings, "special_tokens_map.json": specials, "added_tokens.json": added,
             "generation_config.json": generation, "config.json": base | config}  # fmt: skip
    for name, value in files.items():
        if value is not None:
            (directory / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return directory


def load(directory: Path) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, and what was said about it."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        return Tokenizer(directory), [str(warning.message) for warning in seen]


# --- against transformers


def compare(directory: Path, name: str) -> None:
    from transformers import AutoTokenizer

    tokenizer, _ = load(directory)
    reference = AutoTokenizer.from_pretrained(directory)
    for text, around in itertools.product(TEXTS, (True, False)):
        for special in (True, False):
            expected = reference.encode(text, add_special_tokens=around, split_special_tokens=not special)
            ids = tokenizer.encode(text, add_special_tokens=around, parse_special=special)
            assert ids == expected, (name, text, around, special)
    if reference.bos_token_id is not None:
        assert tokenizer.bos_token_id == reference.bos_token_id, name
    if reference.eos_token_id is not None:
        assert reference.eos_token_id in tokenizer.eos_token_ids, name
    for token_id, added in reference.added_tokens_decoder.items():
        assert (token_id in tokenizer.special_tokens) == added.special, (name, added)


BASES = {"byte-level": byte_level, "sentencepiece": sentencepiece, "metaspace": lambda: sentencepiece(metaspace=True)}


@pytest.mark.parity
@pytest.mark.parametrize("base", BASES)
def test_wrapping_equals_transformers(base: str, tmp_path: Path) -> None:
    """Each class x each pair of flags x each post-processor."""
    wrappings: list[tuple[tuple[str, ...], tuple[str, ...]] | None] = [
        None,
        ((), ()),
        (("<s>",), ()),
        (("<s>", "<bos>"), ("</s>",)),
        ((), ("</s>",)),
    ]
    classes = [
        None,
        "PreTrainedTokenizerFast",
        "LlamaTokenizerFast",
        "LlamaTokenizer",
        "GemmaTokenizerFast",
        "GPT2TokenizerFast",
        "Qwen2Tokenizer",
        "GPTNeoXTokenizerFast",
    ]
    number = 0
    for kind, wrapping in itertools.product(classes, wrappings):
        for bos, eos in ((None, None), (True, False), (False, True), (False, False), (True, True)):
            if (bos, eos) != (None, None) and kind not in ("LlamaTokenizerFast", "PreTrainedTokenizerFast", "GemmaTokenizerFast"):
                continue
            data = BASES[base]()
            if wrapping is not None:
                data["post_processor"] = template(data, *wrapping)
            settings = {
                "tokenizer_class": kind,
                "add_bos_token": bos,
                "add_eos_token": eos,
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "<unk>",
            }
            given = {key: value for key, value in settings.items() if value is not None}
            if kind == "GemmaTokenizerFast":
                given |= {"pad_token": "<eos>"}
                del given["bos_token"]
            number += 1
            compare(write(tmp_path / str(number), data, given), f"{kind} {wrapping} {given}")


FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


@pytest.mark.parity
@pytest.mark.parametrize("base", BASES)
def test_added_tokens_equal_transformers(base: str, tmp_path: Path) -> None:
    """Tokens that stand beside tokenizer.json, with each of their flags, and those that its own settings change."""
    new = len(BASES[base]()["model"]["vocab"])
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    variants: list[dict[str, Any]] = []
    for flag in (*FLAGS, None):
        flags = dict.fromkeys(FLAGS, False) | ({flag: True} if flag else {})
        variants.append({"settings": plain | {"added_tokens_decoder": {str(new): token("<extra>", **flags)}}})
        variants.append(
            {
                "settings": plain
                | {
                    "added_tokens_decoder": {
                        str(new): token("<extra>", **flags),
                        "1": token(next(iter(t for t, i in BASES[base]()["model"]["vocab"].items() if i == 1)), **flags),
                    }
                }
            }
        )
        variants.append({"settings": plain, "specials": {"pad_token": token("<extra>", **flags)}})
    variants += [
        {"settings": plain, "added": {"<extra>": new}},
        {"settings": plain, "added": {"<extra>": new, "EXTRA": new + 1}},
        {"settings": plain, "added": {"<extra>": new}, "specials": {"additional_special_tokens": ["<extra>"]}},
        {"settings": plain | {"additional_special_tokens": ["<extra>", "extra"]}},
        {"settings": plain | {"extra_special_tokens": {"image_token": "<extra>"}}},
        {"settings": plain | {"pad_token": "<extra>"}},
        {"settings": plain | {"unk_token": "a"}},
        {"settings": plain, "specials": {"bos_token": "<bos>", "eos_token": {"content": "<eos>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}}},
        {"settings": plain | {"added_tokens_decoder": {}}, "specials": {"bos_token": "<bos>"}},
        {"settings": plain | {"bos_token": {"__type": "AddedToken", **token("<bos>")}}},
        {"settings": plain | {"add_prefix_space": True}},
        {"settings": plain | {"add_prefix_space": False}},
        {"settings": plain | {"add_prefix_space": True}, "change": True},
        {"settings": plain, "change": True},
        {"settings": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}},
        {"settings": {"tokenizer_class": "LlamaTokenizerFast", "legacy": False}, "change": True},
        {"settings": plain | {"clean_up_tokenization_spaces": True, "legacy": True, "model_max_length": 4, "padding_side": "left", "truncation_side": "left"}},
        {"settings": None},
        {"settings": {}},
    ]  # fmt: skip
    for number, variant in enumerate(variants):
        data = BASES[base]()
        if variant.pop("change", False) and base == "byte-level":
            data["pre_tokenizer"]["add_prefix_space"] = True
        compare(write(tmp_path / str(number), data, **variant), str(variant))
