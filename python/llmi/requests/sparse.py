"""Sparse attention for the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmi import _core


def core_view(sparse_attention: Mapping[str, Any] | None) -> _core.SparseView:
    """The core's form of parsed `sparse_attention`."""
    if sparse_attention is None:
        return _core.SparseView()
    sinks = sparse_attention["sinks"]
    if sparse_attention["method"] == "streaming":
        return _core.SparseView(sinks=sinks, recent=sparse_attention["window"])
    recent = sparse_attention["recent"]
    return _core.SparseView(sinks=sinks, recent=recent, num_best=(sparse_attention["tokens"] - sinks - recent) // 16)
