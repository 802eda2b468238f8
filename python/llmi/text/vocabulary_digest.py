"""The digest that tells one vocabulary from another."""

from __future__ import annotations

import hashlib
import struct
import weakref

from llmi.text.tokenizer import Tokenizer

_DIGESTS: weakref.WeakKeyDictionary[Tokenizer, str] = weakref.WeakKeyDictionary()


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """sha256 of the texts of all ids, specials without theirs: equal where token ids mean the same text. Computed once for each tokenizer,
    in about 10 ms for 50,000 ids."""
    if tokenizer not in _DIGESTS:
        pieces = tokenizer.vocab_bytes
        digest = hashlib.sha256(struct.pack(f"<{len(pieces)}I", *map(len, pieces)))
        digest.update(b"".join(pieces))
        _DIGESTS[tokenizer] = digest.hexdigest()
    return _DIGESTS[tokenizer]
