"""The arithmetic between a text's hidden states and its vector or score: float64, each sum in a fixed order, rounded once at the end.

No step sees another text, so a text's bits depend on nothing else. A matrix is added column by column, elementwise: BLAS orders its sums
by the processor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32: TypeAlias = NDArray[np.float32]
    F64: TypeAlias = NDArray[np.float64]
else:
    from llmi.base.lazy_numpy import np


def _gelu(x: float) -> float:
    return 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0)))


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


#: By the last part of a torch class's name, in lower case.
ACTIVATIONS: Final[Mapping[str, Callable[[float], float]]] = {
    "identity": lambda x: x,
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "gelu": _gelu,
    "sigmoid": sigmoid,
}

#: From the rows of a text's hidden states to one vector.
KINDS: Final[Mapping[str, Callable[[F64], F64]]] = {
    "cls": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
    "mean": lambda rows: rows.sum(axis=0) / len(rows),
    "max": lambda rows: rows.max(axis=0),
    "mean_sqrt_len": lambda rows: rows.sum(axis=0) / math.sqrt(len(rows)),
    "weighted_mean": lambda rows: _weighted(rows),
}


def _weighted(rows: F64) -> F64:
    weights = np.arange(1, len(rows) + 1, dtype=np.float64)
    weighted: F64 = (rows * weights[:, None]).sum(axis=0) / weights.sum()
    return weighted


@dataclasses.dataclass(frozen=True, slots=True)
class Dense:
    """activation(weight x + bias); columns [inputs, outputs]: the weight, transposed."""

    columns: F64
    bias: F64 | None
    activation: str = "identity"

    @property
    def num_inputs(self) -> int:
        return len(self.columns)

    @property
    def num_outputs(self) -> int:
        return int(self.columns.shape[1])

    def apply(self, x: F64) -> F64:
        """The layer's outputs."""
        total = np.zeros(self.num_outputs) if self.bias is None else self.bias.copy()
        for value, column in zip(x, self.columns, strict=True):
            total += value * column
        if self.activation == "identity":
            return total
        return np.array([ACTIVATIONS[self.activation](value) for value in total.tolist()])


@dataclasses.dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias."""

    weight: F64
    bias: F64 | None
    eps: float

    def apply(self, x: F64) -> F64:
        """The normed vector."""
        mean = math.fsum(x.tolist()) / len(x)
        variance = math.fsum(((x - mean) ** 2).tolist()) / len(x)
        normed: F64 = (x - mean) / math.sqrt(variance + self.eps) * self.weight
        return normed if self.bias is None else normed + self.bias


@dataclasses.dataclass(frozen=True, slots=True)
class Normalize:
    """x over its length; a vector of zeros stays one."""

    def apply(self, x: F64) -> F64:
        """The vector of length 1."""
        length = math.sqrt(math.fsum((x * x).tolist()))
        return x / max(length, 1e-12)


Step: TypeAlias = Dense | LayerNorm | Normalize


def pooled(kind: str, rows: F32, steps: tuple[Step, ...]) -> F64:
    """One text's vector."""
    x = KINDS[kind](rows.astype(np.float64))
    for step in steps:
        x = step.apply(x)
    return x


def cosine(a: F64, b: F64) -> float:
    """The cosine of the angle between two vectors."""
    return math.fsum((Normalize().apply(a) * Normalize().apply(b)).tolist())
