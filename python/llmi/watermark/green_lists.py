"""Kirchenbauer et al., A watermark for large language models, 2023, with the green lists of transformers' WatermarkLogitsProcessor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from llmi.base.kinds import TOKEN_IDS, Choice, Kind, Real, Whole, parse
from llmi.errors import InvalidParamsError
from llmi.params.sampling import TokenContext
from llmi.watermark.evidence import Detection, binomial_tail
from llmi.watermark.shuffle import first_of_permutation, is_among_first, permutation

_TABLE_SIZE = 1_000_003
_MOST_CANDIDATES = 40  # of selfhash: how many of the likeliest tokens are tried


@dataclasses.dataclass(frozen=True)
class KGW:
    """A watermark of green lists: `bias` is added to the logits of a keyed share of the vocabulary, chosen by the tokens before.

    An object is a logits processor (`SamplingParams(logits_processors=[KGW(...)])`) and the detector of its own texts.
    Names, defaults and green lists are those of transformers 5.24 on a CPU; texts that it has marked are detected, and the other way round.
    The bias is added before `temperature`, which transformers applies first: its mark of bias b is one of b x T here.

    Parameters
    ----------
    vocab_size : int
        Of the model's logits, in [2, 2^24]: `llm.model_info.vocab_size`.
    greenlist_ratio : float
        Share of the vocabulary that is green, in (0, 1).
    bias : float
        Added to green logits, in [0, 1e6].
    hashing_key : int
        The secret, in [1, 2^63).
    seeding_scheme : str
        "lefthash": the last token seeds the list. "selfhash": the last `context_width` tokens do, the candidate among them; the 40
        likeliest candidates are tried, so a step takes 40 times as long.
    context_width : int
        In [1, 64]. A sequence of fewer tokens is left as it is.

    Raises
    ------
    InvalidParamsError
        An argument outside its range, or one that leaves no token green.

    Examples
    --------
    >>> mark = KGW(llm.model_info.vocab_size)
    >>> output = llm.generate("The sea is", temperature=1, max_tokens=100, logits_processors=[mark], seed=1)[0]
    >>> mark.detect(output.token_ids).p_value < 1e-6
    True
    """

    vocab_size: int
    greenlist_ratio: float = 0.25
    bias: float = 2.0
    hashing_key: int = 15485863
    seeding_scheme: str = "lefthash"
    context_width: int = 1

    def __post_init__(self) -> None:
        kinds: dict[str, Kind] = {
            "vocab_size": Whole(2, 1 << 24),
            "greenlist_ratio": Real(0.0, math.nextafter(1.0, 0.0), "a number in (0, 1)", open_low=True),
            "bias": Real(0.0, 1e6),
            "hashing_key": Whole(1, 2**63 - 1),
            "seeding_scheme": Choice(("lefthash", "selfhash")),
            "context_width": Whole(1, 64),
        }
        for name, kind in kinds.items():
            object.__setattr__(self, name, parse(kind, name, getattr(self, name)))
        if self._num_green == 0:
            raise InvalidParamsError(
                f"greenlist_ratio {self.greenlist_ratio:g} of {self.vocab_size} tokens leaves no token green", "greenlist_ratio"
            )

    @property
    def _num_green(self) -> int:
        return int(self.vocab_size * self.greenlist_ratio)

    def __call__(self, context: TokenContext, logits: NDArray[np.float32]) -> None:
        """Adds the bias in place. Raises InvalidParamsError if logits are not [vocab_size]."""
        if len(logits) != self.vocab_size:
            raise InvalidParamsError(f"vocab_size is {self.vocab_size:,}, and the model has {len(logits):,} logits", "vocab_size")
        ids = context.token_ids
        if len(ids) < self.context_width:
            return
        if self.seeding_scheme == "lefthash":
            logits[first_of_permutation(self._seed(ids), self.vocab_size, self._num_green)] += np.float32(self.bias)
            return
        likeliest = np.argsort(-logits, kind="stable")[:_MOST_CANDIDATES]
        before = ids[len(ids) - self.context_width + 1 :]
        green = [token for token in likeliest if self._is_green(np.append(before, token), int(token))]
        logits[green] += np.float32(self.bias)

    def detect(self, token_ids: Iterable[int]) -> Detection:
        """Looks for this watermark in a text's tokens; leave out the prompt. The p-value is the binomial law's, each n-gram counted once.

        Raises InvalidParamsError for what is no list of ids in [0, vocab_size).
        """
        ids = parse(TOKEN_IDS, "token_ids", token_ids)
        if ids and max(ids) >= self.vocab_size:
            raise InvalidParamsError(f"token_ids has id {max(ids)}, and vocab_size is {self.vocab_size}", "token_ids")
        length = self.context_width + (self.seeding_scheme == "lefthash")
        ngrams = {tuple(ids[end - length : end]) for end in range(length, len(ids) + 1)}
        hashed = {ngram: ngram if self.seeding_scheme == "selfhash" else ngram[:-1] for ngram in ngrams}
        num_green = sum(self._is_green(np.array(hashed[ngram]), ngram[-1]) for ngram in ngrams)
        share, count = self._num_green / self.vocab_size, len(ngrams)
        if count == 0:
            return Detection(1.0, 0.0, 0, 0, math.nan)
        z = (num_green - share * count) / math.sqrt(count * share * (1 - share))
        return Detection(binomial_tail(num_green, count, share), z, count, num_green, num_green / count)

    def _is_green(self, hashed: NDArray[np.integer], token: int) -> bool:
        return is_among_first(self._seed(hashed), self.vocab_size, self._num_green, token)

    def _seed(self, token_ids: NDArray[np.integer]) -> int:
        """transformers' seed of the list; products wrap as its tensors of int64 do."""
        if self.seeding_scheme == "lefthash":
            seed = self.hashing_key * int(token_ids[-1])
        else:
            table = permutation(self.hashing_key, _TABLE_SIZE)
            ranks = table[token_ids[-self.context_width :] % _TABLE_SIZE] + 1
            seed = int((np.int64(self.hashing_key) * ranks * ranks[-1:]).min())
        return seed % (2**64 - 1)
