"""assert_same_bits fails on what it should, and says what it saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits

ROWS = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)


def changed(value: Any, place: Any = (1, 2)) -> Any:
    rows = ROWS.copy()
    rows[place] = value
    return rows


NEXT = changed(np.nextafter(ROWS[1, 2], np.float32(np.inf)))
WRONG = {
    "one bit": (NEXT, ROWS, r"1 of 15 values differ, the first at \(1, 2\)"),
    "the sign of zero": (changed(-0.0), changed(0.0), "1 of 15 values differ"),
    "NaN in both": (changed(np.nan), changed(np.nan), "1 of 15 expected values are not finite"),
    "NaN throughout": (np.full_like(ROWS, np.nan), np.full_like(ROWS, np.nan), "15 of 15 expected values are not finite"),
    "NaN in one": (changed(np.nan), ROWS, "1 of 15 values differ"),
    "infinity": (changed(np.inf), changed(np.inf), "1 of 15 expected values are not finite"),
    "a mask that nobody named": (changed(-np.inf), changed(-np.inf), "1 of 15 expected values are not finite"),
    "equal rows": (changed(ROWS[0], 2), changed(ROWS[0], 2), "rows are equal"),
    "one value throughout": (changed(0.0, 1), changed(0.0, 1), "row 1 is 0.0 throughout"),
    "one value throughout, alone": (np.ones(4, np.float32), np.ones(4, np.float32), "row 0 is 1.0 throughout"),
    "types": (ROWS.astype(np.float64), ROWS, "types float64 and float32"),
    "ids": (np.arange(3), np.arange(3), "types int64 and int64"),
    "shapes": (ROWS[:1], ROWS, "shapes"),
    "a scalar for a row": (ROWS[0, 0], ROWS[0], "shapes"),
    "nothing": (ROWS[:0], ROWS[:0], "nothing to compare"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_fails(name: str) -> None:
    actual, expected, said = WRONG[name]
    with pytest.raises(AssertionError, match=said):
        assert_same_bits(actual, expected)
    with pytest.raises(AssertionError, match=f"{said}.*: layer 3"):
        assert_same_bits(actual, expected, "layer 3")


def test_what_passes() -> None:
    assert_same_bits(ROWS, ROWS.copy())
    assert_same_bits(ROWS.T, np.ascontiguousarray(ROWS.T))
    assert_same_bits([0.5, -1.0], [0.5, -1.0])
    assert_same_bits(np.float32(2), np.float32(2))
    masked = changed(-np.inf)
    assert_same_bits(masked, masked.copy(), masked="token 2 is forbidden")
    nan = changed(np.nan)
    assert_same_bits(nan, nan.copy(), nan="the weights are NaN")
    equal = changed(ROWS[0], 2)
    assert_same_bits(equal, equal.copy(), equal_rows="both are of one context")


@pytest.mark.parametrize("reason", ["masked", "nan", "equal_rows"])
def test_a_reason_excuses_no_other_bit(reason: str) -> None:
    for name in ("one bit", "the sign of zero", "NaN in one"):
        actual, expected, _ = WRONG[name]
        with pytest.raises(AssertionError, match="1 of 15 values differ"):
            assert_same_bits(actual, expected, **{reason: "it may be"})


def test_a_mask_excuses_neither_nan_nor_infinity() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(AssertionError, match="not finite"):
            assert_same_bits(changed(value), changed(value), masked="it may be")
