"""The questions that a new kind of GPU is asked about its matrix instructions: each has an instruction that fails it alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llmi import _core

Array = np.ndarray[Any, Any]
Product = Callable[[Array, Array], Array]
QUESTIONS = ("rows_apart", "columns_apart", "zeros_neutral", "order_free")


def widened(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def by_calls(add: Callable[[Array, Array, Array], Array]) -> Product:
    """d = add(d, a [64, 16], b [n, 16]) for each 16 columns in order, from zero."""

    def product(a: Array, b: Array) -> Array:
        left, right = widened(a), widened(b)
        d = np.zeros((64, len(b)), np.float32)
        for k in range(0, 64, 16):
            d = add(d, left[:, k : k + 16], right[:, k : k + 16])
        return d

    return product


def products_of(a: Array, b: Array) -> Array:
    """[64, n, 16], exact."""
    return a[:, None, :].astype(np.float64) * b[None, :, :]


def exact(d: Array, a: Array, b: Array) -> Array:
    return (d + products_of(a, b).sum(2)).astype(np.float32)


def one_by_one(d: Array, a: Array, b: Array) -> Array:
    for k in range(16):
        d = d + np.outer(a[:, k], b[:, k])
    return d


def cut_below(largest: Array) -> Callable[[Array, Array, Array], Array]:
    """Products that lose what lies 2^-20 below something large."""
    grid = 2.0 ** (np.floor(np.log2(largest)) - 20)
    return lambda d, a, b: (d + (np.trunc(products_of(a, b) / grid[..., None]) * grid[..., None]).sum(2)).astype(np.float32)


def aligned_by_operands(d: Array, a: Array, b: Array) -> Array:
    """By the largest factors, even where what they meet is zero."""
    return cut_below(np.abs(a).max(1)[:, None] * np.abs(b).max(1)[None, :])(d, a, b)


def aligned_by_all_rows(d: Array, a: Array, b: Array) -> Array:
    return cut_below(np.broadcast_to(np.abs(products_of(a, b)).max((0, 2))[None, :], d.shape))(d, a, b)


def aligned_by_all_columns(d: Array, a: Array, b: Array) -> Array:
    return cut_below(np.broadcast_to(np.abs(products_of(a, b)).max((1, 2))[:, None], d.shape))(d, a, b)


@pytest.mark.parametrize(
    ("add", "fails"),
    [
        (exact, None),
        (one_by_one, "order_free"),
        (aligned_by_operands, "zeros_neutral"),
        (aligned_by_all_rows, "rows_apart"),
        (aligned_by_all_columns, "columns_apart"),
    ],
)
@pytest.mark.parametrize("num_columns", [8, 72])
def test_each_question_is_failed_by_an_instruction_of_its_own(add: Any, fails: str | None, num_columns: int) -> None:
    answers = _core.testing.ask_matrix_product(by_calls(add), num_columns)
    assert {name for name in QUESTIONS if not answers[name]} == ({fails} if fails else set())
    assert answers["error"] < {exact: 4, one_by_one: 64}.get(add, 2000)


def test_a_wrong_product_shows_in_its_error() -> None:
    assert _core.testing.ask_matrix_product(lambda a, b: by_calls(exact)(a, b[::-1].copy()), 16)["error"] > 1e5
    assert math.isnan(_core.testing.ask_matrix_product(lambda a, b: np.full((64, 16), np.nan, np.float32), 16)["error"])


def test_equal_bits_are_those_of_the_columns_that_both_have() -> None:
    right, other = by_calls(exact), by_calls(one_by_one)
    assert _core.testing.give_equal_bits(right, 256, right, 8) and _core.testing.give_equal_bits(right, 8, right, 64)
    assert not _core.testing.give_equal_bits(right, 16, other, 16)


def test_products_of_another_size_are_refused() -> None:
    with pytest.raises(_core.CoreError, match="64 rows of all columns"):
        _core.testing.ask_matrix_product(lambda a, b: np.zeros((64, 8), np.float32), 16)
    with pytest.raises(_core.CoreError, match="8 to 256 columns"):
        _core.testing.ask_matrix_product(by_calls(exact), 0)


def test_the_first_gpu_is_asked_and_where_there_is_none_it_says_why() -> None:
    why = _core.system_info()["why_no_cuda"]
    if why:
        with pytest.raises(_core.CoreError, match=re.escape(why)):
            _core.testing.probe_matrix_instructions()
        return
    probed = _core.testing.probe_matrix_instructions()
    assert next(iter(probed)) == "mma.m16n8k16"
    for answers in probed.values():
        assert answers["error"] < 4096
