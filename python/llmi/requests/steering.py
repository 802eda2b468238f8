"""Steering vectors for the core."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from llmi import _core
from llmi.errors import InvalidParamsError
from llmi.families import ModelSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    F32 = NDArray[np.float32]
else:
    from llmi.base.lazy_numpy import np


def core_steering(steering: Mapping[int, ArrayLike] | None, spec: ModelSpec) -> _core.Steering | None:
    """The core's form of parsed steering. Raises InvalidParamsError for a layer that the model lacks or a vector of another width."""
    if steering is None:
        return None
    num_layers, hidden_size = len(spec.layers), spec.hidden_size
    by_layer: dict[int, F32] = {}
    for given, vector in cast("Mapping[int, F32]", steering).items():
        layer = num_layers if given == -1 else given
        if layer > num_layers:
            raise InvalidParamsError(f"steering: layer {layer} is neither -1 nor in [0, {num_layers}]", "steering")
        if layer in by_layer:
            raise InvalidParamsError(f"steering names layer {layer} twice: -1 is that layer, the last one", "steering")
        if len(vector) != hidden_size:
            raise InvalidParamsError(
                f"steering[{given}] has {len(vector):,} values, the model's hidden_size is {hidden_size:,}", "steering"
            )
        by_layer[layer] = vector
    layers = sorted(by_layer)
    values = np.stack([by_layer[layer] for layer in layers])
    digest = hashlib.sha256(np.asarray(layers, "<i8").tobytes() + values.astype("<f4").tobytes())
    return _core.Steering(layers=layers, values=values, digest=digest.hexdigest())
