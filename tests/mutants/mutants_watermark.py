"""Planted bugs of llmi.watermark and of best_of."""

from __future__ import annotations

from mutant import Mutant

TESTS = "tests/sampling/test_watermark.py"


def planted(name: str, anchor: str, old: str, new: str, within: str = "python/llmi/watermark") -> Mutant:
    return Mutant("watermark", name, within, anchor, old, new, TESTS)


WATERMARK = [
    planted("the shuffle swaps with earlier positions", "_partners", "(np.uint32(size) - places)", "np.uint32(size - count)"),
    planted("a value stays where it began", "first_of_permutation", "further := held[held]", "further := held"),
    planted("seeds are taken modulo 2^64", "_seed", "2**64 - 1", "2**64"),
    planted(
        "repeated n-grams count each time",
        "detect",
        "ngrams = {tuple(ids[end - length : end]) for end in range(length, len(ids) + 1)}",
        "ngrams = [tuple(ids[end - length : end]) for end in range(length, len(ids) + 1)]",
    ),
    planted("selfhash forgets its candidate", "__call__", "np.append(before, token)", "before"),
    planted("one more green token is more than all", "binomial_tail", "range(count, trials + 1)", "range(count + 1, trials + 1)"),
    planted("contexts are marked again", "__call__", "(seen == hashes[-1]).any()", "False"),
    planted("the history has no zeros", "__call__", "(unused and hashes[-1] == 0)", "False"),
    planted("a history without its end", "__call__", "[-self.context_history_size :]", ""),
    planted(
        "repeated contexts count each time",
        "detect",
        "_, first = np.unique(contexts, return_index=True)",
        "first = np.arange(len(contexts))",
    ),
    planted("all keys weigh the same", "detect", "_weights(depth)", "np.ones(depth, np.int64)"),
    planted("sums of whole numbers as if they had all values", "sum_tail", "-math.expm1(-tilt)", "tilt"),
    planted("no tail is exact", "sum_tail", "trials * int(levels.max()) <= _MOST_EXACT", "False"),
    planted("the tail of the other side", "sum_tail", "density * (1 / slope - 1 / root)", "density * (1 / root - 1 / slope)"),
    planted("the worst of n", "_best", "return max(", "return min(", "python/llmi/outputs"),
    planted("a choice has a receipt", "of", 'source.get("chosen")', "False", "python/llmi/outputs"),
]
