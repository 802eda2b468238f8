"""Directories without a tokenizer.json: SentencePiece's files, vocab.json with merges.txt, tekken.json and tiktoken's lines."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from llmi import Tokenizer, TokenizerError
from llmi.text.token_bytes import byte_level_alphabet

SENTENCEPIECE: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "sentencepiece.json").read_text(encoding="utf-8"))
LLAMA = {"tokenizer_class": "LlamaTokenizer"}


def load(folder: Path, files: dict[str, str | bytes], settings: dict[str, Any] | None = None, **config: Any) -> Tokenizer:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(config))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Tokenizer(folder)


# --- tokenizer.model


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_ids_are_sentencepieces(name: str, tmp_path: Path) -> None:
    """The ids were computed by sentencepiece 0.2.3."""
    model = base64.b64decode(SENTENCEPIECE[name]["model"])
    tokenizer = load(tmp_path / "m", {"tokenizer.model": model}, LLAMA)
    for text, ids in SENTENCEPIECE[name]["ids"]:
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.encode(text) == [1, *ids]
    assert tokenizer.bos_token_id == 1 and tokenizer.eos_token_ids == {2} and tokenizer.special_tokens == {0: "<unk>", 1: "<s>", 2: "</s>"}
    assert tokenizer.encode("<s>", add_special_tokens=False, parse_special=True) == [1]
    assert Tokenizer(tmp_path / "m" / "tokenizer.model").encode("hello") == tokenizer.encode("hello")


def test_legacy_and_prefix_are_read(tmp_path: Path) -> None:
    model = base64.b64decode(SENTENCEPIECE["byte pairs"]["model"])
    files: dict[str, str | bytes] = {"tokenizer.model": model}
    plain, new, bare = (
        load(tmp_path / str(i), files, LLAMA | more) for i, more in enumerate(({}, {"legacy": False}, {"add_prefix_space": False}))
    )
    assert plain.encode("a<s>b", parse_special=True) != new.encode("a<s>b", parse_special=True)
    assert new.encode("ab") == plain.encode("ab") != bare.encode("ab") and bare.decode(bare.encode("ab")) == "ab"


def test_nothing_says_whether_a_text_begins_with_a_token(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"tokenizer.model": base64.b64decode(SENTENCEPIECE["unigram"]["model"])}
    for settings in (None, {"tokenizer_class": "PreTrainedTokenizer"}):
        with pytest.raises(TokenizerError, match="add_bos_token"):
            load(tmp_path / "m", files, settings)
    for flag in (True, False):
        tokenizer = load(tmp_path / "m", files, {"tokenizer_class": "PreTrainedTokenizer", "add_bos_token": flag, "bos_token": "<s>"})
        assert (tokenizer.encode("")[:1] == [1]) == flag


def field(number: int, value: int | bytes) -> bytes:
    def varint(value: int) -> bytes:
        out = b""
        while value > 127:
            out, value = out + bytes([value & 127 | 128]), value >> 7
        return out + bytes([value])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def piece(text: bytes, kind: int = 1, score: bytes = b"\0\0\0\0") -> bytes:
    return field(1, field(1, text) + b"\x15" + score + field(3, kind))


HEAD = piece(b"<unk>", 2) + piece(b"<s>", 3) + piece(b"</s>", 3)
BROKEN = {
    "no pieces": b"\x0a",
    "cut off": HEAD[:-3],
    "a size beyond the end": b"\x0a\xff\xff\xff\xff\xff\xff\xff\x7f",
    "endless number": b"\x0a" + b"\xff" * 60,
    "twice": HEAD + piece(b"a") * 2,
    "no UTF-8": HEAD + piece(b"\xff"),
    "no text": HEAD + piece(b""),
    "NaN": HEAD + piece(b"a", 1, b"\0\0\xc0\x7f"),
    "type 9": HEAD + piece(b"a", 9),
    "words": HEAD + piece(b"a") + field(2, field(3, 3)),
    "suffixes": HEAD + piece(b"a") + field(2, field(24, 1)),
    "spaces as they are": HEAD + piece(b"a") + field(3, field(5, 0)),
    "a broken charsmap": HEAD + piece(b"a") + field(3, field(2, b"\xff" * 9)),
    "a group": HEAD + b"\x0b",
    "user-defined and stripped": HEAD + piece(b"x", 4),
    "no message": HEAD + b"\x12\x01\xff",
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_of_sentencepiece_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.model"):
        load(tmp_path / "m", {"tokenizer.model": BROKEN[name]}, LLAMA).encode("a b")


def test_any_bytes_end_in_one_kind_of_error(tmp_path: Path) -> None:
    rng = random.Random(39)
    model = base64.b64decode(SENTENCEPIECE["byte pairs"]["model"])
    for _ in range(150):
        data = bytearray(model)
        for _ in range(rng.choice([1, 3, 30])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.choice([len(data), rng.randrange(1, len(data))])]
        with contextlib.suppress(TokenizerError, UserWarning):
            load(tmp_path / "m", {"tokenizer.model": bytes(data)}, LLAMA).encode("hello wörld 123\n")


# --- ranks


def ranks() -> dict[bytes, int]:
    """All bytes in another order, and merges of them."""
    order = list(range(256))
    random.Random(1).shuffle(order)
    words = [
        b" t",
        b"he",
        b" the",
        b"in",
        b"ing",
        b"ll",
        b"ell",
        b"hell",
        b"hello",
        b" w",
        b"or",
        b" wor",
        b"12",
        b"123",
        "é".encode(),
        "中文".encode(),
        b"aa",
        b"aaa",
    ]
    return {token: rank for rank, token in enumerate([*(bytes([byte]) for byte in order), *words])}


def joined(word: bytes, table: dict[bytes, int]) -> list[int]:
    """tiktoken's rule, by itself: a word that is a token, else join the pair of the lowest rank, the first of several, until there is
    none."""
    parts = [word[i : i + 1] for i in range(len(word))]
    while word not in table and len(parts) > 1:
        pairs = [(table[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in table]
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [table[word]] if word in table else [table[part] for part in parts]


def cut(pattern: str, text: str) -> list[str]:
    """The words of a text, by the library's own matcher."""
    from tokenizers import Regex, pre_tokenizers

    return [word for word, _ in pre_tokenizers.Split(Regex(pattern), behavior="isolated").pre_tokenize_str(text)]


