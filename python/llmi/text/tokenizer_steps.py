"""The steps of two tokenizers, in a form that is one where they do the same."""

from __future__ import annotations

import base64
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
#: Steps around unigrams: spaces at the ends of a text, several spaces, words.
STRIP: Data = {"type": "Strip", "strip_left": True, "strip_right": True}
ONE: Data = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
ENDS: Data = {"type": "Replace", "pattern": {"Regex": rf"\A +|[ {SPACE}]+\z"}, "content": ""}
SPLIT: Data = {"type": "WhitespaceSplit"}
WORDS: Data = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
#: Bytes that stand in no text: the library's texts are UTF-8.
_NO_TEXT = {0xC0, 0xC1, *range(0xF5, 0x100)}


def steps_of(data: Mapping[str, Any]) -> list[Data]:
    """The steps before the vocabulary: those of the normalizer, then those that cut words."""
    normalizer = changes_of(data)
    cuts = [simple for step in _flat(data["pre_tokenizer"], "pretokenizers") for simple in _simple(step)]
    model = data["model"]
    if model["type"] == "Unigram":
        return _joined(normalizer + cuts, [text for text, _ in model["vocab"]], {token["content"] for token in data["added_tokens"]})
    marks = MARK in [*normalizer, *cuts]
    if marks:  # no space is left to cut at
        cuts = [step for step in cuts if step.get("pattern") != {"String": " "} or step == MARK]
    if model["type"] == "BPE" and marks and not any("\n" in text and text.strip("\n") for text in model["vocab"]):
        cuts = [step for step in cuts if step != _LINES]  # no token holds the end of a line and more
    if model["type"] == "BPE" and not model["merges"] and not ignores_merges(data):
        cuts = [step for step in cuts if step["type"] != "Split" or step["behavior"] != "Isolated"]  # a character is a token, however cut
    return normalizer + cuts


def changes_of(data: Mapping[str, Any]) -> list[Data]:
    """The steps of the normalizer."""
    return [_simple(step)[0] for step in _flat(data["normalizer"], "normalizers")]


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
        case {"type": "BertNormalizer", "strip_accents": None, "lowercase": bool(lowercase)}:
            return [step | {"strip_accents": lowercase}]
    return [step]


def _joined(steps: list[Data], texts: list[str], added: set[str]) -> list[Data]:
    """The steps of unigrams, those that join spaces as GGUF's reader does it: STRIP and ONE.

    That is the same where the map of characters leaves no other white space, and where words are cut, if no token has two words.
    """
    first, rest = (steps[:1], steps[1:]) if steps[:1] and steps[0]["type"] == "Precompiled" else ([], steps)
    if not first or not _leaves_spaces_alone(first[0]["precompiled_charsmap"]):
        return steps
    if rest[:2] == [ENDS, ONE]:
        return [*first, STRIP, *rest[1:]]
    one_word = not any(SPACE in text[1:] for text in texts if text not in added)
    if one_word and rest in ([SPLIT, WORDS], [ONE, SPLIT, WORDS], [STRIP | {"strip_left": False}, ONE | {"content": SPACE}, WORDS]):
        return [*first, STRIP, ONE, PREPEND, MARK]
    return steps


def _leaves_spaces_alone(charsmap: str) -> bool:
    """Whether this map of characters writes no white space but spaces, and no mark of one; but U+0085, which SentencePiece's maps keep."""
    from tokenizers import normalizers

    table = normalizers.Precompiled(base64.b64decode(charsmap))
    white = [letter for letter in map(chr, range(0x3001)) if letter.isspace() and letter not in "\x1c\x1d\x1e\x1f\x85"]
    return all(table.normalize_str(letter) in ("", " ") for letter in [*white, SPACE])


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
