"""Which experts the rows of an engine used."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from llmi import _core
from llmi.errors import call_core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llmi.session import Session


@dataclasses.dataclass(frozen=True)
class ExpertUse:
    """Counts since the engine was opened, of all rows: prompts, drafts and sequences of the lab, too.

    Attributes
    ----------
    counts : list of int64 array [num_experts]
        For each layer, how many rows used each expert; empty for a layer without experts.
    pairs : list of int64 array [num_experts of the layer before, num_experts]
        For each layer, how many rows used both experts; [0, 0] where one of the two layers has none.
    reads : list of int
        For each layer, how often an expert's weights were read: rows of one step that use the same expert share them.
    """

    counts: list[NDArray[np.int64]]
    pairs: list[NDArray[np.int64]]
    reads: list[int]


def expert_use(llm: Session) -> ExpertUse:
    """LLM.expert_use."""
    counts, with_last, reads = call_core(_core.expert_uses, llm._engine)
    before = [0, *(len(layer) for layer in counts[:-1])]
    shapes = [(last, len(own)) if last and len(own) else (0, 0) for last, own in zip(before, counts, strict=True)]
    return ExpertUse(counts, [both.reshape(shape) for both, shape in zip(with_last, shapes, strict=True)], reads)