TEXTS = ["", "hello the world", " the thing 12345", "aaaa aaa", "né 中文 ไทย", "\n\n  x's", "<s> [INST] <|im_end|>", "hellhello"]
TEKKEN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tekken(**changes: Any) -> dict[str, Any]:
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for token, rank in ranks().items()]
    config = {
        "pattern": TEKKEN,
        "num_vocab_tokens": len(vocab),
        "default_vocab_size": len(vocab) + 20,
        "default_num_special_tokens": 20,
        "version": "v3",
    }
    return {"config": config, "vocab": [*vocab, {"rank": len(vocab), "token_bytes": "eHl6"}]} | changes


def test_tekken(tmp_path: Path) -> None:
    """Ids begin behind the control tokens; entries beyond default_vocab_size are not used."""
    tokenizer = load(tmp_path / "m", {"tekken.json": json.dumps(tekken())})
    table = ranks()
    for text in TEXTS:
        expected = [20 + token for word in cut(TEKKEN, text) for token in joined(word.encode(), table)]
        assert tokenizer.encode(text, add_special_tokens=False) == expected
        assert tokenizer.encode(text) == [1, *expected] and tokenizer.decode(expected) == text
    assert tokenizer.encode("[INST]<SPECIAL_19>", parse_special=True) == [1, 3, 19] and tokenizer.eos_token_ids == {2}
    assert tokenizer.vocab_size == len(table) + 20
    listed = [{"rank": rank, "token_str": f"<c{rank}>", "is_control": True} for rank in range(3, 20)]
    listed += [{"rank": rank, "token_str": name} for rank, name in enumerate(("<unk>", "<s>", "</s>"))]
    tokenizer = load(tmp_path / "n", {"tekken.json": json.dumps(tekken(special_tokens=listed))})
    assert tokenizer.special_tokens[7] == "<c7>"


CONFIG = tekken()["config"]
BROKEN_TEKKEN: dict[str, Any] = {
    "no config": {"config": None},
    "no pattern": {"config": {**CONFIG, "pattern": 1}},
    "no vocab": {"vocab": None},
    "gap": {"vocab": tekken()["vocab"][1:]},
    "no base64": {"vocab": [{"rank": 0, "token_bytes": "%"}]},
    "a byte is missing": {"vocab": tekken()["vocab"][:200]},
    "size": {"config": {**CONFIG, "default_vocab_size": 2**40}},
    "no size": {"config": {**CONFIG, "default_num_special_tokens": True}},
    "hostile pattern": {"config": {**CONFIG, "pattern": "(a+)+$"}},
    "special beyond": {"special_tokens": [{"rank": 20, "token_str": "x"}]},
    "special twice": {"special_tokens": [{"rank": 1, "token_str": "x"}, {"rank": 2, "token_str": "x"}]},
    "no beginning": {"special_tokens": [{"rank": 0, "token_str": "x"}]},
    "special of the text": {"special_tokens": [{"rank": 1, "token_str": "<s>"}, {"rank": 2, "token_str": "hello"}]},
}


