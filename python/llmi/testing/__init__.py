"""Tiny models and assertions for tests of decoding code."""

from __future__ import annotations

from llmi.testing.draws import assert_same_distribution
from llmi.testing.exact import exact_distribution
from llmi.testing.laws import assert_lossless
from llmi.testing.random_drafter import random_drafter
from llmi.testing.rules import verification_law
from llmi.testing.strategies import compare_strategies
from llmi.testing.tiny import tiny_model
from llmi.testing.tokens import assert_same_tokens

__all__ = [
    "assert_lossless",
    "assert_same_distribution",
    "assert_same_tokens",
    "compare_strategies",
    "exact_distribution",
    "random_drafter",
    "tiny_model",
    "verification_law",
]
