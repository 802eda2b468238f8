"""SentencePiece's own files, `tokenizer.model`, as the data of a tokenizer.json. The few fields that count are read here: no further
package is needed."""

from __future__ import annotations

import base64
import dataclasses
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmi.errors import TokenizerError
from llmi.text.loaded_tokenizer import MAX_ADDED_CHARACTERS, MAX_TOKEN_IDS
from llmi.text.score_merges import merges_from_scores
from llmi.text.tokenizer_json import SPACE

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = range(1, 5)
UNIGRAM, BPE = 1, 2
KINDS = {UNIGRAM: "unigram", BPE: "byte pairs", 3: "words", 4: "characters"}
#: Numbers of the fields in sentencepiece_model.proto.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
MODEL_TYPE, SUFFIXED, BYTE_FALLBACK = 3, 24, 35
#: The score of a unigram that no text becomes: the library knows no other mark of control pieces and bytes.
NEVER = -1000.0
CHARSMAP, DUMMY_PREFIX, EXTRA_SPACES, ESCAPED = 2, 3, 4, 5


@dataclasses.dataclass
class Model:
    """The parts of such a file that count."""

    pieces: list[tuple[str, float, int]]  # text, score, type
    kind: int
    byte_fallback: bool
    charsmap: bytes
    dummy_prefix: bool
    remove_extra_spaces: bool


def looks_like_one(data: bytes) -> bool:
    """Whether a file begins as one does: with a piece."""
    return data[:1] == b"\x0a"


def _fields(data: bytes, fail: Callable[[str], TokenizerError]) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: a whole number, or bytes."""
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while position < len(data) and shift < 70:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise fail("a number is cut off, or too long")

    while position < len(data):
        key = number()
        match key & 7:
            case 0:
                yield key >> 3, number()
                continue
            case 1:
                size = 8
            case 2:
                size = number()
            case 5:
                size = 4
            case kind:
                raise fail(f"a field of kind {kind}, which is not known")
        if size > len(data) - position:
            raise fail(f"field {key >> 3} has {size:,} bytes, of which {len(data) - position:,} are there")
        yield key >> 3, data[position : position + size]
        position += size


def parse(data: bytes, path: Path) -> Model:
    """The model in a file's bytes. Raises TokenizerError."""

    def fail(problem: str) -> TokenizerError:
        return TokenizerError(f"{path}: it is no file of SentencePiece: {problem}", path)

    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for number, value in _fields(data, fail):
        if number == PIECES and isinstance(value, bytes):
            pieces.append(_piece(value, len(pieces), fail))
            if len(pieces) > MAX_TOKEN_IDS:
                raise fail(f"more than {MAX_TOKEN_IDS:,} pieces")
        elif number in (TRAINER, NORMALIZER) and isinstance(value, bytes):
            (trainer if number == TRAINER else normalizer).update(_fields(value, fail))
    charsmap = normalizer.get(CHARSMAP, b"")
    flags = {name: normalizer.get(name, 1) for name in (DUMMY_PREFIX, EXTRA_SPACES, ESCAPED)}
    if not pieces:
        raise fail("it has no pieces")
    if not isinstance(charsmap, bytes):
        raise fail("precompiled_charsmap is no bytes")
    kind = trainer.get(MODEL_TYPE, UNIGRAM)
    if not isinstance(kind, int) or kind not in (UNIGRAM, BPE):
        raise TokenizerError(
            f"{path}: its pieces are {KINDS.get(kind, kind) if isinstance(kind, int) else kind!r} (unigram and byte pairs are known)", path
        )
    if trainer.get(SUFFIXED, 0) or not flags[ESCAPED]:
        raise TokenizerError(f"{path}: it marks spaces in another way than with {SPACE} in front of a word", path)
    return Model(pieces, kind, bool(trainer.get(BYTE_FALLBACK, 0)), charsmap, bool(flags[DUMMY_PREFIX]), bool(flags[EXTRA_SPACES]))


