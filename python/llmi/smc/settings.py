"""The arguments of a particle filter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from llmi.base.kinds import Choice, Flag, Kind, Maybe, Real, Whole, callable_object, parse, show
from llmi.errors import InvalidParamsError
from llmi.params.constraint import Constraint
from llmi.params.structured import StructuredKind, StructuredOutputsParams
from llmi.smc.prefix import Prefix
from llmi.smc.resampling import RESAMPLERS

_KINDS: dict[str, Kind] = {
    "num_particles": Whole(1, 1 << 24),
    "constraint": Maybe(StructuredKind()),
    "power": Real(0.0, 1000.0, open_low=True),
    "resampler": Choice(tuple(RESAMPLERS)),
    "ess_threshold": Real(0.0, 1.0),
    "must_end": Flag(),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Settings:
    """The fields that `ParticleFilter` documents, in plain form."""

    num_particles: int = 64
    potential: Callable[[Prefix], float] | None = None
    constraint: Constraint[Any] | StructuredOutputsParams | Mapping[str, Any] | None = None
    power: float = 1.0
    resampler: str = "systematic"
    ess_threshold: float = 0.5
    must_end: bool = False

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            object.__setattr__(self, name, parse(kind, name, getattr(self, name)))
        if self.potential is not None and not callable_object(self.potential):
            raise InvalidParamsError(f"potential must be None or a function of a Prefix, not {show(self.potential)}", "potential")
