"""Vocabularies from hostile, odd and hasty files: read as the format means them, or refused by name, in little time and memory."""

from __future__ import annotations

import copy
import json
import pickle
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmi import LlmiError, Tokenizer, TokenizerError
from llmi.testing.tiny import byte_tokenizer
from llmi.text.gguf_pre_tokenizers import GROUPS, RULES
from llmi.text.gguf_tokenizer import ID_KEYS
from llmi.text.regex_guard import fault
from llmi.text.token_bytes import byte_level_alphabet

# --- GGUF

KINDS = {
    "u8": (0, "B"),
    "i8": (1, "b"),
    "u16": (2, "H"),
    "u32": (4, "I"),
    "i32": (5, "i"),
    "f32": (6, "f"),
    "bool": (7, "?"),
    "u64": (10, "Q"),
    "i64": (11, "q"),
}
GGML = "tokenizer.ggml."


def string(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(value: Any) -> bytes:
    """A string, a list of strings, or (type, number or list of numbers)."""
    if isinstance(value, str | bytes):
        return struct.pack("<I", 8) + string(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(string, value))
    kind, numbers = value
    number, code = KINDS[kind]
    if isinstance(numbers, list):
        return struct.pack("<IIQ", 9, number, len(numbers)) + struct.pack(f"<{len(numbers)}{code}", *numbers)
    return struct.pack("<I", number) + struct.pack("<" + code, numbers)


def gguf(path: Path, metadata: dict[str, Any]) -> Path:
    entries = b"".join(string(key) + value_bytes(value) for key, value in metadata.items() if value is not None)
    count = sum(value is not None for value in metadata.values())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, count) + entries)
    return path


