"""Lookahead: guesses ahead of the text, by Jacobi iteration."""

from __future__ import annotations

from llmi import _core
from llmi.base.kinds import Whole, parse
from llmi.base.travel import Alike
from llmi.speculation.drafters import Drafter

_WINDOW, _NGRAM = Whole(1, 32), Whole(2, 8)


class Lookahead(Alike, Drafter):
    """Lookahead decoding: a window of guesses runs next to each sequence, and the n-grams that it makes are drafted.

    Each step the model corrects the guesses (Jacobi iteration); n-grams of corrected guesses, and those of the text itself, are kept, and
    the latest that begin with the last token are proposed (Fu et al., 2024). Needs no training. Its rows cost as much as any others: it
    suits hardware on which rows are nearly free. All it keeps belongs to one continuation and begins with the tokens of that.

    A draft has at most window * (ngram_size - 1) guesses and as many tokens of n-grams; give SpeculativeConfig as many
    num_speculative_tokens. Verification "block" takes chains: then the window does not run, and the text's own n-grams are proposed.

    Parameters
    ----------
    window : int
        Columns of guesses, and n-grams that are proposed at once; in [1, 32].
    ngram_size : int
        Tokens of an n-gram; in [2, 8].

    Examples
    --------
    >>> config = SpeculativeConfig(Lookahead(window=5, ngram_size=3), num_speculative_tokens=20)
    >>> params = SamplingParams(max_tokens=16, seed=1)
    >>> llm.generate("The sea is", params, speculative_config=config).texts == llm.generate("The sea is", params).texts
    True
    """

    expected_acceptance = 0.3

    def __init__(self, window: int = 5, ngram_size: int = 3) -> None:
        self.window: int = parse(_WINDOW, "window", window)
        self.ngram_size: int = parse(_NGRAM, "ngram_size", ngram_size)

    def _core(self) -> _core.Lookahead:
        return _core.Lookahead(window=self.window, ngram_size=self.ngram_size, max_ngrams=self.window)

    def __repr__(self) -> str:
        return f"Lookahead(window={self.window}, ngram_size={self.ngram_size})"
