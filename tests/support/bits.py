"""Equality bit for bit of logits, rows and log-probabilities, and that there was something to compare.

Two outputs that are NaN throughout, or the same row again and again, are equal and show nothing: assert_same_bits refuses them.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_same_bits(actual: Any, expected: Any, what: object = "", *, masked: str = "", nan: str = "", equal_rows: str = "") -> None:
    """Both have the same type, shape and bits (so 0.0 is not -0.0), are finite, and no two rows of them are equal and none is one value
    throughout.

    masked: why values may be -inf. nan: why values may be NaN or infinite. equal_rows: why rows may be equal. A row is what the last
    dimension holds.
    """
    ours, theirs = np.asarray(actual), np.asarray(expected)
    said = f": {what}" if what != "" else ""
    assert ours.dtype == theirs.dtype and ours.dtype.kind == "f", f"types {ours.dtype} and {theirs.dtype}{said}"
    assert ours.shape == theirs.shape, f"shapes {ours.shape} and {theirs.shape}{said}"
    assert ours.size, f"there is nothing to compare{said}"
    assert nan or not (odd := ~np.isfinite(theirs) & ~((theirs == -np.inf) & bool(masked))).any(), (
        f"{odd.sum()} of {odd.size} expected values are not finite{said}"
    )
    rows = theirs.reshape(-1, theirs.shape[-1] if theirs.ndim else 1)
    if not equal_rows:
        assert len({row.tobytes() for row in rows}) == len(rows), f"rows are equal, so they show little{said}"
        for number, row in enumerate(rows):
            finite = row[np.isfinite(row)]
            assert finite.size < 2 or (finite != finite[0]).any(), f"row {number} is {finite[0]} throughout{said}"
    differ = _bits(ours) != _bits(theirs)
    if differ.any():
        first = tuple(int(index) for index in np.argwhere(differ)[0])
        raise AssertionError(
            f"{differ.sum()} of {differ.size} values differ, the first at {first}: {ours[first]!r} and {theirs[first]!r}{said}"
        )


def _bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").reshape(values.shape)