def byte_level(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary; names without their prefix."""
    letters = [letter for letter, _ in sorted(byte_level_alphabet().items(), key=lambda item: item[1])]
    tokens = ["<|endoftext|>", *letters, "he", "ll", "llo", "hello", "Ġw", "12", "123"]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": ("i32", [3] + [1] * (len(tokens) - 1)),
        "eos_token_id": ("u32", 0),
        "merges": ["h e", "l l", "ll o", "he llo", "Ġ w", "1 2", "12 3"],
    } | changes
    return {GGML + name: value for name, value in metadata.items()}


def sentencepiece(**changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "token_type": ("i32", [2, 3, 3] + [6] * 256 + [1] * 10),
        "scores": ("f32", [0.0] * 259 + [-float(i) for i in (1, 2, 3, 4, 5, 20, 19, 18, 17, 16)]),
    } | changes
    return {GGML + name: value for name, value in metadata.items()}


def read(path: Path) -> tuple[Tokenizer, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        tokenizer = Tokenizer(path)
        tokenizer.encode("he hello 123 </s>" * 3, parse_special=True)
        return tokenizer, [str(warning.message) for warning in seen]


NUMBER, LIST_OF_NUMBERS, LIST_OF_FLOATS = ("u32", 1), ("i32", [1, 1]), ("f32", [0.5, 0.5])
VALUES: dict[str, Any] = {
    "string": "x",
    "strings": ["x"],
    "number": NUMBER,
    "negative": ("i32", -1),
    "large": ("u64", 2**40),
    "float": ("f32", 1.0),
    "bool": ("bool", True),
    "numbers": LIST_OF_NUMBERS,
    "floats": LIST_OF_FLOATS,
    "bools": ("bool", [True, False]),
    "none": [],
    "no numbers": ("i32", []),
}
FLAGS = (
    "add_bos_token",
    "add_eos_token",
    "add_space_prefix",
    "remove_extra_whitespaces",
    "normalizer.lowercase",
    "normalizer.strip_accents",
)
RIGHT = {
    **{name: {"bool"} for name in FLAGS},
    **{f"{name}_token_id": {"number"} for name in ID_KEYS},
    "eos_token_ids": {"numbers", "no numbers", "none"},
    "merges": {"none"},
}


@pytest.mark.parametrize("base", [byte_level, sentencepiece])
def test_each_key_of_each_wrong_type_is_refused(base: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    keys = [
        "model",
        "tokens",
        "token_type",
        "scores" if base is sentencepiece else "merges",
        *FLAGS,
        *(f"{name}_token_id" for name in ID_KEYS),
        "eos_token_ids",
    ]
    keys += ["pre"] if base is byte_level else []
    for key in keys:
        for name, value in VALUES.items():
            path = gguf(tmp_path / "v.gguf", base(**{"bos_token_id": ("u32", 1), "eos_token_id": ("u32", 2), key: value}))
            if name in RIGHT.get(key, ()):
                read(path)
                continue
            with pytest.raises(LlmiError) as caught:
                read(path)
                pytest.fail(f"{key}: {name} is accepted")
            assert key.split("_token")[0] in str(caught.value) or "merge" in str(caught.value), (key, name, caught.value)


def test_lists_of_other_lengths_and_odd_texts(tmp_path: Path) -> None:
    tokens = byte_level()[GGML + "tokens"]
    types = [3] + [1] * (len(tokens) - 1)
    tries = {
        "types short": byte_level(token_type=("i32", types[1:])),
        "types long": byte_level(token_type=("i32", [*types, 1])),
        "type 7": byte_level(token_type=("i32", [7, *types[1:]])),
        "type -1": byte_level(token_type=("i32", [-1, *types[1:]])),
        "scores short": sentencepiece(scores=("f32", [0.0])),
        "scores nan": sentencepiece(scores=("f32", [float("nan")] * 269)),
        "no scores": sentencepiece(scores=None),
        "no merges": byte_level(merges=None),
        "no tokens": byte_level(tokens=None),
        "no model": byte_level(model=None),
        "t5": byte_level(model="t5"),
        "twice": byte_level(tokens=[*tokens[:-1], "he"]),
        "not UTF-8": byte_level(tokens=[*tokens[:-1], b"\xff\xfe"]),
        "merge twice": byte_level(merges=["h e", "h e"]),
        "merge of one": byte_level(merges=["he"]),
        "merge of three": byte_level(merges=["h e l"]),
        "merge of none": byte_level(merges=[" "]),
        "merge of strangers": byte_level(merges=["zz yy"]),
        "bos missing": byte_level(add_bos_token=("bool", True)),
        "pre": byte_level(pre="whitespace"),
        "pre ''": byte_level(pre="\x00"),
    }
    for name, metadata in tries.items():
        with pytest.raises(LlmiError):
            read(gguf(tmp_path / "v.gguf", metadata))
            pytest.fail(f"{name} is accepted")
    odd = [*tokens[:-1], "a\x00b", "", ""]
    tokenizer, _ = read(gguf(tmp_path / "v.gguf", byte_level(tokens=odd, token_type=None, merges=["h e", "l l"])))
    assert tokenizer.vocab_bytes[-3:] == [b"a\x00b", b"", b""] and tokenizer.decode([len(odd) - 3]) == "a\x00b"


def test_names_of_rules_that_cut_alike(tmp_path: Path) -> None:
    """llama.cpp's names: each cuts as the first of its kind. Without a name, its default rule, with a warning."""
    text = "He'LL pay 12345 for\n\n  the hehe, don't $5+3\t\thello  "
    words = {name: [word for word, _ in rule.pre_tokenizer().pre_tokenize_str(text)] for name, rule in RULES.items() if not rule.compose}
    for names, _ in GROUPS:
        for name in names.split():
            tokenizer, seen = read(gguf(tmp_path / "v.gguf", byte_level(pre=name, bos_token_id=("u32", 0))))
            assert RULES[name] == RULES[names.split()[0]] and not seen
            assert not RULES[name].byte_level or tokenizer.decode(tokenizer.encode(text)) == text
    assert words["default"] == [
        "He",
        "'",
        "LL",
        "Ġpay",
        "Ġ",
        "123",
        "45",
        "Ġfor",
        "ĊĊĠ",
        "Ġthe",
        "Ġhehe",
        ",",
        "Ġdon",
        "'",
        "t",
        "Ġ",
        "$",
        "5",
        "+",
        "3",
        "ĉ",
        "ĉ",
        "hello",
        "ĠĠ",
    ]
    for pre in (None, ""):
        tokenizer, seen = read(gguf(tmp_path / "v.gguf", byte_level(pre=pre)))
        assert len(seen) == 1 and "tokenizer.ggml.pre is missing" in seen[0]
        assert tokenizer.encode(text) == read(gguf(tmp_path / "v.gguf", byte_level(pre="default")))[0].encode(text)
    with pytest.raises(TokenizerError, match=r"'whitespace' is not known \(.*llama-bpe.*tekken"):
        read(gguf(tmp_path / "v.gguf", byte_level(pre="whitespace")))


def test_keys_that_ask_for_more_are_named_in_one_warning(tmp_path: Path) -> None:
    inert: dict[str, Any] = {
        "add_sep_token": ("bool", True),
        "token_type_count": NUMBER,
        "padding_token_id": NUMBER,
        "fim_pre_token_id": NUMBER,
        "remove_extra_whitespaces": ("bool", False),
    }
    for base in (byte_level, sentencepiece):
        assert not read(gguf(tmp_path / "v.gguf", base(**inert)))[1]
        asking: dict[str, Any] = {
            "remove_extra_whitespaces": ("bool", True),
            "normalizer.lowercase": ("bool", True),
            "suppress_tokens": LIST_OF_NUMBERS,
            "new": "x",
        }
        _, seen = read(gguf(tmp_path / "v.gguf", base(**asking)))
        assert len(seen) == 1 and all(GGML + name in seen[0] for name in asking)


def test_sentencepiece_defaults_and_ends(tmp_path: Path) -> None:
    """llama.cpp's: BOS is 1 and EOS 2 where the file names none, and they are control tokens; </s> as a tag is text."""
    tokenizer, _ = read(gguf(tmp_path / "v.gguf", sentencepiece()))
    assert tokenizer.encode("hello") == [1, 268] and tokenizer.bos_token_id == 1 and tokenizer.eos_token_ids == {2}
    types = [2, 3, 4] + [6] * 256 + [1] * 10
    tag = sentencepiece(token_type=("i32", types), eos_token_id=("u32", 1))
    tokenizer, _ = read(gguf(tmp_path / "v.gguf", tag))
    assert tokenizer.eos_token_ids == {1} and tokenizer.encode("</s>", add_special_tokens=False) == [2] and tokenizer.decode([2]) == "</s>"
    tokenizer, _ = read(gguf(tmp_path / "v.gguf", tag | {GGML + "eos_token_id": ("u32", 2)}))
    assert tokenizer.eos_token_ids == {2} and 2 not in tokenizer.encode("</s>") and tokenizer.decode([2]) == ""
    listed = byte_level()[GGML + "tokens"]
    for name in ("<|im_start|>", "<|user|>", "<start_of_turn>", "<｜begin▁of▁sentence｜>", "<|im_end|>"):
        user_defined = byte_level(tokens=[*listed, name], token_type=("i32", [3] + [1] * (len(listed) - 1) + [4]))
        tokenizer, _ = read(gguf(tmp_path / "v.gguf", user_defined))
        assert len(listed) not in tokenizer.encode(f"a{name}") and tokenizer.encode(name, parse_special=True) == [len(listed)]
        assert (len(listed) in tokenizer.eos_token_ids) == (name == "<|im_end|>")
    for name in ("add_bos_token", "add_eos_token"):
        on, _ = read(gguf(tmp_path / "v.gguf", sentencepiece(**{name: ("bool", True)})))
        off, _ = read(gguf(tmp_path / "v.gguf", sentencepiece(**{name: ("bool", False)})))
        assert len(on.encode("hello")) == len(off.encode("hello")) + 1
    assert read(gguf(tmp_path / "v.gguf", sentencepiece(add_space_prefix=("bool", False))))[0].encode("hello") == [1, 267]


@pytest.mark.parametrize(
    ("lengths", "refused"), [([200_000], False), ([*range(2, 4000)], True), ([*range(1000, 5000, 7)], False)], ids=["one", "all", "many"]
)
def test_long_tokens_have_a_budget_of_steps(lengths: list[int], refused: bool, tmp_path: Path) -> None:
    base = sentencepiece()
    tokens = base[GGML + "tokens"] + ["a", *("a" * length for length in lengths)]
    extra = len(tokens) - len(base[GGML + "tokens"])
    types, scores = base[GGML + "token_type"][1] + [1] * extra, base[GGML + "scores"][1] + [-float(i) for i in range(extra)]
    path = gguf(tmp_path / "v.gguf", sentencepiece(tokens=tokens, token_type=("i32", types), scores=("f32", scores)))
    tokenizer = Tokenizer(path)
    if refused:
        with pytest.raises(TokenizerError, match="too long"):
            tokenizer.encode("a" * 5000)
    else:
        assert tokenizer.decode(tokenizer.encode("a" * 5000)) == "a" * 5000


# --- tokenizer.json


def directory(path: Path, change: Callable[[dict[str, Any]], Any], **settings: Any) -> Path:
    """A tiny model's files, changed."""
    data: dict[str, Any] = byte_tokenizer(300)
    change(data)
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(data))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"} | settings))
    (path / "config.json").write_text(json.dumps({"vocab_size": 300, "model_type": "llama", "eos_token_id": 0}))
    return path


