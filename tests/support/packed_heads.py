"""Heads as they are shipped: matrices in ggml's Q4_0, 4.5 bits a weight, which the engine stores as they are."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[Any]]
Q4_0 = gguf.GGMLQuantizationType.Q4_0
#: Name of a packed tensor: its own and this. uint8 [rows, columns / 32 * 18].
SUFFIX = ".q4_0"


def pack_all(tensors: Tensors) -> Tensors:
    """Matrices packed, under their name and SUFFIX; vectors in float16, whole numbers as they are."""
    result: Tensors = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and tensor.shape[1] % 32 == 0:
            result[name + SUFFIX] = gguf.quants.quantize(tensor.astype(np.float32), Q4_0)
        else:
            result[name] = tensor if tensor.dtype.kind == "i" else tensor.astype(np.float16)
    return result


def unpack_all(tensors: Tensors) -> Tensors:
    """The reverse; matrices in float32."""
    return {
        name.removesuffix(SUFFIX): gguf.quants.dequantize(tensor, Q4_0) if name.endswith(SUFFIX) else tensor
        for name, tensor in tensors.items()
    }
