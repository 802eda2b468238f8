"""The token that stands before a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmi.errors import InvalidParamsError

if TYPE_CHECKING:
    from llmi.session import Session


def prefix_token(llm: Session) -> int:
    """The token that stands before a text: beginning-of-text if the model has one, else end-of-text."""
    tokenizer = llm.tokenizer
    if tokenizer._loaded.prefix:
        return tokenizer._loaded.prefix[0]
    if tokenizer.bos_token_id is not None:
        return tokenizer.bos_token_id
    if tokenizer.eos_token_ids:
        return min(tokenizer.eos_token_ids)
    raise InvalidParamsError("the model has no token to stand before a text", "prompt")
