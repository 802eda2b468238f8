"""The rest of the grids of which kernels/test_cuda.py takes a slice: there each value is met, here each pair."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import test_cuda

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("device")]
CROWDS = [case for case in itertools.product(("llama", "gemma3"), test_cuda.WEIGHTS, test_cuda.CACHES) if case not in test_cuda.CROWDS]


@pytest.mark.parametrize(("architecture", "weights", "kv_cache_dtype"), CROWDS)
def test_tokens(tiny_path: Callable[..., Path], device: str, architecture: str, weights: dict[str, Any], kv_cache_dtype: str) -> None:
    test_cuda.test_tokens_are_those_of_the_cpu(tiny_path, device, architecture, weights, kv_cache_dtype)


@pytest.mark.parametrize(("architecture", "caching"), [("llama", True), ("gemma3", False)])
def test_preemption(tiny_path: Callable[..., Path], architecture: str, caching: bool) -> None:
    test_cuda.test_preempted_sequences_come_back_from_the_host(tiny_path, architecture, caching)


@pytest.mark.parametrize(("architecture", "kv_cache_dtype"), [("llama", "bfloat16"), ("gemma3", "float16")])
def test_graphs(tiny_path: Callable[..., Path], device: str, architecture: str, kv_cache_dtype: str) -> None:
    test_cuda.test_steps_are_played_as_graphs(tiny_path, device, architecture, kv_cache_dtype)
