"""Dathathri et al., Scalable watermarking for identifying large language model outputs (SynthID), Nature 2024, as in transformers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from llmi.base.kinds import TOKEN_IDS, Flag, Kind, Listed, Whole, parse
from llmi.errors import InvalidParamsError
from llmi.params.sampling import TokenContext
from llmi.watermark.evidence import Detection, sum_tail
from llmi.watermark.shuffle import random_words

_MULTIPLIER, _INCREMENT = np.uint64(6364136223846793005), np.uint64(1)


def _hash(begin: NDArray[np.uint64], data: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A linear congruential hash of the last axis of `data`, modulo 2^64."""
    for column in np.moveaxis(data.astype(np.uint64), -1, 0):
        begin = (begin + column) * _MULTIPLIER + _INCREMENT
    return begin


@functools.lru_cache(maxsize=16)
def _g_values(keys: tuple[int, ...], table_size: int, table_seed: int, width: int) -> NDArray[np.uint8]:
    """uint8 [len(keys), width]: column u has the g values of a token for which (context's hash + token) % table_size is u % table_size.

    With a table of a power of two the low bits of the hashes decide alone.
    """
    table = (random_words(table_seed, table_size) % np.uint32(2)).astype(np.uint8)
    ngrams = _hash(np.arange(table_size, dtype=np.uint64), np.zeros((table_size, 1), np.int64))
    places = [_hash(ngrams, np.full((table_size, 1), key, np.int64)) % np.uint64(table_size) for key in keys]
    values = np.ascontiguousarray(np.tile(table[np.array(places)], -(-width // table_size))[:, :width])
    values.setflags(write=False)  # callers share it
    return values


def _weights(depth: int) -> NDArray[np.int64]:
    """Whole numbers without a common divisor, int64 [depth], in the proportions of equal steps from 10 to 1."""
    steps: NDArray[np.int64] = 10 * max(depth - 1, 1) - 9 * np.arange(depth, dtype=np.int64)
    return steps // int(np.gcd.reduce(steps))


@dataclasses.dataclass(frozen=True)
class SynthID:
    """A watermark by tournaments: per key, half of the tokens, chosen by the tokens before, gain what the others lose.

    On average over keys a text's distribution stays as it is.

    An object is a logits processor (`SamplingParams(logits_processors=[SynthID(keys)])`) and the detector of its own texts. Names, defaults
    and g values are those of transformers' SynthIDTextWatermarkLogitsProcessor, the low bits of its hash included; its logits are equal to
    rounding. The tournament takes the row as it comes, before `temperature` and filters: at temperature 1 without filters
    the distribution drawn from is exactly its own.

    Parameters
    ----------
    keys : sequence of int
        The secret: 1 to 64 integers in [0, 2^63), one for each tournament; 20 to 30 are usual.
    ngram_len : int
        In [2, 64]: `ngram_len` - 1 tokens of the output choose, zeros before its beginning.
    context_history_size : int
        In [1, 2^20]: a context that was seen among as many before is not marked again.
    sampling_table_size : int
        A power of two in [256, 2^20].
    sampling_table_seed : int
        In [0, 2^63).
    skip_first_ngram_calls : bool
        Leaves the first `ngram_len` - 1 tokens unmarked.

    Raises
    ------
    InvalidParamsError
        An argument outside its range.

    Examples
    --------
    >>> mark = SynthID(range(1000, 1030))
    >>> output = llm.generate("The sea is", temperature=1, max_tokens=100, logits_processors=[mark], seed=1)[0]
    >>> mark.detect(output.token_ids).p_value < 1e-6
    True
    """

    keys: Sequence[int]
    ngram_len: int = 5
    context_history_size: int = 1024
    sampling_table_size: int = 2**16
    sampling_table_seed: int = 0
    skip_first_ngram_calls: bool = False

    def __post_init__(self) -> None:
        kinds: dict[str, Kind] = {
            "keys": Listed(Whole(0, 2**63 - 1), "a list of 1 to 64 integers in [0, 2^63)", 64, 1),
            "ngram_len": Whole(2, 64),
            "context_history_size": Whole(1, 1 << 20),
            "sampling_table_size": Whole(256, 1 << 20),
            "sampling_table_seed": Whole(0, 2**63 - 1),
            "skip_first_ngram_calls": Flag(),
        }
        for name, kind in kinds.items():
            object.__setattr__(self, name, parse(kind, name, getattr(self, name)))
        object.__setattr__(self, "keys", tuple(self.keys))
        if self.sampling_table_size & (self.sampling_table_size - 1):
            raise InvalidParamsError(f"sampling_table_size must be a power of two, not {self.sampling_table_size}", "sampling_table_size")

    def __call__(self, context: TokenContext, logits: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """The row after all tournaments, as log-probabilities; None, the row as it is, where the context has come before."""
        num_drawn = len(context.token_ids) - context.prompt_len
        begins_at = self.ngram_len - 1 if self.skip_first_ngram_calls else 0
        if num_drawn < begins_at:
            return None
        before = context.token_ids[context.prompt_len :][-(self.context_history_size + self.ngram_len - 1) :]
        zeros = np.zeros(self.ngram_len - 1 if len(before) == num_drawn else 0, np.int64)
        hashes = self._contexts(np.concatenate([zeros, before]))  # the last one is this position's
        seen = hashes[max(begins_at - num_drawn - 1 + len(hashes), 0) : -1][-self.context_history_size :]
        unused = len(seen) < self.context_history_size  # transformers' history begins with zeros
        if (seen == hashes[-1]).any() or (unused and hashes[-1] == 0):
            return None
        values = _g_values(self._keys, self.sampling_table_size, self.sampling_table_seed, self.sampling_table_size + len(logits))
        begin = int(hashes[-1]) % self.sampling_table_size
        probs = np.exp(logits.astype(np.float64) - float(logits.max()))
        probs /= probs.sum()
        for row in values[:, begin : begin + len(logits)]:
            probs *= max(0.0, 1.0 - float((probs * row).sum())) + row
        with np.errstate(divide="ignore"):
            return np.log(probs).astype(np.float32)

    def detect(self, token_ids: Iterable[int]) -> Detection:
        """Looks for this watermark in a text's tokens; leave out the prompt. The score is the mean of the g values, weighted from 10 for
        the first key to 1 for the last.

        Positions whose context has come before are left out. Under plain text a position's weighted mean is a draw from those of all
        hashes: the p-value is the tail of the distribution of the mean of such draws. It is exact for few keys and positions, and otherwise
        a saddlepoint approximation whose relative error is below 2 % from 8 positions on.
        """
        ids = np.array(parse(TOKEN_IDS, "token_ids", token_ids), dtype=np.int64)
        depth, width = len(self.keys), self.ngram_len
        if len(ids) < width:
            return Detection(1.0, 0.0, 0, 0, math.nan)
        contexts = self._contexts(ids[:-1])
        _, first = np.unique(contexts, return_index=True)
        values = _g_values(self._keys, self.sampling_table_size, self.sampling_table_seed, self.sampling_table_size)
        found = values[:, (contexts[first] + ids[width - 1 :][first].astype(np.uint64)) % np.uint64(self.sampling_table_size)]
        weights = _weights(depth)
        levels, total, trials = weights @ values, int((weights @ found).sum()), len(first)
        z = (total / trials - levels.mean()) / levels.std() * math.sqrt(trials)
        score = total / trials / int(weights.sum())
        return Detection(sum_tail(levels, total, trials), float(z), trials, int(found.sum()), score)

    @property
    def _keys(self) -> tuple[int, ...]:
        return tuple(self.keys)

    def _contexts(self, token_ids: NDArray[np.integer]) -> NDArray[np.uint64]:
        """The hash of each context of ngram_len - 1 tokens."""
        windows = np.lib.stride_tricks.sliding_window_view(token_ids, self.ngram_len - 1)
        return _hash(np.ones(len(windows), np.uint64), windows)
