"""CorpusDrafter: what other texts say after the same tokens."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmi import _core
from llmi.base.kinds import Place, Whole, parse, show
from llmi.base.travel import Alike
from llmi.errors import InvalidParamsError, UnsupportedCombinationError, call_core
from llmi.speculation.context import DraftContext
from llmi.speculation.corpus_file import StoredTable, read_table, write_table
from llmi.speculation.drafters import Drafter
from llmi.text.tokenizer import Tokenizer
from llmi.text.vocabulary_digest import vocabulary_digest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.session import Session
else:
    from llmi.base.lazy_numpy import np

_ORDER = Whole(1, 8)
_BYTES = Whole(0, 1 << 30)
_LOCK = threading.Lock()  # while texts are counted


class CorpusDrafter(Alike, Drafter):
    """Proposes what most often followed the last tokens in texts given before: a table of n-grams that backs off to shorter ones.

    Good texts are what the model itself writes. A draft takes about a microsecond and depends on the last `max_order` tokens and the table
    alone. The table is stored once, however many requests use it.

    Parameters
    ----------
    texts : iterable of str or of lists of token ids
        Each stands for itself: no n-gram crosses from one to the next. Their tokens are counted once, about a second for a million.
    tokenizer : Tokenizer, optional
        Encodes the texts now. None: the tokenizer of the first LLM that uses the drafter does.
    max_order : int
        Longest context, in tokens; in [1, 8].
    max_bytes : int
        Size of the table; n-grams that would have predicted fewer of the texts' tokens are left out. An entry has 5 bytes, 6 with a
        vocabulary above 65,536, and 85 % of the table hold entries.

    Raises
    ------
    InvalidParamsError
        A text that is neither a string nor token ids, or ids outside the vocabulary.
    UnsupportedCombinationError
        An LLM with another size of vocabulary uses it.

    Examples
    --------
    >>> outputs = llm.generate(["The sea is", "The sky is"], max_tokens=32, temperature=0)
    >>> drafter = CorpusDrafter([output.token_ids for output in outputs])
    >>> config = llmi.SpeculativeConfig(drafter, num_speculative_tokens=4)
    >>> again = llm.generate("The sea is", max_tokens=32, temperature=0, speculative_config=config)[0]
    >>> again.token_ids == outputs[0].token_ids
    True
    >>> drafter.save("chat.safetensors")
    >>> CorpusDrafter.load("chat.safetensors").num_entries == drafter.num_entries
    True
    """

    def __init__(
        self, texts: Iterable[str | Sequence[int]], *, tokenizer: Tokenizer | None = None, max_order: int = 4, max_bytes: int = 1_500_000
    ) -> None:
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
            raise InvalidParamsError(f"texts must be a list of texts or of lists of token ids, not {show(texts)}", "texts")
        self.max_order: int = parse(_ORDER, "max_order", max_order)
        self.max_bytes: int = parse(_BYTES, "max_bytes", max_bytes)
        self._texts: list[str | NDArray[np.int32]] | None = [_checked(text) for text in texts]
        self._stored: StoredTable | None = None
        self._warned: set[str] = set()  # digests of other tokenizers
        if tokenizer is not None:
            self._make(tokenizer, max(tokenizer.vocab_size, len(tokenizer.vocab_bytes)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CorpusDrafter:
        """The drafter that `save` wrote.

        Raises
        ------
        ModelFileError
            The file cannot be read, is truncated or no corpus table, or holds token ids outside its vocabulary.
        """
        stored = read_table(parse(Place(), "path", path))
        drafter = cls((), max_order=stored.table.max_order)
        drafter._texts, drafter._stored, drafter.max_bytes = None, stored, stored.table.num_bytes
        return drafter

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table as a safetensors file with the digest of its vocabulary.

        Raises
        ------
        InvalidParamsError
            The texts are not counted yet, since no tokenizer was given and no LLM has used the drafter.
        OSError
            The file cannot be written.
        """
        write_table(Path(parse(Place(), "path", path)), self._table())

    @property
    def tokenizer_digest(self) -> str:
        """sha256 of the vocabulary that the table was made with."""
        return self._table().tokenizer_digest

    @property
    def num_entries(self) -> int:
        """N-grams in the table."""
        return self._table().table.num_entries

    @property
    def num_bytes(self) -> int:
        """Size of the table in memory."""
        return self._table().table.num_bytes

    def _table(self) -> StoredTable:
        if self._stored is None:
            raise InvalidParamsError(
                "the texts are not counted yet: give CorpusDrafter a tokenizer (tokenizer=llm.tokenizer), or generate with it first",
                "tokenizer",
            )
        return self._stored

    def _make(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        texts = self._texts or []
        ids = [np.asarray(tokenizer.encode(t, add_special_tokens=False), np.int32) if isinstance(t, str) else t for t in texts]
        ends = np.cumsum([len(entry) for entry in ids], dtype=np.int64)
        joined = np.concatenate(ids) if ids else np.empty(0, np.int32)
        table = call_core(
            _core.CorpusTable.count, joined, ends=ends, vocab_size=vocab_size, max_order=self.max_order, max_bytes=self.max_bytes
        )
        self._stored, self._texts = StoredTable(table, vocabulary_digest(tokenizer)), None

    def _attach(self, llm: Session) -> None:
        vocab_size = llm.model_info.vocab_size
        with _LOCK:
            if self._stored is None:
                self._make(llm.tokenizer, vocab_size)
            stored = self._table()
            if stored.table.vocab_size not in (vocab_size, llm.tokenizer.vocab_size, len(llm.tokenizer.vocab_bytes)):
                raise UnsupportedCombinationError(
                    f"the corpus table has a vocabulary of {stored.table.vocab_size:,}, the model {vocab_size:,}: make a table of texts"
                    " with the model's tokenizer",
                    "CorpusDrafter",
                    "tokenizer",
                )
            ours, theirs = stored.tokenizer_digest, vocabulary_digest(llm.tokenizer)
            if ours != theirs and theirs not in self._warned:
                self._warned.add(theirs)
                warnings.warn(
                    f"the corpus table was made with the tokenizer of digest {ours or 'unknown'}, the model's has {theirs}: where ids mean"
                    " other text, drafts are seldom accepted",
                    UserWarning,
                    stacklevel=2,
                )

    def _core(self) -> _core.CorpusDrafter:
        return _core.CorpusDrafter(self._table().table)

    def propose(self, context: DraftContext) -> list[int]:
        """The same from Python, for drafters that ask this one."""
        return self._core().propose(context.token_ids.tolist(), context.num_speculative_tokens)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = {"max_order": self.max_order, "max_bytes": self.max_bytes, "texts": self._texts}
        if self._stored is not None:
            table = self._stored.table
            state |= {name: getattr(table, name) for name in ("vocab_size", "checks", "tokens", "high_tokens", "rates")}
            state["tokenizer_digest"] = self._stored.tokenizer_digest
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.max_order, self.max_bytes, self._texts = state["max_order"], state["max_bytes"], state["texts"]
        self._stored = None
        self._warned = set()
        if "vocab_size" in state:
            arrays = {name: state[name] for name in ("checks", "tokens", "high_tokens", "rates")}
            table = call_core(_core.CorpusTable, state["vocab_size"], max_order=self.max_order, **arrays)
            self._stored = StoredTable(table, state["tokenizer_digest"])

    def __repr__(self) -> str:
        if self._stored is None:
            return f"CorpusDrafter({len(self._texts or []):,} texts, not counted yet)"
        return f"CorpusDrafter({self.num_entries:,} n-grams of at most {self.max_order} + 1 tokens, {self.num_bytes:,} bytes)"


def _checked(text: object) -> str | NDArray[np.int32]:
    """A text, or its token ids."""
    if isinstance(text, str):
        return text
    try:
        ids = np.asarray(text)
    except (ValueError, TypeError):
        ids = np.empty((), object)
    if ids.ndim == 1 and ids.size == 0:
        return np.empty(0, np.int32)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InvalidParamsError(f"texts must be strings or lists of token ids, not {show(text)}", "texts")
    if int(ids.min()) < 0 or int(ids.max()) >= 1 << 31:
        raise InvalidParamsError(f"texts hold token {int(ids.max() if ids.min() >= 0 else ids.min())}, which is no token id", "texts")
    return ids.astype(np.int32)
