"""The drafter that is loaded together with a model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from llmi.errors import UnsupportedCombinationError
from llmi.families.spec import ModelSpec
from llmi.models.files import OpenModel
from llmi.speculation.auto import AutoDrafters, shipped_heads
from llmi.speculation.config import SpeculativeConfig, parse_speculation
from llmi.speculation.eagle import Eagle
from llmi.speculation.heads import checked_shortlist, core_options, open_heads, warn_of_other_target

#: The configuration, path and shortlist of the EAGLE layer that is loaded (or None), and the core's options for it by name.
Loaded = tuple[SpeculativeConfig | None, tuple[str, int | None] | None, dict[str, Any]]


def load_speculation(value: object, files: OpenModel, target: ModelSpec, layers: Iterable[int]) -> Loaded:
    """Loads the drafter that LLM's speculative_config names. Raises ModelFileError for heads that do not fit the model."""
    config = parse_speculation(value)
    drafters = config._drafters if config is not None else []
    layers = list(layers)
    found = [drafter for drafter in drafters if isinstance(drafter, Eagle)]
    if not found and not layers and any(type(drafter) is AutoDrafters for drafter in drafters):
        path = shipped_heads(target, files.digest())
        found = [] if path is None else [Eagle(path)]
    if not found:
        return config, None, {}
    first = found[0]
    if any((other.path, other.shortlist) != (first.path, first.shortlist) for other in found):
        raise UnsupportedCombinationError("two EAGLE layers: a model is loaded with one at most", "speculative_config", "Eagle")
    if layers:
        raise UnsupportedCombinationError("a model of which layers are left out has other hidden rows", "speculative_config", "layers")
    heads = open_heads(Path(first.path))
    shortlist = [] if heads.is_eagle3 else checked_shortlist(heads, target.vocab_size)
    if not shortlist and not heads.is_eagle3 and first.shortlist is not None and target.vocab_size > 2 * first.shortlist:
        shortlist = list(range(first.shortlist))
    warn_of_other_target(heads, files.digest())
    return config, (first.path, first.shortlist), core_options(heads, target, shortlist)
