"""The vocabulary of a directory that has no tokenizer.json: tokenizer.model, tekken.json, vocab.json with merges.txt, or a tiktoken
file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmi.errors import TokenizerError
from llmi.models.files import OTHER_VOCABULARIES
from llmi.models.input_file import MAX_VOCABULARY_BYTES, is_there, parse_json, read_bytes, read_text
from llmi.text import rank_files, sentencepiece_model
from llmi.text.gguf_pre_tokenizers import GPT2_SPLIT, QWEN2_SPLIT, QWEN35_SPLIT

VOCAB, MERGES = "vocab.json", "merges.txt"
#: In the order in which they count.
NAMES = tuple(name for name in OTHER_VOCABULARIES if name != MERGES)
#: Classes of tokenizers whose files are vocab.json and merges.txt: how they cut words, and whether they compose characters first.
SPLITS = {
    **dict.fromkeys(("GPT2Tokenizer", "CodeGenTokenizer"), (GPT2_SPLIT, False)),
    "Qwen2Tokenizer": (QWEN2_SPLIT, True),
    "Qwen3_5Tokenizer": (QWEN35_SPLIT, True),
}
CLASS_OF_TYPE = {
    "gpt2": "GPT2Tokenizer",
    "opt": "GPT2Tokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "phi": "CodeGenTokenizer",
}


def find(directory: Path) -> Path | None:
    """The file with the directory's vocabulary; None if there is none."""
    for name in NAMES:
        if is_there(directory / name) and (name != VOCAB or is_there(directory / MERGES)):
            return directory / name
    return None


def is_another(file: Path) -> bool:
    """Whether the file is no tokenizer.json."""
    return file.name in NAMES or file.suffix in (".model", ".tiktoken")


def named(data: Mapping[str, Any]) -> dict[str, str]:
    """Names of the tokens around a text, where the vocabulary has those of its kind."""
    texts = {entry["content"] for entry in data["added_tokens"]}
    pairs = (
        ("bos_token", "<s>"),
        ("bos_token", "<|begin_of_text|>"),
        ("eos_token", "</s>"),
        ("eos_token", "<|end_of_text|>"),
        ("eos_token", "<|endoftext|>"),
    )
    return {name: text for name, text in reversed(pairs) if text in texts}


def wraps_by_flags(file: Path) -> bool:
    """Whether only the flags in tokenizer_config.json say what stands around a text: SentencePiece's files do not."""
    return file.suffix == ".model" and sentencepiece_model.looks_like_one(read_bytes(file, MAX_VOCABULARY_BYTES, TokenizerError))


def read(file: Path, kind: str, settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The vocabulary as the data of a tokenizer.json. Raises TokenizerError.

    kind: the tokenizer's class. settings: tokenizer_config.json. config: config.json.
    """
    model_type = config.get("model_type")
    if file.name == "tekken.json":
        return rank_files.of_tekken(parse_json(read_text(file, MAX_VOCABULARY_BYTES, TokenizerError), file, TokenizerError), file)
    if file.name == VOCAB:
        return _of_merges(file, kind if kind in SPLITS else CLASS_OF_TYPE.get(str(model_type), kind))
    data = read_bytes(file, MAX_VOCABULARY_BYTES, TokenizerError)
    if sentencepiece_model.looks_like_one(data):
        flags = {name: settings.get(name) for name in ("legacy", "add_prefix_space")}
        for name, value in flags.items():
            if value is not None and not isinstance(value, bool):
                raise TokenizerError(f"{file.parent}/tokenizer_config.json: {name}: {value!r:.40} is neither true nor false", file, name)
        return sentencepiece_model.as_tokenizer_json(
            sentencepiece_model.parse(data, file), file, flags["legacy"] is not False, flags["add_prefix_space"]
        )
    lists_tokens = bool(settings.get("added_tokens_decoder"))
    return rank_files.of_tiktoken(read_text(file, MAX_VOCABULARY_BYTES, TokenizerError), file, str(model_type), lists_tokens)


def _of_merges(file: Path, kind: str) -> dict[str, Any]:
    if kind not in SPLITS:
        raise TokenizerError(
            f"{file}: {VOCAB} and {MERGES} do not say how a text is cut into words, and for {kind} it is not known ({', '.join(SPLITS)}"
            " are); use a tokenizer.json",
            file,
            "tokenizer_class",
        )
    split, compose = SPLITS[kind]
    lines = read_text(file.parent / MERGES, MAX_VOCABULARY_BYTES, TokenizerError).split("\n")
    merges = []
    for number, line in enumerate(lines, 1):
        pair = line.rstrip("\r").split(" ")
        if line.strip() and not (number == 1 and line.startswith("#version")):
            if len(pair) != 2 or not all(pair):
                raise TokenizerError(f"{file.parent / MERGES}: line {number}: {line!r:.60} is no pair of texts", file, MERGES)
            merges.append(pair)
    byte_level: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": split == GPT2_SPLIT}
    cut = {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}
    return {
        "model": {
            "type": "BPE",
            "vocab": parse_json(read_text(file, MAX_VOCABULARY_BYTES, TokenizerError), file, TokenizerError, unique_keys=True),
            "merges": merges,
        },
        "added_tokens": [],
        "normalizer": {"type": "NFC"} if compose else None,
        "decoder": {**byte_level, "use_regex": False},
        "post_processor": None,
        "pre_tokenizer": byte_level if split == GPT2_SPLIT else {"type": "Sequence", "pretokenizers": [cut, byte_level]},
    }
