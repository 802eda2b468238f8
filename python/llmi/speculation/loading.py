"""The drafters that are loaded together with a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmi.errors import UnsupportedCombinationError
from llmi.families.spec import ModelSpec
from llmi.models.files import OpenModel
from llmi.speculation import heads, medusa_heads
from llmi.speculation.auto import AutoDrafters, shipped_heads
from llmi.speculation.config import SpeculativeConfig, parse_speculation
from llmi.speculation.eagle import Eagle
from llmi.speculation.medusa import Medusa

#: The configuration, path and shortlist of the EAGLE layer, path and number of the Medusa heads, and the core's options for both by name.
Loaded = tuple[SpeculativeConfig | None, tuple[str, int | None] | None, tuple[str, int] | None, dict[str, Any]]


def load_drafters(value: object, files: OpenModel, target: ModelSpec, layers: Sequence[int]) -> Loaded:
    """Loads the drafters that LLM's speculative_config names. Raises ModelFileError for heads that do not fit the model."""
    config = parse_speculation(value)
    drafters = config._drafters if config is not None else []
    eagles = [drafter for drafter in drafters if isinstance(drafter, Eagle)]
    medusas = [drafter for drafter in drafters if isinstance(drafter, Medusa)]
    if not eagles and not layers and any(type(drafter) is AutoDrafters for drafter in drafters):
        path = shipped_heads(target, files.digest())
        eagles = [] if path is None else [Eagle(path)]
    if len({(drafter.path, drafter.shortlist) for drafter in eagles}) > 1:
        raise UnsupportedCombinationError("two EAGLE layers: a model is loaded with one at most", "speculative_config", "Eagle")
    if len({drafter.heads for drafter in medusas}) > 1:
        raise UnsupportedCombinationError("two files of Medusa heads: a model is loaded with one at most", "speculative_config", "Medusa")
    if layers and (eagles or medusas):
        raise UnsupportedCombinationError("a model of which layers are left out has other hidden rows", "speculative_config", "layers")
    eagle, options = _eagle(eagles[0], files, target) if eagles else (None, {})
    medusa, more = _medusa(medusas, files, target) if medusas else (None, {})
    return config, eagle, medusa, options | more


def _eagle(drafter: Eagle, files: OpenModel, target: ModelSpec) -> tuple[tuple[str, int | None], dict[str, Any]]:
    file = heads.open_heads(Path(drafter.path))
    shortlist = [] if file.is_eagle3 else heads.checked_shortlist(file, target.vocab_size)
    if not shortlist and not file.is_eagle3 and drafter.shortlist is not None and target.vocab_size > 2 * drafter.shortlist:
        shortlist = list(range(drafter.shortlist))
    heads.warn_of_other_target(file, files.digest())
    return (drafter.path, drafter.shortlist), heads.core_options(file, target, shortlist)


def _medusa(drafters: list[Medusa], files: OpenModel, target: ModelSpec) -> tuple[tuple[str, int], dict[str, Any]]:
    path = drafters[0].heads
    file = heads.open_heads(Path(path), medusa_heads.FILES)
    num_heads, options = medusa_heads.core_options(file, target)
    for drafter in drafters:
        drafter._check_depth(num_heads)
    heads.warn_of_other_target(file, files.digest())
    return (path, num_heads), options
