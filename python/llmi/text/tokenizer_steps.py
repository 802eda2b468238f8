"""The steps of two tokenizers, in a form that is one where they do the same."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmi.text.gguf_pre_tokenizers import GPT2_SPLIT
from llmi.text.token_bytes import BYTE_TOKENS, byte_level_alphabet
from llmi.text.tokenizer_json import SPACE

#: A tokenizer.json, or a step of one: as the library writes it, all fields are there.
Data = dict[str, Any]
PREPEND: Data = {"type": "Prepend", "prepend": SPACE}
MARK: Data = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
#: Bytes that stand in no text: the library's texts are UTF-8.
_NO_TEXT = {0xC0, 0xC1, *range(0xF5, 0x100)}


def steps_of(data: Mapping[str, Any]) -> list[Data]:
    """The steps before the vocabulary: those of the normalizer, then those that cut words."""
    normalizer = _flat(data["normalizer"], "normalizers")
    cuts = [simple for step in _flat(data["pre_tokenizer"], "pretokenizers") for simple in _simple(step)]
    model = data["model"]
    marks = MARK in [*normalizer, *cuts]
    if marks:  # no space is left to cut at
        cuts = [step for step in cuts if step.get("pattern") != {"String": " "} or step == MARK]
    if model["type"] == "BPE" and marks and not any("\n" in text and text.strip("\n") for text in model["vocab"]):
        cuts = [step for step in cuts if step != _LINES]  # no token holds the end of a line and more
    if model["type"] == "BPE" and not model["merges"] and not ignores_merges(data):
        cuts = [step for step in cuts if step["type"] != "Split" or step["behavior"] != "Isolated"]  # a character is a token, however cut
    return normalizer + cuts


def _flat(value: Data | None, children: str) -> list[Data]:
    if value is None:
        return []
    return [step for child in value[children] for step in _flat(child, children)] if value["type"] == "Sequence" else [value]


def _split(expression: str) -> Data:
    """Expressions have one form: a character for its number, but for the ends of lines."""
    plain = re.sub(r"\\x\{([0-9A-F]+)\}", lambda number: chr(int(number[1], 16)), expression)
    plain = plain.replace("\r", r"\r").replace("\n", r"\n").replace("\t", r"\t")
    return {"type": "Split", "pattern": {"Regex": plain}, "behavior": "Isolated", "invert": False}


_LINES = _split(r"[^\n]+|[\n]+")


def _simple(step: Data) -> list[Data]:
    """A step that cuts words as steps that each do one thing."""
    match step:
        case {"type": "Split", "pattern": {"Regex": str(expression)}}:
            return [_split(expression) | {name: step[name] for name in ("behavior", "invert")}]
        case {"type": "Digits", "individual_digits": bool(each)}:
            return [_split(r"\p{N}" if each else r"\p{N}+")]
        case {"type": "ByteLevel", "add_prefix_space": bool(prefix), "use_regex": bool(words)}:
            return ([_split(GPT2_SPLIT)] if words and not prefix else []) + [
                {"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": words and prefix}
            ]
        case {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}:
            return [MARK]
    return [step]


def ignores_merges(data: Mapping[str, Any]) -> bool:
    """Whether a word that is a token is that token where its merges make others of it."""
    model = data["model"]
    if not model["ignore_merges"]:
        return False
    from tokenizers import models

    plain = models.BPE(model["vocab"], [tuple(pair) for pair in model["merges"]])
    words = model["vocab"].keys() - {token["content"] for token in data["added_tokens"]}
    return any(len(plain.tokenize(word)) != 1 for word in words if len(word) > 1)


def unknown_of(data: Mapping[str, Any], byte_level: bool) -> Data:
    """What becomes of a character of byte pairs that no token has; nothing where there is none."""
    model = data["model"]
    needed = {letter for letter, byte in byte_level_alphabet().items() if byte not in _NO_TEXT} if byte_level else BYTE_TOKENS.keys()
    if model["vocab"].keys() >= needed and (byte_level or model["byte_fallback"]):
        return {}
    bytes_stand_for_it = model["byte_fallback"] and not BYTE_TOKENS.keys().isdisjoint(model["vocab"])
    return {name: model[name] for name in ("unk_token", "fuse_unk") if model["unk_token"]} | {"byte_fallback": bytes_stand_for_it}
