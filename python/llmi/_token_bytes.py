"""The bytes that each token id stands for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi._errors import TokenizerError

if TYPE_CHECKING:
    from llmi._gguf_tokenizer import ListedTokens

#: Byte tokens of SentencePiece vocabularies, by table: what looks like one and is not in it is text.
BYTE_TOKENS = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


@dataclasses.dataclass
class ByteTable:
    """`vocab_bytes[id]`, b"" for specials, whose text is in `special`."""

    vocab_bytes: list[bytes]
    special: dict[int, str]


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's one-to-one map of characters to bytes (Radford et al., 2019, encoder.py)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    shift = 0
    for byte in range(256):
        if byte not in printable:
            alphabet[chr(256 + shift)] = byte
            shift += 1
    return alphabet


def _decoder_kinds(tokenizer: Any) -> set[str]:
    decoder = json.loads(tokenizer.to_str())["decoder"] if tokenizer.get_vocab_size() < 1000 else None
    if decoder is None:
        # The whole tokenizer as JSON is tens of megabytes: the decoder's own state is enough.
        state = tokenizer.decoder
        decoder = json.loads(state.__getstate__()) if state is not None else None
    if decoder is None:
        return set()
    children = decoder.get("decoders", [decoder])
    return {child["type"] for child in children}


def byte_table(tokenizer: Any, path: Path) -> ByteTable:
    """Derives the table from a `tokenizers.Tokenizer`."""
    vocab: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    texts = [""] * (max(vocab.values(), default=-1) + 1)
    for text, token_id in vocab.items():
        texts[token_id] = text
    added = tokenizer.get_added_tokens_decoder()
    kinds = _decoder_kinds(tokenizer)
    special = {token_id: token.content for token_id, token in added.items() if token.special}
    whole = {token_id: token.content for token_id, token in added.items() if not token.special}
    if "ByteLevel" in kinds:
        return _table(texts, special, whole, byte_level=True)
    if kinds & {"ByteFallback", "Replace", "Metaspace", "Fuse"} or not kinds:
        return _table(texts, special, whole, byte_level=False)
    raise TokenizerError(f"{path}: the decoder {sorted(kinds)} is not known (ByteLevel and SentencePiece kinds are)", path)


def listed_bytes(listed: ListedTokens) -> ByteTable:
    """The table of a vocabulary that its file lists."""
    return _table(listed.texts, listed.special, listed.whole, listed.byte_level)


def _table(texts: list[str], special: dict[int, str], whole: dict[int, str], byte_level: bool) -> ByteTable:
    table = byte_level_bytes(texts) if byte_level else sentencepiece_bytes(texts)
    for token_id, text in whole.items():
        table[token_id] = (text if byte_level else text.replace("▁", " ")).encode()
    for token_id in special:
        table[token_id] = b""
    return ByteTable(table, special)


def byte_level_bytes(texts: list[str]) -> list[bytes]:
    """Texts in GPT-2's alphabet as bytes; a character outside it stands for itself, as the library's own decoder has it."""
    return _core.alphabet_bytes(texts, {ord(character): byte for character, byte in byte_level_alphabet().items()})


def sentencepiece_bytes(texts: list[str]) -> list[bytes]:
    """Texts with ▁ for a space, and byte tokens like <0x0A>, as bytes."""
    separator = "\x00"
    if separator in "".join(texts):
        encoded = [text.replace("▁", " ").encode() for text in texts]
    else:
        encoded = separator.join(texts).replace("▁", " ").encode().split(separator.encode()) if texts else []
    return [BYTE_TOKENS.get(text, text_bytes) for text, text_bytes in zip(texts, encoded, strict=True)]