@pytest.mark.parametrize("name", BROKEN_TEKKEN)
def test_broken_tekken_files_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tekken\.json"):
        load(tmp_path / "m", {"tekken.json": json.dumps(tekken(**BROKEN_TEKKEN[name]))})


def lines(table: dict[bytes, int]) -> str:
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in table.items())


@pytest.mark.parametrize(
    ("name", "model_type", "begins"), [("tokenizer.model", "llama", 1), ("qwen.tiktoken", "qwen", 0), ("tiktoken.model", "kimi_k2", 0)]
)
def test_tiktoken(name: str, model_type: str, begins: int, tmp_path: Path) -> None:
    from llmi.text.rank_files import TIKTOKEN

    table = ranks()
    settings = (
        {"added_tokens_decoder": {str(len(table)): {"content": "[EOS]", "special": True}}, "eos_token": "[EOS]"}
        if model_type == "kimi_k2"
        else None
    )
    tokenizer = load(tmp_path / "m", {name: lines(table)}, settings, model_type=model_type)
    for text in TEXTS:
        expected = [token for word in cut(TIKTOKEN[model_type][0], text) for token in joined(word.encode(), table)]
        assert tokenizer.encode(text, add_special_tokens=False) == expected
        assert len(tokenizer.encode(text)) == len(expected) + begins
    assert len(table) + begins in tokenizer.eos_token_ids
    names = {"llama": 256, "qwen": 208, "kimi_k2": 1}
    assert len(tokenizer.special_tokens) == names[model_type] and tokenizer.vocab_size == len(table) + names[model_type]


def test_a_tiktoken_file_of_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"model_type 'x'.*llama, qwen"):
        load(tmp_path / "m", {"tokenizer.model": lines(ranks())}, model_type="x")
    for text in ("a", "YQ== 1 2", "YQ== -1", "% 1", "YQ== 99999999999", "YQ== 1\nYg== 1", "YQ== 999999999", ""):
        with pytest.raises(TokenizerError, match=r"tokenizer\.model"):
            load(tmp_path / "m", {"tokenizer.model": text}, model_type="llama")


# --- vocab.json and merges.txt


def merges() -> dict[str, str | bytes]:
    letters = list(byte_level_alphabet())
    vocab = {text: i for i, text in enumerate([*letters, "he", "ll", "hell", "hello", "Ġw", "<|endoftext|>"])}
    return {"vocab.json": json.dumps(vocab), "merges.txt": "#version: 0.2\nh e\nl l\nhe ll\nhell o\nĠ w\n"}


@pytest.mark.parametrize(
    ("kind", "model_type"),
    [("GPT2Tokenizer", None), (None, "gpt2"), ("Qwen2Tokenizer", None), (None, "qwen2"), ("CodeGenTokenizer", "phi")],
)
def test_vocab_and_merges(kind: str | None, model_type: str | None, tmp_path: Path) -> None:
    settings = None if kind is None else {"tokenizer_class": kind}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = _read_quietly(tmp_path / "m", merges(), settings, **({} if model_type is None else {"model_type": model_type}))
    assert tokenizer.encode("hello wx") == [259, 260, byte_level_order("x")]
    assert tokenizer.decode(tokenizer.encode("né 中文\n\n")) == "né 中文\n\n"
    composes = "Qwen2Tokenizer" in (kind or "") or model_type == "qwen2"
    assert (tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")) == composes


def byte_level_order(letter: str) -> int:
    return list(byte_level_alphabet()).index(letter)


def _read_quietly(folder: Path, files: dict[str, str | bytes], settings: dict[str, Any] | None, **config: Any) -> Tokenizer:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(config))
    return Tokenizer(folder)


@pytest.mark.parametrize(
    "change",
    [{"merges.txt": "h e l"}, {"merges.txt": "he"}, {"merges.txt": "zz yy"}, {"vocab.json": "[]"}, {"vocab.json": '{"a": 10000000}'}],
)
def test_broken_vocab_and_merges_are_refused(change: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="m/"):
        load(tmp_path / "m", {**merges(), **change}, {"tokenizer_class": "GPT2Tokenizer"})


def test_a_class_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"XTokenizer.*GPT2Tokenizer"):
        _read_quietly(tmp_path / "m", merges(), {"tokenizer_class": "XTokenizer"})


def test_a_directory_without_any_names_all(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=re.escape("tokenizer.json is missing, and so are tokenizer.model")):
        load(tmp_path / "m", {"merges.txt": "h e"})
