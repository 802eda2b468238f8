"""Heads as they are shipped: matrices in ggml's Q4_0, 4.5 bits a weight, which the engine stores as they are.

A block of 32 columns is an fp16 scale and 16 bytes; byte j holds columns j (low half) and j + 16, each as round(x / scale) + 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
_COLUMNS = 32
#: Name of a packed tensor: its own and this. uint8 [rows, columns / 32 * 18].
SUFFIX = ".q4_0"


def pack(matrix: F32) -> NDArray[np.uint8]:
    """[rows, columns], columns a multiple of 32, to [rows, columns / 32 * 18]."""
    rows, columns = matrix.shape
    blocks = matrix.reshape(rows, columns // _COLUMNS, _COLUMNS)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2, keepdims=True), axis=2)
    scale = largest / np.float32(-8)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    codes = np.minimum((blocks * inverse + np.float32(8.5)).astype(np.int32), 15).astype(np.uint8)
    both = codes[..., :16] | (codes[..., 16:] << 4)
    scales = scale.astype(np.float16).view(np.uint8).reshape(rows, -1, 2)
    return np.concatenate((scales, both), axis=2).reshape(rows, -1)


def unpack(packed: NDArray[np.uint8]) -> F32:
    """What the codes stand for."""
    rows = len(packed)
    blocks = packed.reshape(rows, -1, 18)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
    codes = np.concatenate((blocks[..., 2:] & 15, blocks[..., 2:] >> 4), axis=2).astype(np.float32) - np.float32(8)
    values: F32 = (codes * scale).reshape(rows, -1)
    return values


def pack_all(tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Matrices packed, under their name and SUFFIX; vectors in float16, whole numbers as they are."""
    result: dict[str, NDArray[Any]] = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and tensor.shape[1] % _COLUMNS == 0:
            result[name + SUFFIX] = pack(tensor.astype(np.float32))
        else:
            result[name] = tensor if tensor.dtype.kind == "i" else tensor.astype(np.float16)
    return result


def unpack_all(tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The reverse; matrices in float32."""
    return {name.removesuffix(SUFFIX): unpack(tensor) if name.endswith(SUFFIX) else tensor for name, tensor in tensors.items()}
