"""Where the tokens of a completion begin in its text: `text_offset` of /v1/completions."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from llmi.text.tokenizer import Tokenizer


class _Places:
    """Counts the characters of a text that comes in pieces of bytes, as the text's decoder makes them."""

    def __init__(self, begin: int) -> None:
        self._num_characters = begin  # that are whole
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, piece: bytes) -> int:
        """The place of the piece's first character, which may have begun in an earlier piece; of an empty piece that of what follows."""
        if not piece:
            return self._num_characters
        characters = self._decoder.decode(piece[:1])
        is_open = self._decoder.getstate()[0] != b""
        # The first byte is in the character that is open now, or in the last one; one before it was cut off by this byte.
        place = self._num_characters + max(0, len(characters) - (not is_open))
        self._num_characters += len(characters) + len(self._decoder.decode(piece[1:]))
        return place


class TextOffsets:
    """The places in a text that is decoded from its tokens, which come one after the other. begin: characters in front of it.

    A token in the middle of a character has the place of that character; one without text, such as an end-of-text, that of what follows.
    Where a stop string cuts the text off, places are those of the text before that.
    """

    def __init__(self, tokenizer: Tokenizer, begin: int = 0, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._num_silent = None if skip_special_tokens else 0
        self._places = _Places(begin)

    def of(self, token_ids: Iterable[int]) -> list[int]:
        """The offsets of the next tokens."""
        return [self._places.take(piece) for piece in _pieces(self._tokenizer, token_ids, self._num_silent)]


def prompt_offsets(tokenizer: Tokenizer, token_ids: Sequence[int], text: str | None) -> list[int | None]:
    """The offsets of a prompt's tokens in its text; text None: in what they decode to. None where the tokens do not spell the text, which
    was normalised."""
    if text is None:
        return [*TextOffsets(tokenizer).of(token_ids)]
    data = text.encode()
    for num_silent in (None, 0, 1):  # special tokens: around the text, in it, or one before it and the others in it
        pieces = _pieces(tokenizer, token_ids, num_silent)
        spelt = b"".join(pieces)
        for added in (b"", b" "):  # many vocabularies begin a text with a space
            if spelt == added + data:
                places = _Places(-len(added))
                return [max(0, places.take(piece)) for piece in pieces]
    return [None] * len(token_ids)


def _pieces(tokenizer: Tokenizer, token_ids: Iterable[int], num_silent: int | None) -> list[bytes]:
    """The bytes of tokens. num_silent: special tokens are written by name, but for the first ones; None: none is."""
    vocabulary, special = tokenizer.vocab_bytes, tokenizer.special_tokens
    pieces = []
    for index, token in enumerate(token_ids):
        if token not in special:
            pieces.append(vocabulary[token] if token < len(vocabulary) else b"")
        else:
            pieces.append(b"" if num_silent is None or index < num_silent else special[token].encode())
    return pieces
