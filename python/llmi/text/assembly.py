"""The parts of a vocabulary, put together as one of the tokenizers library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from llmi.text.loaded_tokenizer import ListedTokens, guarded

if TYPE_CHECKING:
    import tokenizers


def assemble(
    model: object, normalizer: object, pre_tokenizer: object, decoder: object, listed: ListedTokens, path: Path
) -> tokenizers.Tokenizer:
    """The library's tokenizer of these parts, with the special and the whole tokens added."""
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    guarded(
        tokenizer.add_special_tokens, path, [AddedToken(text, special=True, normalized=False) for _, text in sorted(listed.special.items())]
    )
    guarded(tokenizer.add_tokens, path, [AddedToken(text, special=False, normalized=False) for _, text in sorted(listed.whole.items())])
    return tokenizer