def _piece(data: bytes, index: int, fail: Callable[[str], TokenizerError]) -> tuple[str, float, int]:
    fields = dict(_fields(data, fail))
    text, score, kind = fields.get(1, b""), fields.get(2, b"\0\0\0\0"), fields.get(3, NORMAL)
    if (
        not isinstance(text, bytes)
        or not isinstance(score, bytes)
        or len(score) != 4
        or not isinstance(kind, int)
        or kind not in range(1, 7)
    ):
        raise fail(f"piece {index} is no text with a score and a type")
    number = struct.unpack("<f", score)[0]
    if math.isnan(number) or not text:
        raise fail(f"piece {index} has {'no text' if not text else 'a score that is no number (NaN)'}")
    try:
        return text.decode(), number, kind
    except UnicodeDecodeError:
        raise fail(f"piece {index} is no UTF-8") from None


def as_tokenizer_json(model: Model, path: Path, prefix_each: bool, add_prefix_space: bool | None) -> dict[str, Any]:
    """The same tokenizer as the data of a tokenizer.json.

    prefix_each: put a space in front of each text between added tokens, as transformers' `legacy` does; False: in front of the first.
    """
    added: list[dict[str, Any]] = [
        {
            "id": i,
            "content": text,
            "special": kind != USER_DEFINED,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for i, (text, _, kind) in enumerate(model.pieces)
        if kind in (CONTROL, UNKNOWN, USER_DEFINED)
    ]
    if sum(len(entry["content"]) for entry in added) > MAX_ADDED_CHARACTERS:
        raise TokenizerError(f"{path}: its control and user-defined pieces have more than {MAX_ADDED_CHARACTERS:,} characters", path)
    if model.remove_extra_spaces and not all(entry["special"] for entry in added):
        raise TokenizerError(
            f"{path}: it has user-defined pieces and leaves out spaces at the ends of a text: the two together are not known", path
        )
    first = model.dummy_prefix if add_prefix_space is None else add_prefix_space
    steps = _normalizers(model, first and prefix_each, prefix_each)
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first" if first else "never", "split": False}
    decoder = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    decoder += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if first else []
    return {
        "model": {**_vocabulary(model, path), "byte_fallback": model.byte_fallback},
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": None if prefix_each else metaspace,
        "decoder": {"type": "Sequence", "decoders": decoder},
        "post_processor": None,
    }


def _vocabulary(model: Model, path: Path) -> dict[str, Any]:
    """The library's model: byte pairs with merges that repeat the scores, or unigrams."""
    texts = [text for text, _, _ in model.pieces]
    if len(set(texts)) != len(texts):
        raise TokenizerError(f"{path}: two pieces are one text", path)
    unknown = next((i for i, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN), None)
    if model.kind == UNIGRAM:
        scored = [[text, score if kind in (NORMAL, USER_DEFINED) else NEVER] for text, score, kind in model.pieces]
        return {"type": "Unigram", "vocab": scored, "unk_id": unknown}
    usable = {i: text for i, (text, _, kind) in enumerate(model.pieces) if kind in (NORMAL, USER_DEFINED)}
    merges = merges_from_scores(usable, [score for _, score, _ in model.pieces], lambda problem: TokenizerError(f"{path}: {problem}", path))
    return {
        "type": "BPE",
        "vocab": {text: i for i, text in enumerate(texts)},
        "merges": [list(pair) for pair in merges],
        "unk_token": None if unknown is None else texts[unknown],
        "fuse_unk": True,
    }


def _normalizers(model: Model, prefix: bool, escape: bool) -> list[dict[str, Any]]:
    """The steps before the vocabulary: the file's own map of characters, spaces left out, and with `escape` the marks of spaces."""
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.remove_extra_spaces:
        steps.append({"type": "Replace", "pattern": {"Regex": rf"\A +|[ {SPACE}]+\z"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    if escape:
        steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return steps
