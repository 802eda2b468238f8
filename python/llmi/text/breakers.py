"""The token sequences in which a text ends a repetition for DRY, by llama.cpp's rule."""

from __future__ import annotations

from llmi.text.tokenizer import Tokenizer

_MAX_TAIL = 20  # tokens after the first, as in llama.cpp


def token_sequences(text: str, tokenizer: Tokenizer, vocab_size: int) -> set[tuple[int, ...]]:
    """Each token that holds the text, alone; each token that ends with a beginning of it, followed by the rest as it is encoded.

    A rest that begins inside a character cannot be encoded and is left out.
    """
    wanted = text.encode("utf-8")
    found: set[tuple[int, ...]] = set()
    for token, word in enumerate(tokenizer.vocab_bytes[:vocab_size]):
        if wanted in word:
            found.add((token,))
            continue
        for size in range(1, min(len(wanted) - 1, len(word)) + 1):
            if not word.endswith(wanted[:size]):
                continue
            try:
                rest = wanted[size:].decode("utf-8")
            except UnicodeDecodeError:
                continue
            tail = tokenizer.encode(rest, add_special_tokens=False, parse_special=False)
            found.add((token, *(id_ for id_ in tail[:_MAX_TAIL] if id_ < vocab_size)))
    return found
