"""A tokenizer's parts, whatever file they came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from llmi.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers

#: A vocabulary's ids are below this: the largest published ones have a sixty-fourth of it.
MAX_TOKEN_IDS = 1 << 24
#: Ids that no token has are kept small: a table of all ids is made.
MAX_UNUSED_IDS = 65_536
#: Texts of added tokens, all together: they become one automaton.
MAX_ADDED_CHARACTERS = 1 << 22


P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass
class ListedTokens:
    """A vocabulary as its file lists it: texts by id, and which of them are no text to a reader, or taken whole.

    adds_space: a text is encoded with a space in front, which is no part of it when it is decoded.
    """

    texts: list[str]
    special: dict[int, str]
    whole: dict[int, str]
    byte_level: bool
    adds_space: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PairIds:
    """The ids before two texts, between them and behind them. has_types: the second text, and what is behind it, are of another type."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    has_types: bool = False


@dataclasses.dataclass
class LoadedTokenizer:
    """A tokenizer's parts, whatever file they came from."""

    build: Callable[[], tokenizers.Tokenizer]
    bos_token_id: int | None
    eos_token_ids: list[int]
    prefix: list[int]
    suffix: list[int]
    chat_templates: dict[str, str]  # by name
    template_tokens: dict[str, str]  # what templates call bos_token and so on, where the files say it
    listed: ListedTokens
    main_eos_token_id: int | None  # the one that templates call eos_token
    keeps_bytes: Callable[
        [], bool
    ]  # whether each byte of a text is in its tokens: none is left out, shortened or joined to an unknown token
    pair: PairIds | None = dataclasses.field(default_factory=PairIds)
    # A tokenizer that knows only what may come of this text, and encodes it as the whole one does; None: take the whole one.
    build_for: Callable[[str], tokenizers.Tokenizer | None] = lambda text: None

    def with_special(self, ids: list[int]) -> list[int]:
        """`ids` wrapped as the model wants a text."""
        return [*self.prefix, *ids, *self.suffix]


def guarded(function: Callable[P, R], path: Path, *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls the tokenizers library; what it raises comes as TokenizerError, its panics too (they are BaseExceptions, by type
    PanicException)."""
    try:
        return function(*args, **kwargs)
    except TokenizerError:
        raise
    except Exception as error:
        raise TokenizerError(f"{path}: {error}", path) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{path}: the tokenizers library failed: {error}", path) from None


def listed_some(names: list[str], most: int = 40) -> str:
    """The names, or the first of them and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(f"{name:.200}" for name in names[:most]) + more