def split(expression: str) -> Callable[[dict[str, Any]], None]:
    """A pre-tokenizer that cuts by it."""

    def change(data: dict[str, Any]) -> None:
        step = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [step, data["pre_tokenizer"]]}

    return change


def replaced(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data.update(fields)


def in_model(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["model"].update(fields)


def in_vocab(text: str, token_id: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["model"]["vocab"].update({text: token_id})


def added(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["added_tokens"].append({**data["added_tokens"][0], **fields})


def nested(depth: int, kind: str, children: str) -> dict[str, Any]:
    step: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        step = {"type": "Sequence", children: [step]}
    return {kind: step}


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
PAIR = {"type": "BertProcessing", "sep": ["<eos>", 0], "cls": ["<eos>", 0]}
TEMPLATE: dict[str, Any] = {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}
TEXT_ITSELF = {"Sequence": {"id": "A", "type_id": 0}}
REFUSED: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"id {value!r}": in_vocab("zz", value) for value in (10**8, 2**24, 2**31, 2**63, 10**30, -1, 1.0, True, "5", None, [1])},
    "gap": in_vocab("zz", 10**7),
    "two tokens of one id": in_vocab("zz", 5),
    **{f"added id {value!r}": added(id=value, content="<x>") for value in (10**8, 2**31, -1, 1.5, True, "9", None)},
    "added id of another": added(id=299, content="<x>"),
    "added twice": added(),
    "added nothing": added(id=257, content=""),
    "added number": added(id=257, content=3),
    "no model": replaced(model=None),
    "no vocab": in_model(vocab=None),
    "empty vocab": in_model(vocab={}),
    "vocab of text": in_model(vocab="x"),
    "WordPiece": in_model(type="WordPiece", unk_token="<eos>", continuing_subword_prefix="", max_input_chars_per_word=9),
    "WordLevel": in_model(type="WordLevel", unk_token="<eos>"),
    "prefix": in_model(continuing_subword_prefix="##########"),
    "suffix": in_model(end_of_word_suffix="</w>"),
    "merges": in_model(merges=["zz yy"]),
    "one": in_model(merges=["zz"]),
    "merges of numbers": in_model(merges=[1]),
    "no merges": in_model(merges=None),
    "dropout": in_model(dropout=7),
    "empty Unigram": in_model(type="Unigram", vocab=[], unk_id=0),
    "exponential": split("(a+)+$"),
    "alternatives": split("(a|a)*$"),
    "optional": split("(aa?)*$"),
    "reference": split(r"(a*)\1b"),
    "call": split(r"(?<x>a\g<x>?b)"),
    "deep": split("(" * 3000 + "a" + ")" * 3000),
    "repeats": split("((a{1000}){1000}){1000}"),
    "long": split("a" * 10_000),
    "unbalanced": split("(a"),
    "star": split("*"),
    "doubling": replaced(normalizer={"type": "Sequence", "normalizers": [DOUBLE] * 40}),
    "long content": replaced(normalizer={**DOUBLE, "content": "a" * 10**6}),
    "replace nothing": replaced(normalizer={**DOUBLE, "pattern": {"String": ""}}),
    "charsmap": replaced(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "nested": replaced(**nested(60, "normalizer", "normalizers")),
    "nested deep": replaced(**nested(400, "normalizer", "normalizers")),
    "many": replaced(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}] * 1000}),
    "unknown": replaced(normalizer={"type": "Nobody"}),
    "text": replaced(normalizer="NFC"),
    **{
        f"decoder {kind}": replaced(
            decoder={"type": kind, "prefix": "##", "cleanup": True, "suffix": "</w>", "pad_token": "<pad>", "word_delimiter_token": "|"}
        )
        for kind in ("WordPiece", "BPEDecoder", "CTC")
    },
    "no decoder": replaced(decoder=None),
    "decoder strips": replaced(decoder={"type": "Strip", "content": "x", "start": 1, "stop": 0}),
    "decoder replaces": replaced(decoder={**DOUBLE}),
    "wraps in nobody": replaced(post_processor={**TEMPLATE, "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, TEXT_ITSELF]}),
    "wraps nothing": replaced(post_processor=TEMPLATE),
    "wraps twice": replaced(post_processor={**TEMPLATE, "single": [TEXT_ITSELF] * 2}),
    "wraps another": replaced(post_processor={**TEMPLATE, "single": [{"Sequence": {"id": "B", "type_id": 0}}]}),
    **{f"wraps id {value!r}": replaced(post_processor={**PAIR, "cls": ["<x>", value]}) for value in (10**8, -1, 300, "0", None)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    path = directory(tmp_path / "model", REFUSED[name])
    with pytest.raises(TokenizerError, match=str(path)):
        Tokenizer(path).encode("a b" + "a" * 50)


@pytest.mark.parametrize("text", ["", "[]", "3", "null", '{"model"', "[" * 100_000, '{"a":' * 100_000, "\x00", "NaN"])
@pytest.mark.parametrize(
    "name",
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json", "generation_config.json"],
)
def test_files_that_are_no_json_object(name: str, text: str, tmp_path: Path) -> None:
    path = directory(tmp_path / "model", lambda data: None)
    (path / name).write_text(text)
    with pytest.raises(TokenizerError, match=name):
        Tokenizer(path)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """The library takes the first of two types, Python the last of two keys: what is checked must be what is read."""
    path = directory(tmp_path / "model", lambda data: None)
    text = (path / "tokenizer.json").read_text()
    for old, new in (
        ('"type": "BPE"', '"type": "WordPiece", "type": "BPE"'),
        ('"<eos>": 0', '"<eos>": 100000000, "<eos>": 0'),
        ('"version"', '"model": {}, "version"'),
    ):
        (path / "tokenizer.json").write_text(text.replace(old, new, 1))
        with pytest.raises(TokenizerError, match=r"tokenizer\.json: .*stands twice"):
            Tokenizer(path)


def test_what_training_left_is_switched_off(tmp_path: Path) -> None:
    """Truncation, padding (of 100 million) and dropout: a prompt's tokens are those of its text."""
    plain = Tokenizer(
        directory(tmp_path / "plain", in_model(merges=[["a", "b"]], vocab=byte_tokenizer(257)["model"]["vocab"] | {"ab": 257}))
    )
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    for strategy in ("LongestFirst", "OnlyFirst", "OnlySecond"):
        for padding in ("BatchLongest", {"Fixed": 100_000_000}):
            pad = {"strategy": padding, "direction": "Left", "pad_to_multiple_of": 64, "pad_id": 0, "pad_type_id": 0, "pad_token": "<eos>"}

            def change(data: dict[str, Any], cut: Any = cut | {"strategy": strategy}, pad: Any = pad) -> None:
                data.update(truncation=cut, padding=pad)
                data["model"].update(dropout=0.9, merges=[["a", "b"]], vocab=data["model"]["vocab"] | {"ab": 257})

            tokenizer = Tokenizer(directory(tmp_path / "trained", change))
            for text in ("ab" * 50, "hello world"):
                assert tokenizer.encode(text) == plain.encode(text)
            assert tokenizer.encode("ab" * 50) == [257] * 50


def test_regular_expressions_of_published_tokenizers_are_run() -> None:
    letters = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    published = [split for rule in RULES.values() for split in rule.splits]
    published += [
        letters + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"\d{1,3}(?=(?:\d{3})*\b)",
        r"(?=(\d{3})+(?!\d))",
        "[一-龥぀-ゟ゠-ヿ]+",
    ]
    published += [
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?+\p{L}+| ?[^\s\p{L}\p{N}]++[\r\n]*",
    ]
    assert [expression for expression in published if fault(expression)] == []


# --- objects


def test_tokenizers_travel(tmp_path: Path) -> None:
    """Pickled, copied: the same tokens and texts, also where the file has gone."""
    paths = [
        gguf(tmp_path / "a.gguf", byte_level()),
        gguf(tmp_path / "b.gguf", sentencepiece()),
        directory(tmp_path / "c", added(id=257, content="<x>")),
    ]
    for path in paths:
        tokenizer = Tokenizer(path)
        tokenizer.chat_template = "{{ messages }}"
        stored = pickle.dumps(tokenizer)
        (path / "tokenizer.json" if path.is_dir() else path).unlink()
        for again in (pickle.loads(stored), copy.deepcopy(tokenizer), copy.copy(tokenizer)):
            for text in ("hello <x> </s>", "", "é"):
                for special in (True, False):
                    assert again.encode(text, parse_special=special) == tokenizer.encode(text, parse_special=special)
            assert again.vocab_bytes == tokenizer.vocab_bytes and again.special_tokens == tokenizer.special_tokens
            for name in ("path", "vocab_size", "bos_token_id", "eos_token_ids", "chat_template"):
                assert getattr(again, name) == getattr(tokenizer, name)


def test_kinds_of_arguments(tmp_path: Path) -> None:
    tokenizer = Tokenizer(gguf(tmp_path / "a.gguf", byte_level()))
    ids = tokenizer.encode("hello")
    for same in (
        np.array(ids),
        [np.int32(token) for token in ids],
        tuple(ids),
        iter(ids),
        np.array(ids, np.uint8 if max(ids) < 256 else np.uint16),
    ):
        assert tokenizer.decode(same) == "hello"
    for bad in ("12", b"12", 3, None, [1.0], ["1"], [None], [[1]], np.array([1.0])):
        with pytest.raises(LlmiError, match="whole number"):
            tokenizer.decode(bad)  # type: ignore[arg-type]
    for token in (-1, tokenizer.vocab_size, 2**70):
        with pytest.raises(TokenizerError, match="outside"):
            tokenizer.decode([token])
        with pytest.raises(TokenizerError, match="outside"):
            tokenizer.decode_stream().step(token)
    for text in (None, 3, b"x", ["x"], np.array([1])):
        with pytest.raises(LlmiError, match="a text is a string"):
            tokenizer.encode(text)  # type: ignore[arg-type]
    stream = tokenizer.decode_stream()
    assert stream.step(0) == "" and stream.step(np.int64(ids[0])) == "hello" and stream.flush() == ""
