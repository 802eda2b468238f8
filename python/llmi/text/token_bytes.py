"""The bytes that each token id stands for."""

from __future__ import annotations

import dataclasses

from llmi import _core
from llmi.text.loaded_tokenizer import ListedTokens

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


def byte_table(listed: ListedTokens) -> ByteTable:
    """The table of a vocabulary."""
    table = byte_level_bytes(listed.texts) if listed.byte_level else sentencepiece_bytes(listed.texts)
    for token_id, text in listed.whole.items():
        table[token_id] = (text if listed.byte_level else text.replace("▁", " ")).encode()
    for token_id in listed.special:
        table[token_id] = b""
    return ByteTable(table, listed.special)


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
